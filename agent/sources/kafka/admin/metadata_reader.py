"""Reads brokers, topics and leaders with kafka-python. A response known to say the same is not decoded."""

from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_MANY = 100
"""How many different responses that say the same are remembered."""


class MetadataReader:
    """Brokers need not list topics in the same order, so that several responses may say the same."""

    def __init__(self, send: Callable[..., Any]) -> None:
        """send: a coroutine that sends a request to any broker."""
        self._send = send
        self._last: protocol.Metadata | None = None
        self._same: set[int] = set()

    async def read(self) -> protocol.Metadata | protocol.Unchanged:
        """Return the metadata unless it is the same as at the last time. Raises KafkaError."""
        request = RepeatedRequest(MetadataRequest(topics=MetadataRequest.ALL_TOPICS, min_version=3))
        response: LazyResponse = await self._send(request)
        fingerprint = hash(response.body)
        if fingerprint in self._same:
            return protocol.Unchanged()
        metadata = _read(response.decode())
        if metadata != self._last or len(self._same) == _MANY:
            self._last, self._same = metadata, {fingerprint}
            return metadata
        self._same.add(fingerprint)
        return protocol.Unchanged()


def _read(response: Any) -> protocol.Metadata:
    return protocol.Metadata(
        sorted(broker.node_id for broker in response.brokers),
        {
            topic.name: None
            if topic.error_code
            else {partition.partition_index: partition.leader_id for partition in topic.partitions}
            for topic in response.topics
        },
    )
