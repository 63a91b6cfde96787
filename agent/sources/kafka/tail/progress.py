"""How far `__consumer_offsets` has been read, and which groups can be followed there. Makes no calls.

A group is followed once its partition is read up to its end and a poll has read its commits since: from then on each
commit is seen in the log. It stays followed while the partition's leader is away: what it commits meanwhile is read
later. While an open transaction holds the last stable offset back, its groups are polled.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from agent.model.group_partition import partition_of
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.sources.kafka.tail.resumption import End

BEHIND_MS = 3_000
"""How long an open transaction may hold up the reading of a partition before its groups are polled."""

LOST_MS = 60_000
"""How long the reading of a partition may stand still for another reason before its groups are polled."""

LATE_MS = 60_000
"""How long the reading of a partition may go on without reaching its end before that is a problem."""

CATCH_UP_MS = 120_000
"""How long reading what was written before the start may take."""

COMPACTED_MS = 3_600_000
"""After how long a deletion that was written while nothing was read may have been removed again: compaction keeps it
for `delete.retention.ms`, by default a day."""

_SILENT_US = 2_000_000
"""How long a broker may not have sent anything: it answers a fetch after half a second if there is nothing new."""


class _Broker(msgspec.Struct):
    nodeid: int
    state: str
    rxidle: int


class _Partition(msgspec.Struct):
    broker: int
    fetch_state: str
    fetchq_cnt: int
    next_offset: int
    hi_offset: int
    ls_offset: int


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition]


class _Statistics(msgspec.Struct):
    ts: int
    brokers: dict[str, _Broker]
    topics: dict[str, _Topic]


_DECODER = msgspec.json.Decoder(_Statistics)


class Reading(NamedTuple):
    """How far a partition has been read. next_offset: to be fetched next.

    is_at_end: whether it was read up to its end. has_more: whether fetched records wait to be taken. is_held_back:
    whether all was read up to an open transaction.
    """

    partition: int
    next_offset: int
    is_at_end: bool
    has_more: bool
    is_held_back: bool = False


def read_statistics(statistics: str) -> tuple[int, list[Reading]]:
    """Return when librdkafka made its statistics (us of the monotonic clock), and how far partitions had been read."""
    decoded = _DECODER.decode(statistics)
    answering = {
        broker.nodeid for broker in decoded.brokers.values() if broker.state == "UP" and 0 <= broker.rxidle < _SILENT_US
    }
    topic = decoded.topics.get(OFFSETS_TOPIC)
    return decoded.ts, [
        Reading(
            int(number),
            partition.next_offset,
            is_at_end=partition.broker in answering and _is_at_end(partition),
            has_more=partition.fetchq_cnt > 0,
            is_held_back=partition.broker in answering and _is_held_back(partition),
        )
        for number, partition in (topic.partitions if topic else {}).items()
    ]


def _is_at_end(partition: _Partition) -> bool:
    # Brokers before 0.11 have no last stable offset.
    is_stable = partition.ls_offset in (partition.hi_offset, -1)
    is_all_taken = partition.fetch_state == "active" and partition.fetchq_cnt == 0
    return is_all_taken and is_stable and 0 <= partition.hi_offset <= partition.next_offset


def _is_held_back(partition: _Partition) -> bool:
    is_all_taken = partition.fetch_state == "active" and partition.fetchq_cnt == 0
    is_unstable = 0 <= partition.ls_offset < partition.hi_offset
    return is_all_taken and is_unstable and partition.next_offset >= partition.ls_offset


class Poll(NamedTuple):
    """The commits of a group as a poll has read them. sent_at, completed_at: ms."""

    group: str
    commits: Iterable[Commit]
    sent_at: int
    completed_at: int

    def shows_the_same(self, other: "Poll") -> bool:
        """Return whether nothing was committed between the two, as far as they show."""
        mine, theirs = (
            {(commit.topic, commit.partition, commit.offset, commit.leader_epoch) for commit in poll.commits}
            for poll in (self, other)
        )
        return mine == theirs


class _Followed(NamedTuple):
    """A partition all of whose records are read. since: from those written then on; at: up to those, ms.

    next_offset: to be fetched next. alive_at: when it was last seen to be at its end or to move on, ms. is_catching_up:
    whether it has not been at its end in this run. is_held_back: whether an open transaction holds it up. behind_since:
    when it was first read without reaching its end, ms; None if it has reached it since, or is held back.
    """

    since: int
    at: int
    next_offset: int
    alive_at: int
    is_catching_up: bool = False
    is_held_back: bool = False
    behind_since: int | None = None


class Progress:
    """Which partitions have been read up to their ends since when, and which groups are followed."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Followed] = {}
        self._polls: dict[str, Poll] = {}
        self._groups: dict[str, None] = {}
        self._counts: tuple[int, ...] = ()
        self._looked_at: int | None = None
        self._catching_up_since: int | None = None

    @property
    def count(self) -> int:
        """The number of partitions, 0 if it is unknown."""
        return self._counts[-1] if self._counts else 0

    def set_count(self, count: int, now: int) -> bool:
        """Take note of the number of partitions; return whether it has decreased, so that the topic is another one.

        All of a partition that was added is read. Coordinators use the number with which they were started: until they
        are restarted a group's commits are in the partition that it had before.
        """
        before = self.count
        if count == before:
            return False
        if count < before:
            self._counts = (count,) if count else ()
            self.reset(list(self._partitions))
            return True
        self._counts = (*self._counts, count)
        if before:
            for number in range(before, count):
                self._partitions[number] = _Followed(0, 0, 0, now)
        return False

    def resume(self, positions: Mapping[int, End], groups: Iterable[str], counts: tuple[int, ...]) -> None:
        """Follow these groups from where an earlier run stopped. counts: of partitions, ascending."""
        self._counts = counts
        self._partitions = {
            number: _Followed(end.at, end.at, end.next_offset, end.at, is_catching_up=True)
            for number, end in positions.items()
        }
        self._groups = dict.fromkeys(groups)

    @property
    def is_current(self) -> bool:
        """Whether all partitions can be read."""
        return 0 < self.count == len(self._partitions)

    def is_followed(self, group: str) -> bool:
        """Return whether each commit of the group is seen in the log."""
        return group in self._groups

    @property
    def groups(self) -> list[str]:
        """The followed groups."""
        return list(self._groups)

    @property
    def ends(self) -> dict[int, End]:
        """Where partitions ended when they were last read up to their ends in this run."""
        return {
            number: End(partition.next_offset, partition.at)
            for number, partition in self._partitions.items()
            if partition.alive_at == partition.at and not partition.is_catching_up
        }

    def add_poll(self, poll: Poll) -> None:
        """Take note of a poll, whose commits have been emitted.

        The one before stands if nothing is new: polls may follow each other faster than readings, and each needs a
        reading after it.
        """
        partitions = self._partitions_of(poll.group)
        before = self._polls.get(poll.group)
        if partitions and all(poll.sent_at >= partition.since for partition in partitions):
            self._polls[poll.group] = before if before is not None and before.shows_the_same(poll) else poll

    def update(self, readings: Iterable[Reading], at: int) -> list[Poll]:
        """Take note of how far partitions had been read at a moment (ms); return the groups to follow now."""
        for reading in readings:
            known = self._partitions.get(reading.partition)
            if reading.is_at_end:
                since = at if known is None else known.since
                self._partitions[reading.partition] = _Followed(since, at, reading.next_offset, at)
            elif known is not None:
                moved = reading.has_more or reading.next_offset != known.next_offset
                behind_since = at if known.behind_since is None else known.behind_since
                self._partitions[reading.partition] = known._replace(
                    alive_at=at if moved else known.alive_at,
                    next_offset=reading.next_offset,
                    is_held_back=reading.is_held_back,
                    behind_since=None if reading.is_held_back else behind_since,
                )
        ready = [poll for poll in self._polls.values() if self._is_confirmed(poll)]
        for poll in ready:
            del self._polls[poll.group]
            self._groups[poll.group] = None
        return ready

    def _is_confirmed(self, poll: Poll) -> bool:
        partitions = self._partitions_of(poll.group)
        return bool(partitions) and all(partition.at > poll.completed_at for partition in partitions)

    def lose(self, now: int) -> list[str]:
        """Return the groups that can no longer be followed: the reading of their partitions stands still.

        Call it every second: after a longer pause our process was suspended, and reading goes on where it was.
        """
        last, self._looked_at = self._looked_at, now
        if last is None or now - last > BEHIND_MS:
            self.wait(now)
        for number, partition in list(self._partitions.items()):
            if now - partition.alive_at > (BEHIND_MS if partition.is_held_back else LOST_MS):
                del self._partitions[number]
        return self._drop()

    def wait(self, now: int) -> None:
        """Measure from now on (ms) for how long partitions stand still."""
        for number, partition in self._partitions.items():
            self._partitions[number] = partition._replace(alive_at=now)

    @property
    def stalled_groups(self) -> list[str]:
        """The followed groups whose partitions stand still: their coordinators may be away."""
        stalled = {
            number
            for number, partition in self._partitions.items()
            if (self._looked_at or 0) - partition.alive_at > BEHIND_MS
        }
        return [group for group in self._groups if stalled.intersection(self.partitions_of(group))] if stalled else []

    def is_late(self, now: int) -> bool:
        """Return whether a partition has been read for LATE_MS without reaching its end: more is written than read."""
        return any(
            partition.behind_since is not None
            and now - partition.behind_since > LATE_MS
            and now - partition.alive_at <= BEHIND_MS
            for partition in self._partitions.values()
        )

    def is_outdated(self, number: int, now: int) -> bool:
        """Return whether a partition that catches up was not read for so long that its log may lack deletions."""
        known = self._partitions.get(number)
        return known is not None and known.is_catching_up and now - known.at > COMPACTED_MS

    @property
    def catching_up(self) -> dict[int, int]:
        """The partitions that have not been at their ends in this run, and their offsets to be fetched next."""
        return {number: known.next_offset for number, known in self._partitions.items() if known.is_catching_up}

    @property
    def held_back(self) -> set[int]:
        """The partitions whose reading an open transaction holds up."""
        return {number for number, known in self._partitions.items() if known.is_held_back}

    def too_far_behind(self, now: int) -> list[int]:
        """Return the partitions of which what was written before the start takes too long to read."""
        behind = list(self.catching_up)
        if not behind:
            return []
        if self._catching_up_since is None:
            self._catching_up_since = now
        return behind if now - self._catching_up_since > CATCH_UP_MS else []

    def _drop(self) -> list[str]:
        """Follow no group whose partition is not read, and return them."""
        if len(self._partitions) == self.count > 0:
            return []
        lost = [group for group in self._groups if not self._partitions_of(group)]
        for group in lost:
            del self._groups[group]
        self._polls = {group: poll for group, poll in self._polls.items() if self._partitions_of(group)}
        return lost

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._groups.pop(group, None)
        self._polls.pop(group, None)

    def reset(self, partitions: Iterable[int]) -> list[str]:
        """Take note that records of these partitions are not read; return the groups no longer followed."""
        for partition in partitions:
            self._partitions.pop(partition, None)
        return self._drop()

    def partitions_of(self, group: str) -> set[int]:
        """Return the partitions that may hold a group's commits: one, unless the topic was given more."""
        return {partition_of(group, count) for count in self._counts}

    def _partitions_of(self, group: str) -> list[_Followed]:
        """Return the partitions of a group if all of them are read, else none."""
        partitions = [self._partitions.get(number) for number in self.partitions_of(group)]
        return [] if None in partitions else [partition for partition in partitions if partition is not None]

    def held_at(self, now: int) -> int:
        """Return the moment as of which all commits of followed groups have been seen, ms."""
        return min((partition.at for partition in self._partitions.values()), default=now)
