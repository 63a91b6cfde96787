"""Two clusters, a mirror between them and groups that move, drawn by seed: every record is known, on both clusters.

The truth comes from records: which a group had processed on the cluster that it left, and where these are on the other
cluster. Observations are made as an agent makes them: by polls, changes only, repeated every ten minutes.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member
from agent.model.times import millis
from agent.sources.base import HEARTBEAT_MS

BEGIN = millis("2026-11-20T06:00:00.000Z")
END = BEGIN + 10_800_000
MINUTE = 60_000
MOVE, BACK = BEGIN + 90 * MINUTE, BEGIN + 140 * MINUTE
POLL_MS, COMMIT_MS, TRANSLATE_MS = 2_000, 5_000, 60_000
MAIN, BACKUP = "main", "backup"

Times = NDArray[np.int64]


MAYBE = "maybe"


class Truth(NamedTuple):
    """What a group skipped (positive) or repeated (negative) on a partition when it moved, in records.

    continued: the offset where it should have continued. labels: of the finding; empty if there is to be none, MAYBE
    if there may be.
    """

    group: str
    cluster: str
    topic: str
    partition: int
    skipped: int
    continued: int
    labels: frozenset[str]


class Fleet:
    """The observations of both clusters, and the truth about the moves between them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - drawn by seed so that a run can be repeated
        self.numbers = np.random.default_rng(seed)
        self.truth: list[Truth] = []
        self.taken: list[Observation] = [Tick(at=at) for at in range(BEGIN, END, 1_000)]

    def observations(self) -> list[Observation]:
        """Return the observations by time."""
        return sorted(self.taken, key=lambda observation: observation.at)

    def polls(self, begin: int = BEGIN, end: int = END) -> range:
        """Return the times of an agent's polls of a cluster."""
        return range(begin + self.chance.randrange(POLL_MS), end, POLL_MS)

    def add_states(
        self, cluster: str, group: str, *running: tuple[int, int], begin: int = BEGIN, end: int = END
    ) -> None:
        """Add the states of a group that has members in these intervals, as observed in a time."""
        known: GroupState | None = None
        for at in self.polls(begin, end):
            has_members = any(first <= at < last for first, last in running)
            state = GroupState(
                at=at,
                cluster=cluster,
                group=group,
                state="Stable" if has_members else "Empty",
                members=(Member(id="m"),) if has_members else (),
            )
            if known is not None and known.state != state.state:
                state = GroupState(**{**_fields(state), "since": at - POLL_MS})
            elif known is not None and at - known.at < HEARTBEAT_MS:
                continue
            self.taken.append(state)
            known = state


def _fields(observation: Observation) -> dict[str, Any]:
    return {name: getattr(observation, name) for name in observation.__struct_fields__}


class Log:
    """A partition on a cluster: when each record was appended, and which it is. first: the offset of the first."""

    def __init__(self, cluster: str, topic: str, partition: int, first: int) -> None:
        self.cluster, self.topic, self.partition, self.first = cluster, topic, partition, first
        self.times: Times = np.empty(0, np.int64)
        self.ids: Times = np.empty(0, np.int64)
        self.start = first

    @property
    def where(self) -> dict[str, Any]:
        """Return the partition as observations have it."""
        return {"cluster": self.cluster, "topic": self.topic, "partition": self.partition}

    def end(self, at: int) -> int:
        """Return the log end offset at a time."""
        return self.first + int(np.searchsorted(self.times, at, "right"))

    def offset_of(self, record: int) -> int:
        """Return the offset before which there are all records before this one, and no others."""
        earlier = np.flatnonzero(self.ids < record)
        return self.first + (int(earlier[-1]) + 1 if earlier.size else 0)

    def readings(self, fleet: Fleet, end: int = END) -> Iterator[LogOffsets]:
        """Yield what an agent observes until a time."""
        known: LogOffsets | None = None
        for at in fleet.polls(end=end):
            reading = LogOffsets(at=at, log_start=self.start, log_end=self.end(at), **self.where)
            if known is not None and known.log_end == reading.log_end and at - known.at < HEARTBEAT_MS:
                continue
            if known is not None and known.log_end != reading.log_end:
                reading = LogOffsets(**{**_fields(reading), "since": at - POLL_MS})
            known = reading
            yield reading


