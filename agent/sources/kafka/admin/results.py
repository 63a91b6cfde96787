"""librdkafka's results as messages of the protocol. All functions raise KafkaException if there is no result at all."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Node, TopicPartitionInfo
from confluent_kafka.admin import ClusterMetadata, ConfigEntry, TopicDescription

from agent.model.observations.kafka import (
    GroupState,
    LastStableOffset,
    LogOffsets,
    Member,
    PartitionState,
    TopicSettings,
)
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.streams_assignment import UndecodableAssignmentError, decode_assignment

_COMPLETION_SECONDS = 5
"""The client completes all futures of a request together: when the first is done, the others are about to be."""

_STATES = {
    "UNKNOWN": "Unknown",
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
"""The client's names of group states -> Kafka's."""

_TYPES = {"CLASSIC": "classic", "CONSUMER": "consumer"}
"""The client's names of group types -> Kafka's."""

_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID, from brokers before KIP-516."""

Futures: TypeAlias = Mapping[Any, Future[Any]]


def read_failure(error: KafkaException | KafkaError) -> protocol.Failure:
    """Return an error as a Failure."""
    kafka_error: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return protocol.Failure(kafka_error.code(), kafka_error.str())


def _result(future: Future[Any]) -> Any:
    return future.result(_COMPLETION_SECONDS)


def read_groups(listed: Future[Any]) -> protocol.Groups:
    """Return the listed groups."""
    listing = _result(listed)
    types = {group.group_id: _TYPES.get(group.type.name) for group in listing.valid}
    return protocol.Groups(types, [read_failure(error) for error in listing.errors])


def read_metadata(metadata: ClusterMetadata) -> protocol.Metadata:
    """Return the brokers, and the leaders of all partitions."""
    topics = {
        name: None if topic.error is not None else {number: part.leader for number, part in topic.partitions.items()}
        for name, topic in metadata.topics.items()
    }
    return protocol.Metadata(sorted(metadata.brokers), topics)


def read_commits(listed: Future[Any], cluster: str, group: str, at: int) -> protocol.Commits:
    """Return the committed offsets of a group."""
    offsets: dict[str, list[int]] = {}
    failures = []
    # TopicPartition.metadata must not be touched: it reads past its end (confluent-kafka 2.16.1).
    for committed in _result(listed).topic_partitions:
        topic, partition = committed.topic, committed.partition
        if committed.error is not None:
            failures.append(protocol.PartitionFailure(topic, partition, read_failure(committed.error)))
        elif committed.offset >= 0:  # negative: none
            epoch = -1 if committed.leader_epoch is None else committed.leader_epoch
            offsets.setdefault(topic, []).extend((partition, committed.offset, epoch))
    return protocol.Commits(cluster, group, at, offsets, failures)


def read_offsets(starts: Futures, ends: Futures, cluster: str, at: int) -> protocol.Offsets:
    """Return the log start and end offsets of partitions as of `at`, ms."""
    logs, failures = [], []
    for (place, start), end in zip(starts.items(), ends.values(), strict=True):
        topic, partition = place.topic, place.partition
        try:
            log_start, log_end = _result(start).offset, _result(end).offset
        except KafkaException as error:
            failures.append(protocol.PartitionFailure(topic, partition, read_failure(error)))
            continue
        if min(log_start, log_end) < 0:  # -1001 if the leader is away (seen from 0.11 to 4.1, without an error)
            failures.append(protocol.PartitionFailure(topic, partition, None))
        else:
            logs.append(
                LogOffsets(
                    at=at, cluster=cluster, topic=topic, partition=partition, log_start=log_start, log_end=log_end
                )
            )
    return protocol.Offsets(logs, failures)


def read_group_state(described: Future[Any], cluster: str, group: str, at: int) -> GroupState:
    """Return the state of a group."""
    try:
        description = _result(described)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:  # as brokers from 4.0 on call a dead group
            raise
        return GroupState(at=at, cluster=cluster, group=group, state="Dead")
    members = [
        Member(
            id=member.member_id,
            host=member.host,
            partitions=tuple(sorted((place.topic, place.partition) for place in member.assignment.topic_partitions)),
            client_id=member.client_id,
        )
        for member in description.members
    ]
    state = description.state.name
    return GroupState(
        at=at,
        cluster=cluster,
        group=group,
        state=_STATES.get(state, state),
        members=tuple(sorted(members, key=lambda member: member.id)),
        simple=description.is_simple_consumer_group,
        assignor=description.partition_assignor or None,
    )


