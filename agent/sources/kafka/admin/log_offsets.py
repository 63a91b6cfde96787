"""Lists the start, end and last stable offsets of many logs with kafka-python.

A request is encoded once, a response decoded only if it differs from the last one, and of a decoded response only the
partitions are sent on that have changed. Last stable offsets are not decoded if they are the log ends.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest

from agent.model.observations.kafka import LastStableOffset, LogOffsets
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_VERSION = 2
"""Of ListOffsets: all brokers from 0.11 to 4.x know it, and its responses begin with the throttle time."""

_EARLIEST, _LATEST = -2, -1
"""Instead of a timestamp: the log start, and the log end."""

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1

_LEADER_NOT_AVAILABLE = 5

_FORGOTTEN_S = 60.0
"""After how long a batch is forgotten that is no longer asked for: its partitions have another leader, or are gone."""


class LogOffsetBatches:
    """Reads log offsets. An error of one partition is an error of the whole request."""

    def __init__(
        self,
        cluster: str,
        start: Callable[[Any], Any],
        send: Callable[..., Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """start: starts a coroutine. send: one that sends a request to a broker. clock: returns monotonic time, s."""
        self._cluster = cluster
        self._start = start
        self._send = send
        self._clock = clock
        self._batches: dict[tuple[int, TopicPartition], _Batch] = {}

    async def read(self, request: protocol.ListOffsets, sent_at: int) -> protocol.Offsets:
        """Return log offsets as of `sent_at`, ms: those that have changed, or all. Raises KafkaError."""
        batch = self._batch_of(request)
        batch.asked_at, batch.is_answered = self._clock(), False
        calls = [self._start(self._send(side.request, request.leader)) for side in (batch.starts, batch.ends)]
        starts, ends = [await call for call in calls]
        places = batch.update(starts, ends, complete=request.complete)
        batch.is_answered = True
        return protocol.Offsets(
            [
                LogOffsets(
                    at=sent_at,
                    cluster=self._cluster,
                    topic=place[0],
                    partition=place[1],
                    log_start=batch.starts.offsets[place],
                    log_end=batch.ends.offsets[place],
                )
                for place in places
            ],
            [],
        )

    async def read_stable(self, request: protocol.ListStableOffsets, sent_at: int) -> protocol.StableOffsets:
        """Return last stable offsets as of `sent_at`, ms, or that they are the log ends. Raises KafkaError.

        Why one is missing, the log offsets show as well.
        """
        batch = self._last_batch_of(request)
        repeated = (
            RepeatedRequest(_request(request.partitions, _LATEST, _READ_COMMITTED)) if batch is None else batch.stable
        )
        response = await self._send(repeated, request.leader)
        if batch is not None and batch.is_answered and batch.ends.is_answered_by(response):
            return protocol.StableOffsets([], at_end=True)
        return protocol.StableOffsets(
            [
                LastStableOffset(
                    at=sent_at,
                    cluster=self._cluster,
                    topic=topic.name,
                    partition=partition.partition_index,
                    offset=partition.offset,
                )
                for topic in response.decode().topics
                for partition in topic.partitions
                if not partition.error_code and partition.offset >= 0
            ]
        )

    def _batch_of(self, request: protocol.ListOffsets) -> "_Batch":
        """Return the batch of these partitions if it is what last showed all of them; a new one otherwise."""
        batch = self._last_batch_of(request)
        if batch is not None:
            return batch
        oldest = self._clock() - _FORGOTTEN_S
        self._batches = {
            other: batch
            for other, batch in self._batches.items()
            if batch.asked_at >= oldest and batch.places.isdisjoint(request.partitions)
        }
        batch = self._batches[request.leader, request.partitions[0]] = _Batch(request.partitions)
        return batch

    def _last_batch_of(self, request: protocol.ListOffsets | protocol.ListStableOffsets) -> "_Batch | None":
        """Return the batch that last showed all partitions of the request, None if there is none."""
        batch = self._batches.get((request.leader, request.partitions[0]))
        is_same = batch is not None and batch.is_answered and batch.partitions == request.partitions
        return batch if is_same else None


class _Batch:
    """Partitions that are asked for together. asked_at: when they were last, s of the monotonic clock.

    is_answered: whether their leader answered then. stable: asks for their last stable offsets.
    """

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = partitions
        self.places = frozenset(partitions)
        self.starts, self.ends = _Side(partitions, _EARLIEST), _Side(partitions, _LATEST)
        self.stable = RepeatedRequest(_request(partitions, _LATEST, _READ_COMMITTED))
        self.is_answered = False
        self.asked_at = 0.0

    def update(self, starts: LazyResponse, ends: LazyResponse, *, complete: bool) -> list[TopicPartition]:
        """Take responses in; return the partitions that have changed, or all."""
        changed = self.starts.update(starts) | self.ends.update(ends)
        return list(self.partitions) if complete else sorted(changed)


class _Side:
    """One of the two offsets of partitions, as their leader last responded."""

    def __init__(self, partitions: Sequence[TopicPartition], timestamp: int) -> None:
        self.request = RepeatedRequest(_request(partitions, timestamp))
        self.offsets: Mapping[TopicPartition, int] = {}
        self._body = b""

    def is_answered_by(self, response: LazyResponse) -> bool:
        """Return whether a response says the same of all partitions as the last one."""
        return response.body == self._body

    def update(self, response: LazyResponse) -> set[TopicPartition]:
        """Take a response in; return the partitions that have changed."""
        if self.is_answered_by(response):
            return set()
        offsets = {}
        for topic in response.decode().topics:
            for partition in topic.partitions:
                is_unknown = not partition.error_code and partition.offset < 0
                results.raise_for(_LEADER_NOT_AVAILABLE if is_unknown else partition.error_code, None)
                offsets[topic.name, partition.partition_index] = partition.offset
        changed = {place for place, offset in offsets.items() if self.offsets.get(place) != offset}
        self._body, self.offsets = response.body, offsets
        return changed


def _request(
    partitions: Sequence[TopicPartition], timestamp: int, isolation_level: int = _READ_UNCOMMITTED
) -> ListOffsetsRequest:
    selection = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, partition in partitions:
        selected = selection.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        by_topic.setdefault(topic, []).append(selected)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[selection(name=topic, partitions=selected) for topic, selected in by_topic.items()],
        min_version=_VERSION,
        max_version=_VERSION,
    )
