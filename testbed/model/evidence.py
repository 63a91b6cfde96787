"""What the sources have shown of an effect, and the bounds of its records that a poll can know."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from agent.model.observations.base import Observation
from agent.model.observations.flink import Position
from agent.model.observations.kafka import Commit, LogOffsets, PartitionState
from testbed.model.clock import SECOND
from testbed.model.truth import Effect, Subject, Truth

MIN_RECORDS = 1_000
_USUAL = 30
_SMALL_SHARE = 0.8
_SURGE = 10
"""How many times faster a consumer may be than it has had to be so far."""

_USUAL_PACE = 5_000
"""Records/s that any consumer may read."""

Place = tuple[str, int]


class Reading(NamedTuple):
    """A reading of a committed offset, of a position or of a log.

    start: the log start offset, or None. since: when the value before was last read, ms; 0 if unknown.
    """

    at: int
    offset: int | None
    start: int | None = None
    since: int = 0


class Sight(NamedTuple):
    """Whether an effect could be seen, and the bounds of its records that a report may name."""

    is_visible: bool
    low: int = 0
    high: int | None = None


class Evidence:
    """The observations about the subjects of a truth's effects."""

    def __init__(self, truth: Truth, batches: Iterable[Iterable[Observation]]) -> None:
        effects = [effect for event in truth.events for effect in event.effects]
        groups = {_group(effect.subject) for effect in effects} - {None}
        places = {place for effect in effects if (place := _place(effect.subject)) is not None}
        topics = {topic for topic, _ in places}
        self._commits: dict[tuple[str, Place], list[Reading]] = defaultdict(list)
        self._positions: dict[Place, list[Reading]] = defaultdict(list)
        self._logs: dict[Place, list[Reading]] = defaultdict(list)
        self._states: dict[Place, list[int]] = defaultdict(list)
        for batch in batches:
            for fact in batch:
                if isinstance(fact, Commit):
                    if fact.group in groups and fact.topic in topics:
                        series = self._commits[fact.group, (fact.topic, fact.partition)]
                        series.append(Reading(fact.at, fact.offset, since=fact.start))
                elif isinstance(fact, LogOffsets):
                    place = fact.topic, fact.partition
                    if place in places:
                        self._logs[place].append(Reading(fact.at, fact.log_end, fact.log_start))
                elif isinstance(fact, Position):
                    self._positions[fact.topic, fact.partition].append(Reading(fact.at, fact.offset))
                elif isinstance(fact, PartitionState) and (fact.topic, fact.partition) in places:
                    self._states[fact.topic, fact.partition].append(fact.seen)

    def of(self, effect: Effect) -> Sight:
        """Return whether the effect could be seen, and the bounds of its records."""
        place, group = _place(effect.subject), _group(effect.subject)
        if place is None:
            return Sight(is_visible=True)
        log = self._logs.get(place, [])
        if effect.kinds[0] == "topic_recreated":
            return _deletion(effect, self._commits.get((str(group), place), []), log)
        if effect.kinds[0] == "beyond_end":  # the next commit may follow before a poll
            commits = self._commits.get((str(group), place), [])
            return Sight(any(effect.at <= reading.at and reading.offset == effect.after for reading in commits))
        if effect.measure == "":
            return Sight(is_visible=True)
        if effect.measure == "lost" and group is None:
            return _truncation(effect, log)
        commits = self._commits.get((str(group), place), [])
        if effect.measure == "lost":
            return _overrun(effect, commits, log)
        if effect.measure == "skipped":
            return _jump(effect, commits) if commits[:1] and commits[0].at < effect.at else self._start(effect, log)
        seen = _rewind(effect, commits, log)
        if place in self._positions:  # either shows it
            shown = _rewind(effect, self._positions[place], log, confirmed=True)
            return seen._replace(low=min(seen.low, shown.low)) if seen.is_visible else shown._replace(low=0)
        return seen

    def _start(self, effect: Effect, log: list[Reading]) -> Sight:
        """Return whether what a group skipped on a new partition shows: no consumer of its pace can have read it."""
        group, (topic, partition) = _group(effect.subject), _place(effect.subject) or ("", 0)
        begun = [r for r in self._commits.get((str(group), (topic, partition)), []) if r.at >= effect.at]
        read = [r.at for r in log if r.at < effect.at]
        if not begun or not read:
            return Sight(is_visible=False)
        pace = max(
            (_pace(readings, effect.at) for (other, place), readings in self._commits.items()
             if other == group and place[0] == topic), default=0.0,
        )  # fmt: skip
        needed = effect.records * SECOND / max(begun[0].at - read[-1], SECOND)
        return Sight(effect.records >= MIN_RECORDS and needed > max(_SURGE * pace, _USUAL_PACE), high=begun[0].offset)

    def shows_cause(self, effect: Effect) -> bool:
        """Return whether a change of the partition's state was seen around the effect."""
        place = _place(effect.subject)
        seen = self._states.get(place, []) if place is not None else []
        return any(effect.at - 180_000 <= at <= effect.at + 45_000 for at in seen)