class Mirrored(NamedTuple):
    """A partition and its mirror."""

    origin: Log
    target: Log


def mirror(fleet: Fleet, topic: str, partition: int, **habits: Any) -> Mirrored:
    """Return a partition on MAIN and its mirror on BACKUP, which lags by up to `delay` ms.

    prefix: of the mirror's name. until: when producers leave MAIN. native: whether they write to the mirror then.
    starts: when the mirror starts, and copies all that there is. duplicates: whether it repeats 200 records once.
    markers: whether each tenth record on MAIN is followed by a transaction marker, which is not mirrored. steady:
    whether as much is written in every minute, and mirrored exactly so late.
    """
    numbers, chance = fleet.numbers, fleet.chance
    times = _write(fleet, chance.uniform(30, 120), steady=habits.get("steady", False))
    ids = np.arange(times.size)
    written = times < habits.get("until", END)
    origin = Log(MAIN, topic, partition, chance.randrange(10_000_000))
    target = Log(BACKUP, habits.get("prefix", "") + topic, partition, chance.randrange(10_000_000))
    origin.times, origin.ids = times[written], ids[written]
    delay = habits.get("delay", 3_000)
    delays = numbers.integers(delay - 1 if habits.get("steady") else 20, delay, origin.times.size)
    late = np.maximum.accumulate(np.maximum(origin.times + delays, habits.get("starts", BEGIN)))
    arrivals, copied = late, origin.ids
    if habits.get("markers"):
        twice = 1 + (origin.ids % 10 == 9)
        origin.times, origin.ids = np.repeat(origin.times, twice), np.repeat(origin.ids, twice)
    if habits.get("duplicates"):
        cut = int(np.searchsorted(arrivals, BEGIN + 40 * MINUTE))
        arrivals = np.concatenate((arrivals[:cut], np.full(200, arrivals[cut - 1]), arrivals[cut:]))
        copied = np.concatenate((copied[:cut], copied[cut - 200 : cut], copied[cut:]))
    if habits.get("native"):
        arrivals = np.concatenate((arrivals, np.maximum(times[~written], arrivals[-1])))
        copied = np.concatenate((copied, ids[~written]))
    target.times, target.ids = arrivals, copied
    fleet.taken += origin.readings(fleet, habits.get("observed", END))
    fleet.taken += target.readings(fleet)
    return Mirrored(origin, target)


def _write(fleet: Fleet, rate: float, *, steady: bool = False) -> Times:
    """Return when records are written: the rate varies from minute to minute, with quiet minutes, or does not."""
    numbers, minutes = fleet.numbers, (END - BEGIN) // MINUTE
    per_minute = numbers.poisson(rate * 60 * numbers.choice([1.0] if steady else [0.02, 0.3, 1.0, 1.7], minutes))
    written = (
        BEGIN + minute * MINUTE + np.sort(numbers.integers(0, MINUTE, records))
        for minute, records in enumerate(per_minute.tolist())
    )
    return np.concatenate(list(written))


class Group:
    """A group on mirrored partitions that reads `lag` ms behind.

    next_record: the first record that it has not read, by partition.
    """

    def __init__(self, fleet: Fleet, name: str, parts: list[Mirrored], lag: int = 0) -> None:
        self.fleet, self.name, self.parts, self.lag = fleet, name, parts, lag
        self.next_record = [0] * len(parts)

    def commit(self, log: Log, at: int, offset: int) -> None:
        """Commit an offset, which the next poll observes."""
        seen = at + self.fleet.chance.randrange(POLL_MS)
        self.fleet.taken.append(Commit(at=seen, group=self.name, offset=offset, **log.where))

    def run(self, side: int, begin: int, end: int, starts: list[int] | None = None, labels: str = "") -> None:
        """Read and commit on a side: 0 for the origin, 1 for the target.

        starts: the offsets from which it reads, by partition. labels: of the finding about that.
        """
        for number, part in enumerate(self.parts):
            log = part[side]
            offset = log.first
            if starts is not None:
                offset = starts[number]
                self.expect(number, log, offset, labels)
            for at in range(begin + self.fleet.chance.randrange(1_000, COMMIT_MS), end, COMMIT_MS):
                offset = max(min(offset + 30_000, log.end(at - self.lag - self.fleet.chance.randrange(800))), offset)
                self.commit(log, at, offset)
            read = offset - log.first
            self.next_record[number] = int(log.ids[read]) if read < log.ids.size else int(log.ids[-1]) + 1

    def expect(self, number: int, log: Log, offset: int, labels: str) -> None:
        """Expect a finding with these labels about continuing at an offset of a log."""
        expected = log.offset_of(self.next_record[number])
        where = (self.name, log.cluster, log.topic, log.partition)
        self.fleet.truth.append(Truth(*where, offset - expected, expected, frozenset(labels.split())))

    def translate(self, begin: int, end: int, ahead: int = 0) -> list[int]:
        """Commit translated offsets on the target, once a minute, and return the last.

        ahead: by how many records they are wrong.
        """
        last = []
        for origin, target in self.parts:
            offset = target.first
            for at in range(begin + self.fleet.chance.randrange(TRANSLATE_MS), end, TRANSLATE_MS):
                read = max(origin.end(at - self.lag - 5_000) - origin.first, 0)
                translated = target.offset_of(int(origin.ids[read - read % 100])) + ahead
                offset = max(min(translated, target.end(at)), offset)
                self.commit(target, at, offset)
            last.append(offset)
        return last


