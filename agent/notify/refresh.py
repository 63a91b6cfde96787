"""What a receiver forgets unless it is sent again, such as the alerts of Alertmanager."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import structlog

from agent.notify.base import Handle, NotDelivered, Receiver
from agent.storage.database import StorageError
from agent.storage.outbox import Outbox

_RETRIES = 4
"""How often a failed refresh is tried again within the interval."""

log = structlog.get_logger(__name__)


@runtime_checkable
class Forgetful(Protocol):
    """A receiver that must be reminded. refresh_interval: how often, ms."""

    refresh_interval: int

    def refresh(self, handles: Sequence[Handle]) -> None:
        """Send again what was delivered. handles: of all incidents that are not closed. Raises NotDelivered."""


class Refresher:
    """Reminds one receiver, if it needs that, of what was delivered to it."""

    def __init__(self, receiver: Receiver, clock: Callable[[], int]) -> None:
        """clock: ms of a clock that only goes forward."""
        self._forgetful = receiver if isinstance(receiver, Forgetful) else None
        self._name, self._clock = receiver.name, clock
        self._due: int | None = None
        self._problem = ""

    def run(self, outbox: Outbox) -> None:
        """Send what is due, the first time at once: the agent may have been down for long."""
        if self._forgetful is None or (self._due is not None and self._clock() < self._due):
            return
        wait = self._forgetful.refresh_interval
        problem = ""
        try:
            self._forgetful.refresh(outbox.handles())
        except NotDelivered as error:
            problem, wait = str(error), wait // _RETRIES
        except (sqlite3.Error, StorageError):
            raise
        except Exception as error:  # noqa: BLE001 - a defect here must not end the deliveries
            problem, wait = f"internal error: {type(error).__name__}", wait // _RETRIES
        if problem and problem != self._problem:
            log.warning("refresh_failed", receiver=self._name, reason=problem, retry_in_ms=wait)
        elif self._problem and not problem:
            log.info("refresh_resumed", receiver=self._name)
        self._problem = problem
        self._due = self._clock() + wait
