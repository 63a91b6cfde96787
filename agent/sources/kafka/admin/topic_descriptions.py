"""Describes topics with kafka-python: with leader epochs, eligible leader replicas (KIP-966) and reassignments."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.protocol.admin import DescribeTopicPartitionsRequest, ListPartitionReassignmentsRequest

from agent.clock import now_ms
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_PARTITIONS_PER_RESPONSE = 2_000

_REST_S = 10.0
"""How often topics are described whose partitions have the same state in the metadata for so long.

With many partitions, that takes several requests a poll. What only a description shows, such as eligible leader
replicas, follows from changes of leaders, replicas and ISR. Right after these, another broker may not know of them yet.
"""


class TopicDescriptions:
    """Reads descriptions of topics; pages that equal those read last are not decoded."""

    def __init__(
        self,
        cluster: str,
        timeout: int,
        start: Callable[[Any], Any],
        send: Callable[..., Any],
        read_states: Callable[[], int | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """timeout: ms. start: starts a coroutine. send: one that sends a request. clock: returns monotonic time, s.

        read_states: returns what stands for the states of all partitions in the metadata as just read, or None.
        """
        self._cluster = cluster
        self._timeout = timeout
        self._start = start
        self._send = send
        self._read_states = read_states
        self._clock = clock
        self._cursors: dict[bytes, Any] = {}
        self._last: tuple[Any, ...] = ()
        self._read_at = self._changed_at = 0.0
        self._is_whole = False
        self._states: int | None = None

    async def read(self, topics: list[str]) -> protocol.Topics | protocol.Unchanged:
        """Return the descriptions, or that none has changed since the last time. Raises KafkaError."""
        now, states = self._clock(), self._read_states()
        if states is None or states != self._states:
            self._states, self._changed_at = states, now
        if self._is_at_rest(topics, now):
            return protocol.Unchanged()
        self._read_at = now
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
        if self._last == last and self._is_whole:
            return protocol.Unchanged()
        if self._last != last:
            self._changed_at = self._read_at
        described = self._describe(pages, reassignments)
        self._is_whole = not any(isinstance(topic, protocol.Failure) for topic in described.values())
        return protocol.Topics(described, failure)

    def _is_at_rest(self, topics: list[str], now: float) -> bool:
        """Return whether the last descriptions of the topics hold, as the metadata has said the same for long."""
        rests = self._changed_at + _REST_S <= now < self._read_at + _REST_S
        return rests and self._is_whole and self._last[:1] == (topics,)

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