def moved(fleet: Fleet, name: str, labels: str = "", **habits: Any) -> None:
    """Move a group to BACKUP at MOVE. ahead: error of translated offsets; stuck: for how long they were not translated.

    latest: whether it has no offset there and begins at the log end. deleted: likewise, as its offsets were deleted.
    lag: of the group, ms. Others: of `mirror`.
    """
    parts = [mirror(fleet, name, partition, **habits) for partition in range(2)]
    group = Group(fleet, f"g-{name}", parts, habits.get("lag", 0))
    joined = MOVE + fleet.chance.randrange(20_000, 90_000)
    observed = habits.get("observed", END)
    fleet.add_states(MAIN, group.name, (BEGIN, MOVE), end=observed)
    group.run(0, BEGIN, MOVE)
    fleet.taken = [seen for seen in fleet.taken if not (_is_commit(seen, group.name, MAIN) and seen.at >= observed)]
    if habits.get("latest"):
        fleet.add_states(BACKUP, group.name, (joined, END), begin=joined)
        starts = [target.end(joined) for _, target in parts]
    elif habits.get("deleted"):
        fleet.add_states(BACKUP, group.name, (joined, END))
        group.translate(BEGIN, MOVE - 5_000)
        for _, target in parts:
            fleet.taken.append(Commit(at=MOVE, group=group.name, offset=None, **target.where))
        starts = [target.end(joined) for _, target in parts]
    else:
        fleet.add_states(BACKUP, group.name, (joined, END))
        starts = group.translate(BEGIN + 2 * MINUTE, MOVE - habits.get("stuck", 0), habits.get("ahead", 0))
    group.lag = 0
    group.run(1, joined, END, starts, labels)


def _is_commit(seen: Observation, group: str, cluster: str) -> bool:
    return isinstance(seen, Commit) and (seen.group, seen.cluster) == (group, cluster)


def back(fleet: Fleet, name: str) -> None:
    """Move a group to BACKUP and back to MAIN, where its old offsets are."""
    parts = [mirror(fleet, name, partition) for partition in range(2)]
    group = Group(fleet, f"g-{name}", parts)
    fleet.add_states(MAIN, group.name, (BEGIN, MOVE), (BACK + 30_000, END))
    fleet.add_states(BACKUP, group.name, (MOVE + 30_000, BACK))
    group.run(0, BEGIN, MOVE)
    old = [origin.first + record for (origin, _), record in zip(parts, group.next_record, strict=True)]
    group.run(1, MOVE + 30_000, BACK, group.translate(BEGIN, MOVE))
    group.run(0, BACK + 30_000, END, old, "reprocessed")


def on_both(fleet: Fleet, name: str) -> None:
    """Run a group on both clusters on purpose, with a restart on each."""
    parts = [mirror(fleet, name, 0)]
    fleet.add_states(MAIN, f"g-{name}", (BEGIN, MOVE), (MOVE + MINUTE, END))
    fleet.add_states(BACKUP, f"g-{name}", (BEGIN + 30 * MINUTE, MOVE + 20 * MINUTE), (MOVE + 21 * MINUTE, END))
    group = Group(fleet, f"g-{name}", parts)
    group.run(0, BEGIN, END)
    group.run(1, BEGIN + 30 * MINUTE, END, [target.first + 5_000 for _, target in parts])


