"""The history of one subject, and how long rules may look back and findings may change."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any, Generic, TypeVar, cast

import msgspec

from agent.engine.compact_list import CompactList, value_of
from agent.model.observations.base import Observation, Subject, Tick, is_same_fact

LATENESS_MS = 60_000
"""Allowed lateness: how far observations of different subjects may arrive out of order."""

FINALIZATION_MS = 3 * LATENESS_MS
"""How long after it could first be known a finding may still change.

All sources have reported what happened up to LATENESS_MS after it by then. A rule reads no further ahead, so the order
in which observations arrive decides nothing.
"""

RETENTION_MS = FINALIZATION_MS + LATENESS_MS
"""How long histories keep changes: until findings are final, and room before that to look back."""

LONG_AGO, LONG_AFTER = -(1 << 62), 1 << 62
"""Before and after all observations, ms."""

FLOOR = Observation.history_floor
"""How many changes the history of a state keeps however old they are."""

T = TypeVar("T", bound=Observation)


class Change(Enum):
    """What an observation did to its subject's history."""

    STALE = auto()
    """Nothing: it is older than the last observation of its subject."""
    UNCHANGED = auto()
    """It confirms the newest change."""
    CHANGED = auto()


class History(Generic[T]):
    """One subject's observations in order of `at`, changes only, newest last.

    confirmed: when the newest change was last seen to hold, ms. older: a selection of the changes before `changes`, the
    sparser the older, of kinds with `memory_ms`.
    """

    __slots__ = ("changes", "confirmed", "older", "subject")

    def __init__(self, subject: Subject = (), *, compact: bool = False) -> None:
        """compact: whether its observations are of a kind with `is_compact`."""
        self.subject = subject
        self.changes: list[T] | CompactList[T] = CompactList() if compact else []
        self.older: CompactList[T] | tuple[()] = ()
        self.confirmed = LONG_AGO

    def __iter__(self) -> Iterator[T]:
        """Iterate over the changes, oldest first."""
        return iter(self.changes)

    @property
    def last(self) -> T | None:
        """The newest change."""
        return self.changes[-1] if self.changes else None

    def as_of(self, at: int) -> T | None:
        """Return what held at that moment: the last change at or before it."""
        changes = self.changes
        if changes and changes[-1].at <= at:
            return changes[-1]
        index = self._bisect(at, bisect_right)
        return changes[index - 1] if index else None

    def after(self, at: int) -> list[T]:
        """Return the changes after that moment, oldest first."""
        changes = self.changes
        if not changes or changes[-1].at <= at:
            return []
        return changes[self._bisect(at, bisect_right) :]

    def when(self, at: int, name: str, is_wanted: Callable[[Any], Any]) -> int | None:
        """Return when, after that moment, a field first has a wanted value; None if never.

        The field is a number, and of no key. is_wanted: takes a value, or an array of them; None is UNKNOWN.
        """
        changes = self.changes
        if not changes or changes[-1].at <= at:
            return None
        begin = self._bisect(at, bisect_right)
        if isinstance(changes, list):
            return next((change.at for change in changes[begin:] if is_wanted(value_of(change, name))), None)
        index = changes.find(name, is_wanted, begin)
        return None if index is None else changes.at(index)

    def before(self, at: int, most: int) -> list[T]:
        """Return the last changes before that moment, at most so many, oldest first."""
        index = self._bisect(at, bisect_left)
        return self.changes[max(index - most, 0) : index]

    def backwards(self, end: int) -> Iterator[T]:
        """Yield the changes up to that moment, newest first."""
        changes = self.changes
        for index in range(self._bisect(end, bisect_right) - 1, -1, -1):
            yield changes[index]

    def between(self, begin: int, end: int) -> list[T]:
        """Return the changes after `begin` and up to `end`, oldest first."""
        if self.confirmed <= begin:  # cheaper to ask than when the last change was
            return []
        changes = self.changes
        return changes[self._bisect(begin, bisect_right) : self._bisect(end, bisect_right)]

    def count_from(self, at: int) -> int:
        """Return how many changes there are from that moment on."""
        return len(self.changes) - self._bisect(at, bisect_left)

    def count_until(self, at: int) -> int:
        """Return how many changes there are up to that moment."""
        return self._bisect(at, bisect_right)

    def add(self, observation: T) -> Change:
        """Append an observation unless it is stale or says nothing new."""
        if observation.at < self.confirmed:
            return Change.STALE
        self.confirmed = observation.at
        changes = self.changes
        if changes and is_same_fact(changes[-1], observation):
            return Change.UNCHANGED
        changes.append(observation)
        floor = observation.history_floor
        if len(changes) > 2 * floor and self._changed_at(2 * floor) < observation.at - RETENTION_MS:
            self._trim(observation.at, observation)
        return Change.CHANGED

    def add_row(self, at: int, row: bytes) -> None:
        """Append an observation that differs from the last one, as `CompactList.append_row` takes it."""
        self.confirmed = at
        changes, floor = cast("CompactList[T]", self.changes), FLOOR
        if changes.append_row(row) > 2 * floor and changes.at(2 * floor) < at - RETENTION_MS:
            self._trim(at, changes.sample)

    def drop(self, count: int) -> None:
        """Remove the first `count` changes."""
        del self.changes[:count]

    def _trim(self, now: int, sample: T) -> None:
        """Remove what is older than RETENTION_MS but for the history's floor. sample: any of its observations."""
        changes = self.changes
        count = self._bisect(now - RETENTION_MS, bisect_left) - sample.history_floor
        if sample.memory_ms and isinstance(changes, CompactList):
            self.older = changes.thinned(self.older, count, now)
        self.drop(count)

    def _changed_at(self, index: int) -> int:
        changes = self.changes
        return changes[index].at if isinstance(changes, list) else changes.at(index)

    def _bisect(self, at: int, bisect: Callable[..., int]) -> int:
        changes = self.changes
        return bisect(changes, at, key=_at) if isinstance(changes, list) else changes.bisect(at, bisect)


class Ticks(History[Tick]):
    """The first tick, and each one before which Backflow was suspended: `since` is then the last tick before that.

    Ticks come about once a second. A recording in which they are further apart than LATENESS_MS shows no suspension.
    """

    __slots__ = ("are_regular",)

    def __init__(self, subject: Subject = ()) -> None:
        super().__init__(subject)
        self.are_regular = False

    def add(self, observation: Tick) -> Change:
        last, is_first = self.confirmed, not self.changes
        if is_first or observation.at <= last + LATENESS_MS or not self.are_regular:
            self.are_regular = not is_first and observation.at <= last + LATENESS_MS
            return super().add(observation)
        self.confirmed, self.are_regular = observation.at, False
        self.changes.append(msgspec.structs.replace(observation, since=last))
        del self.changes[: -2 * FLOOR]
        return Change.CHANGED


def _at(observation: Observation) -> int:
    return observation.at
