"""How far `__consumer_offsets` has been read, and which groups can be followed there. Makes no calls.

A group is followed once its partition is read up to its end and a poll has read its commits since: from then on each
commit is seen in the log. While the reading of a partition stands still before its end (its leader is away, or an open
transaction holds its last stable offset back), its groups are polled.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.sources.kafka.tail.records import partition_of

BEHIND_MS = 3_000
"""How long a partition may not have been read up to its end nor moved on before its groups are polled."""

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

    is_at_end: whether it was read up to its end. has_more: whether fetched records wait to be taken.
    """

    partition: int
    next_offset: int
    is_at_end: bool
    has_more: bool


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
        )
        for number, partition in (topic.partitions if topic else {}).items()
    ]


def _is_at_end(partition: _Partition) -> bool:
    # Brokers before 0.11 have no last stable offset.
    is_stable = partition.ls_offset in (partition.hi_offset, -1)
    is_all_taken = partition.fetch_state == "active" and partition.fetchq_cnt == 0
    return is_all_taken and is_stable and 0 <= partition.hi_offset <= partition.next_offset


class Poll(NamedTuple):
    """The commits of a group as a poll has read them. sent_at, completed_at: ms."""

    group: str
    commits: Sequence[Commit]
    sent_at: int
    completed_at: int


class _Followed(NamedTuple):
    """A partition that has been read up to its end. since: the first time; at: the last time, ms.

    alive_at: when it was last seen to be at its end or to move on, ms.
    """

    since: int
    at: int
    alive_at: int
    next_offset: int


class Progress:
    """Which partitions have been read up to their ends since when, and which groups are followed.

    count: the number of partitions. Groups move to others if it changes, which Kafka does not support.
    """

    def __init__(self) -> None:
        self.count = 0
        self._partitions: dict[int, _Followed] = {}
        self._polls: dict[str, Poll] = {}
        self._groups: dict[str, int] = {}
        self._looked_at: int | None = None

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

    def add_poll(self, poll: Poll) -> None:
        """Take note of a poll, whose commits have been emitted."""
        partition = self._partitions.get(self.partition_of(poll.group))
        if partition is not None and poll.sent_at >= partition.since:
            self._polls[poll.group] = poll

    def update(self, readings: Iterable[Reading], at: int) -> list[Poll]:
        """Take note of how far partitions had been read at a moment (ms); return the groups to follow now."""
        for reading in readings:
            known = self._partitions.get(reading.partition)
            if reading.is_at_end:
                since = at if known is None else known.since
                self._partitions[reading.partition] = _Followed(since, at, at, reading.next_offset)
            elif known is not None and (reading.has_more or reading.next_offset != known.next_offset):
                moved = known._replace(alive_at=at, next_offset=reading.next_offset)
                self._partitions[reading.partition] = moved
        ready = [poll for poll in self._polls.values() if self._is_confirmed(poll)]
        for poll in ready:
            del self._polls[poll.group]
            self._groups[poll.group] = self.partition_of(poll.group)
        return ready

    def _is_confirmed(self, poll: Poll) -> bool:
        partition = self._partitions.get(self.partition_of(poll.group))
        return partition is not None and partition.at > poll.completed_at

    def lose(self, now: int) -> list[str]:
        """Return the groups that can no longer be followed: the reading of their partitions stands still.

        Call it every second: after a longer pause our process was suspended, and reading goes on where it was.
        """
        last, self._looked_at = self._looked_at, now
        if last is not None and now - last > BEHIND_MS:
            for number, partition in self._partitions.items():
                self._partitions[number] = partition._replace(alive_at=now)
        for number, partition in list(self._partitions.items()):
            if now - partition.alive_at > BEHIND_MS:
                del self._partitions[number]
        return self._drop()

    def _drop(self) -> list[str]:
        """Follow no group whose partition is not read, and return them."""
        lost = [group for group, number in self._groups.items() if number not in self._partitions]
        for group in lost:
            del self._groups[group]
        self._polls = {
            group: poll for group, poll in self._polls.items() if self.partition_of(group) in self._partitions
        }
        return lost

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._groups.pop(group, None)
        self._polls.pop(group, None)

    def reset(self, partitions: Iterable[int]) -> None:
        """Take note that records of these partitions are not read: their groups are no longer followed."""
        for partition in partitions:
            self._partitions.pop(partition, None)
        self._drop()

    def partition_of(self, group: str) -> int:
        """Return the partition that holds a group's commits; -1 if none is known."""
        return partition_of(group, self.count) if self.count else -1

    def held_at(self, now: int) -> int:
        """Return the moment as of which all commits of followed groups have been seen, ms."""
        return min((partition.at for partition in self._partitions.values()), default=now)
