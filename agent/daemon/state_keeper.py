"""Saves the state whatever happens to its file: deleted, damaged, locked, or on a full or read-only disk."""

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.daemon.health import Health
from agent.engine.check_requests import CheckRequest
from agent.model.findings import Incident
from agent.storage.database import StorageError, storage_error
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.state_file import finish_shelter, make_shelter, return_home

STATE = "state file"
"""The name of this part in reports."""

_RETRY_S = 30
IN_MEMORY = (
    "Incidents are kept in memory and posted from there; a reboot would lose them. Free disk space or mend the "
    "directory: Backflow then uses it again by itself."
)


class StateKeeper:
    """The store, moved to memory and back as necessary. Used by the pipeline's thread."""

    def __init__(
        self,
        store: IncidentStore,
        home: Path,
        health: Health,
        *,
        moved: Callable[[Path], None],
        current: Callable[[], Iterable[Incident]],
    ) -> None:
        """home: the file in the state directory. moved: called with each new place of the state.

        current: the incidents that may still change, saved again if the file can no longer be read.
        """
        self.store = store
        self._home, self._health, self._moved, self._current = home, health, moved, current
        self._tried_at = time.monotonic()

    @property
    def is_away(self) -> bool:
        """Whether the state is in memory."""
        return self.store.path != self._home

    def save(
        self,
        position: int,
        incidents: Iterable[Incident],
        requests: Iterable[CheckRequest],
        reports: Iterable[CheckReport],
        now: int,
    ) -> frozenset[str]:
        """Save as IncidentStore does. now: ms. Raises StorageError if not even memory is left."""
        if self.is_away:
            self._try_home(now)
        elif self.store.is_deleted:
            self._restore(now)
        try:
            return self.store.save(position, incidents, requests, reports)
        except sqlite3.Error as error:
            self._take_shelter(storage_error(self.store.path, error), position, now)
        try:
            return self.store.save(position, incidents, requests, reports)
        except sqlite3.Error as error:
            raise storage_error(self.store.path, error) from error

    def prune(self, before: int) -> None:
        """Prune as IncidentStore does, unless the state is in memory. Raises StorageError."""
        try:
            if not self.is_away:
                self.store.prune(before)
        except sqlite3.Error as error:
            raise storage_error(self.store.path, error) from error

    def _try_home(self, now: int) -> None:
        """Take the state back to its directory, if that works again."""
        if time.monotonic() - self._tried_at < _RETRY_S:
            return
        self._tried_at = time.monotonic()
        lost, problem = return_home(self.store, self._home, now)
        if lost:
            self._health.failed(f"damaged {STATE}", lost)
        if problem:
            self._health.failed(STATE, f"{problem}. {IN_MEMORY}")
        else:
            self._moved(self._home)

    def _restore(self, now: int) -> None:
        """Write the state again to where it was deleted: the deleted file can be read as long as it is open."""
        reason = f"{self._home}: deleted while the agent was running"
        _, problem = return_home(self.store, self._home, now)
        if problem:
            self._take_shelter(StorageError(f"{reason}; {problem}"), self.store.position, now)
        else:
            self._moved(self._home)
            self._health.failed(f"deleted {STATE}", f"{reason}. It was written again from memory, nothing is lost.")

    def _take_shelter(self, reason: StorageError, position: int, now: int) -> None:
        """Go on in memory. Raises StorageError if that is not possible."""
        if self.is_away:
            raise reason
        shelter = make_shelter(self._home)
        try:
            self.store.move(shelter, now)
        except StorageError:
            self.store.begin_again(make_shelter(self._home), position, self._current(), now)
            finish_shelter(self._home, is_copy=False)
        else:
            finish_shelter(self._home, is_copy=True)
        self._tried_at = time.monotonic()
        self._moved(self.store.path)
        self._health.failed(STATE, f"{reason}. {IN_MEMORY}")
