"""How far `__consumer_offsets` has been read, and which groups can be followed there. Makes no calls.

A group is followed once its partition is read up to its end and a poll has read its commits since: from then on each
commit is seen in the log. While a partition is not read up to its end (its leader is away, or an open transaction holds
its last stable offset back), its groups are polled.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.sources.kafka.tail.records import partition_of

BEHIND_MS = 3_000
"""How long a partition may not have been seen to be read up to its end before its groups are polled."""

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
    brokers: dict[str, _Broker]
    topics: dict[str, _Topic]


Ends: TypeAlias = dict[int, int]
"""Partitions of `__consumer_offsets` -> the offset to be read next."""

_DECODER = msgspec.json.Decoder(_Statistics)


def ends_reached(statistics: str) -> Ends:
    """Return which partitions had been read up to their ends.

    statistics: as librdkafka emits them, with its `fetchq_cnt` records not yet passed on.
    """
    decoded = _DECODER.decode(statistics)
    answering = {
        broker.nodeid for broker in decoded.brokers.values() if broker.state == "UP" and 0 <= broker.rxidle < _SILENT_US
    }
    topic = decoded.topics.get(OFFSETS_TOPIC)
    return {
        int(number): partition.next_offset
        for number, partition in (topic.partitions if topic else {}).items()
        if partition.broker in answering and partition.fetch_state == "active" and partition.fetchq_cnt == 0
        # Brokers before 0.11 have no last stable offset.
        if 0 <= partition.hi_offset <= partition.next_offset and partition.ls_offset in (partition.hi_offset, -1)
    }


class Poll(NamedTuple):
    """The commits of a group as a poll has read them. sent_at, completed_at: ms."""

    group: str
    commits: Sequence[Commit]
    sent_at: int
    completed_at: int


class Progress:
    """Which partitions have been read up to their ends since when, and which groups are followed."""

    def __init__(self) -> None:
        self._count = 0
        self._current_since: dict[int, int] = {}
        self._confirmed_at: dict[int, int] = {}
        self._polls: dict[str, Poll] = {}
        self._followed: dict[str, int] = {}

    @property
    def is_current(self) -> bool:
        """Whether all partitions are read up to their ends."""
        return 0 < self._count == len(self._current_since)

    def set_count(self, count: int) -> None:
        """Set the number of partitions. Groups move to others if it changes, which Kafka does not support."""
        self._count = count

    def is_followed(self, group: str) -> bool:
        """Return whether each commit of the group is seen in the log."""
        return group in self._followed

    def add_poll(self, poll: Poll) -> None:
        """Take note of a poll, whose commits have been emitted."""
        since = self._current_since.get(self.partition_of(poll.group))
        if since is not None and poll.sent_at >= since:
            self._polls[poll.group] = poll

    def confirm(self, ends: Iterable[int], now: int) -> list[Poll]:
        """Take note that these partitions have been read up to their ends; return the groups to follow now."""
        for partition in ends:
            self._current_since.setdefault(partition, now)
            self._confirmed_at[partition] = now
        ready = [
            poll
            for poll in self._polls.values()
            if self._confirmed_at.get(self.partition_of(poll.group), 0) > poll.completed_at
        ]
        for poll in ready:
            del self._polls[poll.group]
            self._followed[poll.group] = self.partition_of(poll.group)
        return ready

    def lose(self, now: int) -> set[str]:
        """Return the groups that can no longer be followed: their partitions were not read up to their ends lately."""
        for partition, at in list(self._confirmed_at.items()):
            if now - at > BEHIND_MS:
                del self._confirmed_at[partition], self._current_since[partition]
        lost = {group for group, partition in self._followed.items() if partition not in self._current_since}
        for group in lost:
            del self._followed[group]
        self._polls = {group: poll for group, poll in self._polls.items() if self._is_current(group)}
        return lost

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._followed.pop(group, None)
        self._polls.pop(group, None)

    def reset(self, partition: int) -> None:
        """Take note that records of a partition were left out: its groups are no longer followed."""
        self._current_since.pop(partition, None)
        self._confirmed_at.pop(partition, None)

    def held_at(self, now: int) -> int:
        """Return the moment as of which all commits of followed groups have been seen, ms."""
        return min(self._confirmed_at.values(), default=now)

    def partition_of(self, group: str) -> int:
        """Return the partition that holds a group's commits; -1 if none is known."""
        return partition_of(group, self._count) if self._count else -1

    def _is_current(self, group: str) -> bool:
        return self.partition_of(group) in self._current_since
