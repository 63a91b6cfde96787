"""What librdkafka's results say, as answers to the source. Which calls they come from: kafka_client.

All raise KafkaException where there is no result at all.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Node, TopicPartitionInfo
from confluent_kafka.admin import ClusterMetadata, TopicDescription

from agent.model.observations import Member
from agent.sources.kafka import admin_protocol as wire
from agent.sources.streams.assignment import UndecodableAssignmentError, decode

Futures: TypeAlias = Mapping[Any, Future[Any]]
"""The futures of one request."""

_SAME_GO_SECONDS = 5
"""The client sets all futures of a request in one go: when the first is done, the others are about to be."""

_STATES = {
    "UNKNOWN": "Unknown",
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
"""The client's names of states -> Kafka's."""

_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID, from brokers before KIP-516."""


def failure(error: KafkaException | KafkaError) -> wire.Failure:
    """What the client says went wrong."""
    kafka_error: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return wire.Failure(kafka_error.code(), kafka_error.str())


def _result(future: Future[Any]) -> Any:
    return future.result(_SAME_GO_SECONDS)


def groups(futures: Futures) -> wire.Groups:
    """The groups listed."""
    listed = _result(futures[""])
    return wire.Groups([one.group_id for one in listed.valid], [failure(one) for one in listed.errors])


def metadata(futures: Futures) -> wire.Metadata:
    """Brokers, topics and leaders."""
    told: ClusterMetadata = _result(futures[""])
    return wire.Metadata(
        sorted(told.brokers),
        {
            name: {number: one.leader for number, one in topic.partitions.items()} if topic.error is None else None
            for name, topic in told.topics.items()
        },
    )


def commits(futures: Futures) -> wire.Commits:
    """One group's committed offsets."""
    (future,) = futures.values()
    return wire.Commits(
        [
            # TopicPartition.metadata must not be touched: it reads past its end (confluent-kafka 2.16.1).
            wire.CommittedOffset(
                one.topic,
                one.partition,
                one.offset,
                one.leader_epoch,
                None if one.error is None else failure(one.error),
            )
            for one in _result(future).topic_partitions
        ]
    )


def offsets(starts: Futures, ends: Futures) -> wire.Offsets:
    """Log starts and ends, each with its own failure."""
    ranges = []
    for (place, start), end in zip(starts.items(), ends.values(), strict=True):
        try:
            found = wire.LogRange(place.topic, place.partition, _result(start).offset, _result(end).offset, None)
        except KafkaException as error:
            found = wire.LogRange(place.topic, place.partition, -1, -1, failure(error))
        ranges.append(found)
    return wire.Offsets(ranges)


def group(futures: Futures) -> wire.Group:
    """One group's state and members."""
    (future,) = futures.values()
    try:
        described = _result(future)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:  # as brokers from 4.0 on call a dead group
            raise
        return wire.Group("Dead", simple=None, members=[])
    members = [
        Member(
            id=one.member_id,
            host=one.host,
            partitions=tuple(sorted((place.topic, place.partition) for place in one.assignment.topic_partitions)),
            client_id=one.client_id,
        )
        for one in sorted(described.members, key=lambda one: one.member_id)
    ]
    state = described.state.name
    assignor = described.partition_assignor or None
    return wire.Group(_STATES.get(state, state), described.is_simple_consumer_group, members, assignor)


def tasks(futures: Futures) -> wire.Tasks:
    """The assignments of one group's members, from the bytes that its leader wrote."""
    assignments, undecodable = {}, None
    for member in (one for described in _result(futures[""]) for one in described.members):
        try:
            assignments[member.id] = decode(member.assignment)
        except UndecodableAssignmentError as error:
            undecodable = str(error)
    return wire.Tasks(assignments, undecodable)


def topics(futures: Futures) -> wire.Topics:
    """Topics described, each with its own failure."""
    told: dict[str, wire.Topic | wire.Failure] = {}
    for name, future in futures.items():
        try:
            told[name] = _topic(_result(future))
        except KafkaException as error:
            told[name] = failure(error)
    return wire.Topics(told)


def _topic(described: TopicDescription) -> wire.Topic:
    topic_id = str(described.topic_id)
    return wire.Topic(
        None if topic_id == _NO_TOPIC_ID else topic_id,
        [
            wire.Partition(one.id, _leader(one), [node.id for node in one.replicas], [node.id for node in one.isr])
            for one in described.partitions
        ],
    )


def _leader(partition: TopicPartitionInfo) -> int | None:
    leader: Node | None = partition.leader  # annotated as always there, but None where nobody leads
    return None if leader is None or leader.id < 0 else leader.id
