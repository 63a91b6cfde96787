"""Reads brokers, topics and leaders with kafka-python. A response known to say the same is not decoded."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_MANY = 100
"""How many different responses that say the same are remembered."""


class _Known(NamedTuple):
    """The last metadata. states: of responses that say so, by their fingerprints, see `MetadataReader`."""

    metadata: protocol.Metadata
    states: dict[int, int]


class MetadataReader:
    """Brokers need not list topics in the same order, so that several responses may say the same.

    states: stands for what the last response says of all partitions, with topic ids, replicas and ISR; None if there is
    none.
    """

    def __init__(self, send: Callable[..., Any]) -> None:
        """send: a coroutine that sends a request to any broker."""
        self.states: int | None = None
        self._send = send
        self._known: _Known | None = None

    async def read(self) -> protocol.Metadata | protocol.Unchanged:
        """Return the metadata unless it is the same as at the last time. Raises KafkaError."""
        request = RepeatedRequest(MetadataRequest(topics=MetadataRequest.ALL_TOPICS, min_version=3))
        known, self._known, self.states = self._known, None, None  # forgotten if the call fails
        response: LazyResponse = await self._send(request)
        fingerprint = hash(response.body)
        if known is not None and fingerprint in known.states:
            self._known, self.states = known, known.states[fingerprint]
            return protocol.Unchanged()
        decoded = response.decode()
        metadata, self.states = _read(decoded), _states(decoded)
        if known is not None and known.metadata == metadata and len(known.states) < _MANY:
            self._known = _Known(metadata, {**known.states, fingerprint: self.states})
            return protocol.Unchanged()
        self._known = _Known(metadata, {fingerprint: self.states})
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


def _states(response: Any) -> int:
    return hash(
        frozenset(
            (
                topic.name,
                topic.topic_id,
                topic.error_code,
                partition.partition_index,
                partition.error_code,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
            )
            for topic in response.topics
            for partition in topic.partitions
        )
    )
