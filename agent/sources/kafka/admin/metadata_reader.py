"""Reads brokers, topics and leaders with kafka-python. A response known to say the same is not decoded."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_MANY = 100
"""How many different responses that say the same are remembered."""


class _Known(NamedTuple):
    """The last metadata, and the fingerprints of responses that say so."""

    metadata: protocol.Metadata
    fingerprints: frozenset[int]


class MetadataReader:
    """Brokers need not list topics in the same order, so that several responses may say the same."""

    def __init__(self, send: Callable[..., Any]) -> None:
        """send: a coroutine that sends a request to any broker."""
        self._send = send
        self._known: _Known | None = None

    async def read(self) -> protocol.Metadata | protocol.Unchanged:
        """Return the metadata unless it is the same as at the last time. Raises KafkaError."""
        request = RepeatedRequest(MetadataRequest(topics=MetadataRequest.ALL_TOPICS, min_version=3))
        known, self._known = self._known, None  # forgotten if the call fails
        response: LazyResponse = await self._send(request)
        fingerprint = hash(response.body)
        if known is not None and fingerprint in known.fingerprints:
            self._known = known
            return protocol.Unchanged()
        metadata = _read(response.decode())
        if known is not None and known.metadata == metadata and len(known.fingerprints) < _MANY:
            self._known = _Known(metadata, known.fingerprints | {fingerprint})
            return protocol.Unchanged()
        self._known = _Known(metadata, frozenset({fingerprint}))
        return metadata


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
