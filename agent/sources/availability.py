"""What a source cannot see at the moment, and the clock it dates things by. What to make of it is up to the rules."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agent.model.observations import Available, Observation, Unavailable


class Unit(NamedTuple):
    """What may be out of sight: a group, a topic, a partition, a group's partition; with nothing named the source."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None


SOURCE = Unit()


class Sights:
    """Turns what is out of sight now into Unavailable, and into Available once it is not. Feed the result to ChangeDetector.

    The reason first given stands until the unit is seen again, so that one spell of blindness is one fact.
    """

    def __init__(self, source: str, cluster: str, known: Iterable[Observation] = ()) -> None:
        """known: the last observation of each subject before this run; a spell of blindness may have outlived it."""
        self._source = source
        self._cluster = cluster
        self._reasons: dict[Unit, str] = {
            Unit(one.group, one.topic, one.partition): one.reason
            for one in known
            if isinstance(one, Unavailable) and (one.source, one.cluster) == (source, cluster)
        }

    @property
    def blind(self) -> bool:
        """Whether the whole source is out of sight."""
        return SOURCE in self._reasons

    @property
    def units(self) -> frozenset[Unit]:
        """What is out of sight."""
        return frozenset(self._reasons)

    def now(self, at: int, unseen: Mapping[Unit, str]) -> list[Observation]:
        """Unavailable for each unit unseen (unit -> why, a sentence), Available for what was and no longer is.

        Where the whole source is blind, nothing is known of its parts: they stay as they were.
        """
        if SOURCE in unseen:
            unseen = {**self._reasons, SOURCE: unseen[SOURCE]}
        reasons = {unit: self._reasons.get(unit, why) for unit, why in unseen.items()}
        seen = [unit for unit in self._reasons if unit not in reasons]
        self._reasons = reasons
        where: dict[str, Any] = {"at": at, "source": self._source, "cluster": self._cluster}
        return [
            *(Available(**where, **unit._asdict()) for unit in seen),
            *(Unavailable(**where, **unit._asdict(), reason=why) for unit, why in reasons.items()),
        ]


def now_ms() -> int:
    """The wall clock: milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
