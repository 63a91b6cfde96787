"""Which brokers coordinate groups, looked up with kafka-python (KIP-699: brokers from 3.0 on)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

MOVED = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""

_GROUPS_PER_REQUEST = 1_000


class Coordinators(dict[str, int]):
    """The ids of known coordinators, by group."""

    def __init__(self, send: Callable[..., Any]) -> None:
        """send: a coroutine that sends a request to a broker, by default any, with a timeout, ms."""
        super().__init__()
        self._send = send

    async def look_up(self, groups: Sequence[str], timeout_ms: int | None = None) -> Mapping[str, tuple[int, str]]:
        """Add the coordinators of groups; return the error codes and messages of the others. Raises KafkaError."""
        failures = {}
        for start in range(0, len(groups), _GROUPS_PER_REQUEST):
            keys = groups[start : start + _GROUPS_PER_REQUEST]
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=keys, min_version=4)
            for found in (await self._send(request, None, timeout_ms)).coordinators:
                if found.error_code:
                    failures[found.key] = found.error_code, found.error_message
                else:
                    self[found.key] = int(found.node_id)
        return failures
