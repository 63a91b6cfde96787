"""Availability of what a source watches, and the wall clock that sources date observations with."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from agent.model.observations.base import Available, Observation, Unavailable


class Unit(NamedTuple):
    """What can be unavailable: a group, a topic, a partition, a group's partition; the whole source if all are None."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None


SOURCE = Unit()
"""The whole source."""

Reasons: TypeAlias = dict[Unit, str]
"""What is unavailable, and why, as a sentence."""

_LASTING_UPDATES = 3
"""In how many updates in a row another reason must be given before it replaces the earlier one."""


class AvailabilityTracker:
    """Turns the currently unavailable units into Unavailable and Available observations, for a ChangeDetector.

    One outage is one fact as long as its reason is. The first reason is often a timeout and a better one follows, so a
    reason that lasts replaces the earlier one; reasons that alternate do not.
    """

    def __init__(self, source: str, cluster: str, known: Iterable[Observation] = ()) -> None:
        """Continue the outages in `known`, the last observation of each subject before this run."""
        self._source = source
        self._cluster = cluster
        self._reasons: dict[Unit, str] = {
            Unit(outage.group, outage.topic, outage.partition): outage.reason
            for outage in known
            if isinstance(outage, Unavailable) and (outage.source, outage.cluster) == (source, cluster)
        }
        self._next_reasons: dict[Unit, tuple[str, int]] = {}
        self._updated_at: int | None = None

    @property
    def unavailable(self) -> frozenset[Unit]:
        """The units that are unavailable."""
        return frozenset(self._reasons)

    def update(self, at: int, unavailable: Mapping[Unit, str]) -> list[Observation]:
        """Return Unavailable for each unit given (unit -> reason, a sentence), Available for those that recovered.

        While the whole source is unavailable its parts are unknown: they keep their state.
        """
        if SOURCE in unavailable:
            unavailable = {**self._reasons, SOURCE: unavailable[SOURCE]}
        reasons = {unit: self._lasting_reason(unit, reason) for unit, reason in unavailable.items()}
        recovered = [unit for unit in self._reasons if unit not in reasons]
        before, self._reasons = self._reasons, reasons
        # What is available is not confirmed by each update, as there is so much of it.
        available_at, self._updated_at = self._updated_at, at
        common: dict[str, Any] = {"at": at, "source": self._source, "cluster": self._cluster}
        return [
            *(Available(**common, **unit._asdict()) for unit in recovered),
            *(
                Unavailable(**common, **unit._asdict(), reason=reason, since=None if unit in before else available_at)
                for unit, reason in reasons.items()
            ),
        ]

    def _lasting_reason(self, unit: Unit, reason: str) -> str:
        """Return the unit's reason; an empty one says nothing new."""
        before = self._reasons.get(unit)
        if before is None or before == reason or not reason:
            self._next_reasons.pop(unit, None)
            return reason if before is None else before
        last, count = self._next_reasons.get(unit, ("", 0))
        count = count + 1 if last == reason else 1
        if count >= _LASTING_UPDATES:
            self._next_reasons.pop(unit, None)
            return reason
        self._next_reasons[unit] = (reason, count)
        return before