def _group(subject: Subject) -> str | None:
    group = subject.get("group")
    return None if group is None else str(group)


def _place(subject: Mapping[str, str | int]) -> Place | None:
    return (str(subject["topic"]), int(subject["partition"])) if "partition" in subject else None


def _around(readings: list[Reading], at: int) -> tuple[list[Reading], list[Reading]]:
    """Return the readings with an offset before that moment and those since."""
    cut = bisect_left(readings, at, key=lambda reading: reading.at)
    return ([r for r in readings[max(0, cut - _USUAL) : cut] if r.offset is not None],
            [r for r in readings[cut : cut + 6] if r.offset is not None])  # fmt: skip


def _rewind(effect: Effect, readings: list[Reading], log: list[Reading], *, confirmed: bool = False) -> Sight:
    before, after = _around(readings, effect.at)
    high = max(effect.records, (effect.kept or 0) - (effect.after or 0)) if effect.records else 0
    if not before or not after:
        return Sight(is_visible=False)
    top = max(r.offset or 0 for r in before[-3:])
    seen = top - (after[0].offset or 0)
    if confirmed and (len(after) < 2 or top <= (after[1].offset or 0)):
        return Sight(is_visible=False)
    cut = max(0, bisect_left(log, effect.at, key=lambda reading: reading.at) - 1)
    read = top - (log[cut].start or 0) if log else MIN_RECORDS
    is_visible = seen >= MIN_RECORDS or (read > 100 and seen >= _SMALL_SHARE * read)
    # What a truncation removed cannot be read again.
    low = min(top, (effect.after or 0) + effect.records) - (after[0].offset or 0)
    return Sight(is_visible, min(max(low, 0), high), high)


def _pace(readings: list[Reading], until: int) -> float:
    """Return the highest pace that the readings show until then, records/s."""
    known = [reading for reading in readings if reading.offset is not None and reading.at < until]
    steps = (((b.offset or 0) - (a.offset or 0)) * SECOND / max(b.at - a.at, SECOND) for a, b in pairwise(known))
    return max(steps, default=0.0)


def _jump(effect: Effect, commits: list[Reading]) -> Sight:
    before, after = _around(commits, effect.at)
    if not after:
        return Sight(is_visible=False)
    if not before:
        return Sight(is_visible=effect.records >= MIN_RECORDS, high=after[0].offset)
    seen = (after[0].offset or 0) - (before[-1].offset or 0)
    usual = max(((b.offset or 0) - (a.offset or 0) for a, b in pairwise(before)), default=0)
    waits = (after[0].at - before[-1].at) / max(min((b.at - a.at for a, b in pairwise(before)), default=1_000), 1_000)
    is_visible = effect.records >= MIN_RECORDS and seen > 4 * usual * max(waits, 1.0)
    return Sight(is_visible, 0, max(seen, effect.records))


def _truncation(effect: Effect, log: list[Reading]) -> Sight:
    before, after = _around(log, effect.at)
    if not before or not after:
        return Sight(is_visible=False)
    seen = (before[-1].offset or 0) - (after[0].offset or 0)
    return Sight(seen >= 100, max(seen, 0), effect.records)


def _deletion(effect: Effect, commits: list[Reading], log: list[Reading]) -> Sight:
    """Return whether unread records were seen that are older than the time between two commits."""
    until = bisect_left(log, effect.at, key=lambda reading: reading.at)
    before, _ = _around(commits, effect.at)
    if not before or not until:
        return Sight(is_visible=False)
    waits = max((b.at - a.at for a, b in pairwise(before)), default=0)
    old = [r for r in log[:until] if before[-1].at < r.at - waits and (r.offset or 0) - (before[-1].offset or 0) > 100]
    return Sight(is_visible=bool(old) and log[until - 1].at - old[0].at > waits)


def _overrun(effect: Effect, commits: list[Reading], log: list[Reading]) -> Sight:
    if effect.kept is None:  # where a group was that has not committed cannot be known
        return Sight(is_visible=False)
    cut = bisect_left(log, effect.at, key=lambda reading: reading.at)
    commit = effect.kept
    later = [reading for reading in log[cut : cut + 3] if (reading.start or 0) > commit]
    back = [reading for reading in commits if reading.at > effect.at and (reading.offset or 0) >= (effect.after or 0)]
    # What one poll shows at once may have happened in any order, unless no consumer of this pace reads so far.
    can_have_read = bool(back) and effect.records <= 3 * _pace(commits, effect.at) * (back[0].at - effect.at) / SECOND
    is_unread = not back or (bool(later) and later[0].at < (back[0].since if can_have_read else back[0].at))
    is_visible = effect.records >= MIN_RECORDS and bool(later) and is_unread
    return Sight(is_visible, 0, max((effect.after or 0) - commit, effect.records))
