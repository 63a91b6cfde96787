"""Describes topics with kafka-python: with leader epochs, eligible leader replicas (KIP-966) and reassignments."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.protocol.admin import DescribeTopicPartitionsRequest, ListPartitionReassignmentsRequest

from agent.sources.availability import now_ms
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest, complete_again_at

_PARTITIONS_PER_RESPONSE = 2_000


class TopicDescriptions:
    """Reads descriptions of topics; pages that equal those read last are not decoded."""

    def __init__(
        self,
        cluster: str,
        timeout: int,
        start: Callable[[Any], Any],
        send: Callable[..., Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """timeout: ms. start: starts a coroutine. send: one that sends a request. clock: returns monotonic time, s."""
        self._cluster = cluster
        self._timeout = timeout
        self._start = start
        self._send = send
        self._clock = clock
        self._cursors: dict[bytes, Any] = {}
        self._last: tuple[Any, ...] = ()
        self._complete_at = 0.0

    async def read(self, topics: list[str]) -> protocol.Topics | protocol.Unchanged:
        """Return the descriptions, or that none has changed since the last time. Raises KafkaError."""
        last, self._last = self._last, ()  # forgotten if the call fails
        reassigning = self._start(self._send(ListPartitionReassignmentsRequest(timeout_ms=self._timeout, topics=None)))
        pages: list[LazyResponse] = []
        cursor, cursors = None, {}
        while not pages or cursor is not None:
            page = await self._send(RepeatedRequest(_request(topics, cursor)))
            cursor = self._cursors[page.body] if page.body in self._cursors else page.decode().next_cursor
            cursors[page.body] = cursor
            pages.append(page)
        self._cursors = cursors
        try:
            reassignments, failure = _read_reassignments(await reassigning), None
        except errors.BrokerResponseError as error:
            reassignments, failure = {}, results.failure_of(error)
        self._last = (topics, list(cursors), reassignments, failure)
        if self._last == last and self._clock() < self._complete_at:
            return protocol.Unchanged()
        described = self._describe(pages, reassignments)
        is_whole = not any(isinstance(topic, protocol.Failure) for topic in described.values())
        self._complete_at = complete_again_at(self._clock()) if is_whole else 0
        return protocol.Topics(described, failure)

    def _describe(
        self, pages: list[LazyResponse], reassignments: Mapping[protocol.TopicPartition, Any]
    ) -> dict[str, protocol.Topic | protocol.Failure]:
        described: dict[str, protocol.Topic | protocol.Failure] = {}
        at = now_ms()
        for page in pages:
            for topic in page.decode().topics:
                results.add_topic(described, topic, self._cluster, at)
        return {name: results.add_reassignments(topic, reassignments) for name, topic in described.items()}


def _request(topics: list[str], cursor: Any) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=topic) for topic in topics],
        response_partition_limit=_PARTITIONS_PER_RESPONSE,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequest.Cursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index
        ),
    )


def _read_reassignments(response: Any) -> dict[protocol.TopicPartition, Any]:
    results.raise_for(response.error_code, response.error_message)
    return {
        (topic.name, partition.partition_index): partition
        for topic in response.topics
        for partition in topic.partitions
    }
