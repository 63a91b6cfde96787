"""Log offsets of partitions: which results are current, and which partitions have none. Makes no calls."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from agent.model.observations.kafka import LogOffsets
from agent.sources.availability import Reasons, Unit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.reasons import LEADER_SILENT, log_reason

_LIVE_MS = 60_000
"""For how long after a change, or a sign of one, the log offsets of a partition are read in every poll.

A commit is a sign: no log end should be older than a commit after a rest, or the commit would seem to be beyond it.
"""

_TURN_MS = 7_000
"""How often the others are read: a truncation is to be reported within ten seconds."""

T = TypeVar("T", LogOffsets, protocol.PartitionFailure)


class _Applied(NamedTuple):
    """What is current of a result. unchanged: the partitions whose log offsets are the same as when last read."""

    logs: list[LogOffsets]
    failures: list[protocol.PartitionFailure]
    unchanged: Collection[TopicPartition]


class LogState:
    """When log offsets were last read.

    unavailable: partitions whose log offsets cannot be read, and why.
    """

    def __init__(self) -> None:
        self.unavailable: Reasons = {}
        self._read_at: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, tuple[int, int]] = {}
        self._live_until: dict[TopicPartition, int] = {}
        self._watched: Mapping[int, Sequence[TopicPartition]] = {}
        self._settled: dict[TopicPartition, Sequence[TopicPartition]] = {}
        self._all_rest_from = 0

    def watch(self, by_leader: Mapping[int, Sequence[TopicPartition]]) -> None:
        """Take note of the partitions that are watched: another object if they have changed."""
        if by_leader is not self._watched:
            self._watched = by_leader
            self._settled.clear()

    def is_due(self, partitions: Sequence[TopicPartition], now: int) -> bool:
        """Return whether to read the log offsets of partitions, which are read together, in this poll."""
        if not 0 <= now - self._read_at.get(partitions[0], 0) < _TURN_MS or not self.are_settled(partitions):
            return True
        return now < self._all_rest_from and any(now < self._live_until.get(place, 0) for place in partitions)

    def wake(self, partitions: Iterable[TopicPartition], now: int) -> None:
        """Take note that something has happened to partitions, so that their log offsets may change."""
        if woken := dict.fromkeys(partitions, now + _LIVE_MS):
            self._live_until.update(woken)
            self._all_rest_from = max(self._all_rest_from, now + _LIVE_MS)

    def are_settled(self, partitions: Sequence[TopicPartition]) -> bool:
        """Return whether the last log offsets of the partitions are known, so that only changes are of interest."""
        if self.unavailable and any(Unit(None, *place) in self.unavailable for place in partitions):
            return False
        # What is read together is the same in each poll: to compare it is much cheaper than to look each of it up.
        if self._settled.get(partitions[0]) != partitions:
            if not all(map(self._read_at.__contains__, partitions)):
                return False
            self._settled[partitions[0]] = partitions
        return True

    def apply(
        self,
        request: protocol.ListOffsets,
        result: protocol.Offsets,
        sent_at: int,
        leaders: Mapping[str, Mapping[int, int]],
        explain: Callable[[protocol.PartitionFailure], str],
    ) -> _Applied:
        """Update with log offsets as of when they were requested; return what is current.

        leaders: of the partitions that exist. explain: returns a failure in words.
        """
        logs = [self._dated(offsets) for offsets in self._current(result.logs, sent_at, leaders)]
        failures = list(self._current(result.failures, sent_at, leaders))
        unchanged: Collection[TopicPartition] = ()
        if len(result.logs) + len(result.failures) < len(request.partitions):
            mentioned = {(log.topic, log.partition) for log in result.logs}
            mentioned |= {(failed.topic, failed.partition) for failed in result.failures}
            unchanged = [
                place
                for place in request.partitions
                if place not in mentioned and place in self._read_at and sent_at >= self._read_at[place]
            ]
        for offsets in logs:
            place = (offsets.topic, offsets.partition)
            if self._last.get(place) != (offsets.log_start, offsets.log_end):
                self._last[place] = offsets.log_start, offsets.log_end
                self.wake([place], sent_at)
            self._read_at[place] = sent_at
            self.unavailable.pop(Unit(None, *place), None)
        for failed in failures:
            self.lose((failed.topic, failed.partition), explain(failed))
        self._read_at.update(dict.fromkeys(unchanged, sent_at))
        return _Applied(logs, failures, unchanged)

    def _dated(self, offsets: LogOffsets) -> LogOffsets:
        """Return log offsets dated since their partition was last read, which readings without a change do as well."""
        read_at = self._read_at.get((offsets.topic, offsets.partition))
        return offsets if read_at is None else msgspec.structs.replace(offsets, since=read_at)

    def lose(self, partition: TopicPartition, why: str) -> None:
        """Mark a partition as unavailable until its log offsets are read."""
        self.unavailable[Unit(None, *partition)] = log_reason(partition, why)

    def keep_unavailable(self, partitions: Collection[TopicPartition]) -> None:
        """No longer list those as unavailable that are not among these partitions: they are not read any more."""
        for unit in [unit for unit in self.unavailable if (unit.topic, unit.partition) not in partitions]:
            del self.unavailable[unit]

    def unread_since(self, request: protocol.ListOffsets, sent_at: int) -> Reasons:
        """Return the partitions of a request without a result that no later request has read."""
        return {
            Unit(None, *partition): log_reason(partition, LEADER_SILENT)
            for partition in request.partitions
            if sent_at >= self._read_at.get(partition, 0)
        }

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that no longer exists."""
        for by_partition in (self._read_at, self._last, self._live_until):
            by_partition.pop(partition, None)
        self._settled.clear()
        self.unavailable.pop(Unit(None, *partition), None)

    def _current(self, results: list[T], sent_at: int, leaders: Mapping[str, Mapping[int, int]]) -> Iterator[T]:
        """Yield the results about partitions that exist, and of which no later request has been answered.

        An end is never dated later than it was read, so that no commit is compared with an end older than it.
        """
        for result in results:
            read_at = self._read_at.get((result.topic, result.partition), 0)
            if sent_at >= read_at and result.partition in leaders.get(result.topic, {}):
                yield result