def read_tasks(listed: Future[Any]) -> protocol.Tasks:
    """Return the active tasks of the members of a Kafka Streams application."""
    assignments, undecodable = {}, None
    for member in (member for group in _result(listed) for member in group.members):
        try:
            assignments[member.id] = decode_assignment(member.assignment)
        except UndecodableAssignmentError as error:
            undecodable = str(error)
    return protocol.Tasks(assignments, undecodable)


def read_topics(described: Futures, cluster: str, at: int) -> protocol.Topics:
    """Return the descriptions of topics."""
    topics: dict[str, protocol.Topic | protocol.Failure] = {}
    for name, future in described.items():
        try:
            topics[name] = _topic(_result(future), cluster, name, at)
        except KafkaException as error:
            topics[name] = read_failure(error)
    return protocol.Topics(topics)


def _topic(description: TopicDescription, cluster: str, name: str, at: int) -> protocol.Topic:
    topic_id = None if str(description.topic_id) == _NO_TOPIC_ID else _url_safe(str(description.topic_id))
    partitions = [
        PartitionState(
            at=at,
            cluster=cluster,
            topic=name,
            partition=partition.id,
            leader=_leader(partition),
            replicas=tuple(node.id for node in partition.replicas),
            isr=tuple(node.id for node in partition.isr),
            topic_id=topic_id,
        )
        for partition in description.partitions
    ]
    return protocol.Topic(topic_id, partitions)


def _url_safe(topic_id: str) -> str:
    """Return a topic id as Kafka's tools print it and ZooKeeper holds it; librdkafka's base64 is the other one."""
    return topic_id.replace("+", "-").replace("/", "_")


def _leader(partition: TopicPartitionInfo) -> int | None:
    leader: Node | None = partition.leader  # annotated as never None, but None without a leader
    return None if leader is None or leader.id < 0 else leader.id


def read_topic_checks(described: Futures) -> protocol.TopicChecks:
    """Return which topics exist and may be described."""
    failures: dict[str, protocol.Failure | None] = {}
    for name, future in described.items():
        try:
            _result(future)
            failures[name] = None
        except KafkaException as error:
            failures[name] = read_failure(error)
    return protocol.TopicChecks(failures)


def read_group_check(described: Future[Any]) -> protocol.GroupCheck:
    """Return that a group may be described."""
    try:
        _result(described)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise
    return protocol.GroupCheck()


def read_operations(described: Future[Any]) -> protocol.Operations:
    """Return the operations on a topic that our credentials permit."""
    operations = _result(described).authorized_operations or []
    return protocol.Operations(sorted(operation.name for operation in operations))


def read_stable_offsets(ends: Futures, cluster: str, at: int) -> protocol.StableOffsets:
    """Return the last stable offsets of partitions as of `at`, ms; why one is missing, the log offsets show as well."""
    offsets = []
    for place, future in ends.items():
        try:
            offset = _result(future).offset
        except KafkaException:
            continue
        if offset >= 0:
            offsets.append(
                LastStableOffset(at=at, cluster=cluster, topic=place.topic, partition=place.partition, offset=offset)
            )
    return protocol.StableOffsets(offsets)


def read_broker_settings(described: Future[Any]) -> protocol.BrokerSettings:
    """Return the settings of a broker."""
    entries = _result(described)
    return protocol.BrokerSettings(
        offsets_retention_ms=int(_setting(entries, "offsets.retention.minutes")) * 60_000,
        transaction_max_timeout_ms=int(_setting(entries, "transaction.max.timeout.ms")),
        protocol_version=entries["inter.broker.protocol.version"].value
        if "inter.broker.protocol.version" in entries
        else None,
    )


def read_topic_settings(described: Futures, cluster: str, at: int) -> protocol.Settings:
    """Return the settings of topics."""
    topics: dict[str, TopicSettings | protocol.Failure] = {}
    for resource, future in described.items():
        try:
            entries = _result(future)
            topics[resource.name] = TopicSettings(
                at=at,
                cluster=cluster,
                topic=resource.name,
                cleanup_policy=_setting(entries, "cleanup.policy"),
                retention_ms=int(_setting(entries, "retention.ms")),
                retention_bytes=int(_setting(entries, "retention.bytes")),
            )
        except KafkaException as error:
            topics[resource.name] = read_failure(error)
    return protocol.Settings(topics)


def _setting(entries: Mapping[str, ConfigEntry], name: str) -> str:
    """Return the value of a setting. Raises KafkaException if the broker leaves it out: not each one has all."""
    if name not in entries or entries[name].value is None:
        raise KafkaException(KafkaError(protocol.UNSUPPORTED, f"the broker does not list its setting {name}"))
    return str(entries[name].value)