def unrelated(fleet: Fleet, name: str) -> None:
    """Move a group between topics of the same name that do not mirror each other."""
    parts = [mirror(fleet, name, 0)]
    other = Log(BACKUP, name, 0, 500_000)
    other.times = _write(fleet, 60)
    other.ids = np.arange(other.times.size)
    known = parts[0].target.where
    fleet.taken = [seen for seen in fleet.taken if not (isinstance(seen, LogOffsets) and _place(seen) == known)]
    fleet.taken += other.readings(fleet)
    fleet.add_states(MAIN, f"g-{name}", (BEGIN, MOVE))
    fleet.add_states(BACKUP, f"g-{name}", (MOVE + MINUTE, END))
    group = Group(fleet, f"g-{name}", [Mirrored(parts[0].origin, other)])
    group.run(0, BEGIN, MOVE)
    group.run(1, MOVE + MINUTE, END, [other.end(BEGIN + 20 * MINUTE)])


def _place(seen: LogOffsets) -> dict[str, Any]:
    return {"cluster": seen.cluster, "topic": seen.topic, "partition": seen.partition}


def standby(fleet: Fleet, name: str, labels: str = "", *, ahead: int = 0, stuck: int = 0, lag: int = 0) -> None:
    """Leave a group on MAIN; its translated offsets on BACKUP are wrong, or have not been translated for a while."""
    parts = [mirror(fleet, name, 0)]
    group = Group(fleet, f"g-{name}", parts, lag)
    fleet.add_states(MAIN, group.name, (BEGIN, END))
    fleet.add_states(BACKUP, group.name)
    group.run(0, BEGIN, END)
    for (_, target), offset in zip(parts, group.translate(BEGIN, END - stuck, ahead), strict=True):
        group.expect(0, target, offset, labels)


def drawn(seed: int) -> Fleet:
    """Return a fleet with each kind of move."""
    fleet = Fleet(seed)
    far = fleet.chance.randrange(9_000, 30_000)
    moved(fleet, "clean")
    moved(fleet, "clean-with-lag", lag=30 * MINUTE)
    moved(fleet, "repeats", "reprocessed", stuck=fleet.chance.randrange(15, 40) * MINUTE)
    moved(fleet, "skips", "skipped", ahead=far, lag=30 * MINUTE)
    moved(fleet, "latest", "skipped no_offset", latest=True, lag=30 * MINUTE)
    moved(fleet, "unseen", "skipped no_offset origin_unseen", latest=True, lag=30 * MINUTE, observed=MOVE - 20_000)
    moved(fleet, "prefixed", "reprocessed", prefix="main.", stuck=20 * MINUTE)
    moved(fleet, "duplicates", "reprocessed", duplicates=True, stuck=40 * MINUTE)
    moved(fleet, "slow-mirror", delay=5 * MINUTE, lag=30 * MINUTE)
    moved(fleet, "late-mirror", starts=BEGIN + 60 * MINUTE, lag=50 * MINUTE)
    moved(fleet, "producers-first", "reprocessed", until=MOVE - 10 * MINUTE, native=True, stuck=40 * MINUTE)
    moved(fleet, "deleted", "skipped no_offset", deleted=True, lag=30 * MINUTE)
    moved(fleet, "transactions", MAYBE, markers=True, stuck=40 * MINUTE)
    moved(fleet, "transactions-ahead", MAYBE, markers=True, ahead=far, lag=30 * MINUTE)
    moved(fleet, "steady", steady=True, delay=8 * MINUTE, lag=30 * MINUTE)
    moved(fleet, "resized", stuck=40 * MINUTE)
    fleet.taken += Log(BACKUP, "resized", 2, 0).readings(fleet)
    back(fleet, "back")
    on_both(fleet, "both")
    unrelated(fleet, "unrelated")
    standby(fleet, "ready")
    standby(fleet, "stale", "reprocessed projected", stuck=30 * MINUTE)
    standby(fleet, "ahead", "skipped projected", ahead=far, lag=30 * MINUTE)
    return fleet
