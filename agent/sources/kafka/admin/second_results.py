"""kafka-python's results as messages of the protocol."""

import base64
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from kafka import errors

from agent.model.observations.kafka import Member, PartitionState
from agent.sources.kafka.admin import protocol

_NO_TOPIC_ID = UUID(int=0)


def raise_for(code: int, text: str | None) -> None:
    """Raise the error of an error code other than 0."""
    if code:
        raise errors.for_code(code)(text or "")


def read_failure(code: int, text: str | None) -> protocol.Failure:
    """Return an error code as a Failure."""
    return protocol.Failure(code, text or errors.for_code(code).__name__)


def failure_of(error: errors.KafkaError) -> protocol.Failure:
    """Return an error as a Failure; its code is -1 if it is not from a broker."""
    is_from_broker = isinstance(error, errors.BrokerResponseError) and not isinstance(
        error, errors.RequestTimedOutError
    )
    return protocol.Failure(error.errno if is_from_broker else -1, str(error) or type(error).__name__)


def read_streams_members(group: Any) -> list[Member]:
    """Return the members with the partitions that their active tasks read."""
    subtopologies = group.topology.subtopologies or () if group.topology is not None else ()
    topics = {
        subtopology.subtopology_id: [
            *subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)
        ]
        for subtopology in subtopologies
    }  # fmt: skip
    members = []
    for member in group.members:
        reads = sorted(
            ((topic, partition), f"{tasks.subtopology_id}_{partition}")
            for tasks in member.assignment.active_tasks
            for partition in tasks.partitions
            for topic in topics.get(tasks.subtopology_id, ())
        )
        members.append(
            Member(
                id=member.member_id,
                host=member.client_host,
                partitions=tuple(partition for partition, _ in reads),
                client_id=member.client_id,
                tasks=tuple(task for _, task in reads),
            )
        )
    return members


def read_members(group: Any) -> list[Member]:
    """Return the members of a group of the consumer protocol (KIP-848), or of a share group."""
    return [
        Member(
            id=member.member_id,
            host=member.client_host,
            partitions=tuple(
                sorted(
                    (topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                )
            ),
            client_id=member.client_id,
        )
        for member in group.members
    ]


def read_share_offsets(group: Any) -> protocol.ShareOffsets:
    """Return the start offsets and lags of a share group; partitions that it has not read yet are left out."""
    offsets, failures = [], []
    for topic in group.topics:
        for partition in topic.partitions:
            place = (topic.topic_name, partition.partition_index)
            if partition.error_code:
                failure = read_failure(partition.error_code, partition.error_message)
                failures.append(protocol.PartitionFailure(*place, failure))
            elif partition.start_offset >= 0:
                offsets.append(protocol.ShareOffset(*place, partition.start_offset, partition.lag))
    return protocol.ShareOffsets(offsets, failures)


def add_topic(described: dict[str, protocol.Topic | protocol.Failure], topic: Any, cluster: str, at: int) -> None:
    """Add a topic, or more of its partitions, from one page of a response."""
    if topic.error_code:
        described[topic.name] = read_failure(topic.error_code, None)
        return
    topic_id = None if topic.topic_id == _NO_TOPIC_ID else _base64(topic.topic_id)
    partitions = [
        PartitionState(
            at=at,
            cluster=cluster,
            topic=topic.name,
            partition=partition.partition_index,
            leader=partition.leader_id if partition.leader_id >= 0 else None,
            leader_epoch=partition.leader_epoch,
            replicas=tuple(partition.replica_nodes),
            isr=tuple(partition.isr_nodes),
            topic_id=topic_id,
            elr=None if partition.eligible_leader_replicas is None else tuple(partition.eligible_leader_replicas),
        )
        for partition in topic.partitions
    ]
    before = described.get(topic.name)
    earlier = before.partitions if isinstance(before, protocol.Topic) else []
    described[topic.name] = protocol.Topic(topic_id, [*earlier, *partitions])


def add_reassignments(
    topic: protocol.Topic | protocol.Failure, reassignments: Mapping[tuple[str, int], Any]
) -> protocol.Topic | protocol.Failure:
    """Return the topic with what a reassignment adds to and removes from its partitions."""
    if not reassignments or isinstance(topic, protocol.Failure):
        return topic
    states = []
    for state in topic.partitions:
        reassignment = reassignments.get((state.topic, state.partition))
        if reassignment is not None:
            adding, removing = tuple(reassignment.adding_replicas), tuple(reassignment.removing_replicas)
            state = msgspec.structs.replace(state, adding=adding, removing=removing)  # noqa: PLW2901
        states.append(state)
    return protocol.Topic(topic.id, states)


def _base64(topic_id: UUID) -> str:
    """Return a topic id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
