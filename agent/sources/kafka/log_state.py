"""Log offsets of partitions: which results are current, and which partitions have none. Makes no calls."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from agent.model.observations.kafka import LogOffsets
from agent.sources.availability import Reasons, Unit
from agent.sources.kafka import admin_protocol as protocol
from agent.sources.kafka.admin_protocol import TopicPartition
from agent.sources.kafka.reasons import LEADER_SILENT, log_reason

T = TypeVar("T", LogOffsets, protocol.PartitionFailure)


class LogState:
    """When log offsets were last read.

    unavailable: partitions whose log offsets cannot be read, and why.
    """

    def __init__(self) -> None:
        self.unavailable: Reasons = {}
        self._read_at: dict[TopicPartition, int] = {}

    def apply(
        self,
        result: protocol.Offsets,
        sent_at: int,
        leaders: Mapping[str, Mapping[int, int]],
        explain: Callable[[protocol.PartitionFailure], str],
    ) -> tuple[list[LogOffsets], list[protocol.PartitionFailure]]:
        """Update with log offsets as of when they were requested; return those that are current, and the failures.

        leaders: of the partitions that exist. explain: returns a failure in words.
        """
        logs = list(self._current(result.logs, sent_at, leaders))
        for offsets in logs:
            self._read_at[offsets.topic, offsets.partition] = sent_at
            self.unavailable.pop(Unit(None, offsets.topic, offsets.partition), None)
        failures = list(self._current(result.failures, sent_at, leaders))
        for failed in failures:
            self.lose((failed.topic, failed.partition), explain(failed))
        return logs, failures

    def lose(self, partition: TopicPartition, why: str) -> None:
        """Mark a partition as unavailable until its log offsets are read."""
        self.unavailable[Unit(None, *partition)] = log_reason(partition, why)

    def unread_since(self, request: protocol.ListOffsets, sent_at: int) -> Reasons:
        """Return the partitions of a request without a result that no later request has read."""
        return {
            Unit(None, *partition): log_reason(partition, LEADER_SILENT)
            for partition in request.partitions
            if sent_at >= self._read_at.get(partition, 0)
        }

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that no longer exists."""
        self._read_at.pop(partition, None)
        self.unavailable.pop(Unit(None, *partition), None)

    def _current(self, results: list[T], sent_at: int, leaders: Mapping[str, Mapping[int, int]]) -> Iterator[T]:
        """Yield the results about partitions that exist, and of which no later request has been answered.

        An end is never dated later than it was read, so that no commit is compared with an end older than it.
        """
        for result in results:
            read_at = self._read_at.get((result.topic, result.partition), 0)
            if sent_at >= read_at and result.partition in leaders.get(result.topic, {}):
                yield result
