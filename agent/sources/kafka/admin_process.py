"""Child process that runs librdkafka's AdminClient: requests on standard input, results on standard output.

It is a separate process because librdkafka (seen with 2.16)
- aborts when a group's coordinator returns after a call to it has timed out (its issue 5397, open),
- crashes when a coordinator that no longer owns the group refuses to list offsets (it looks for a consumer it is not),
- never again contacts a coordinator that was missing from the metadata for a while,
- may hang when it is closed.
The source restarts this process when necessary, so nothing here retries or keeps state.
"""

import os
import queue
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, BinaryIO, TypeAlias

import msgspec
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Node,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec, TopicDescription

from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member, PartitionState
from agent.sources.availability import now_ms
from agent.sources.background import run_in_thread
from agent.sources.kafka import admin_protocol as protocol
from agent.sources.kafka.streams_assignment import UndecodableAssignmentError, decode_assignment

_MAX_TIMEOUT_SECONDS = 3_600
"""The longest request timeout that librdkafka takes: calls to coordinators must not time out in here (see above)."""

_METADATA_SECONDS = 3.0
"""Any broker can return metadata, so do not wait long for a frozen one: the client picks another next time."""

_DEFAULTS = {"client.id": "backflow", "reconnect.backoff.max.ms": "2000"}

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

_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID, from brokers before KIP-516."""

Outgoing: TypeAlias = queue.SimpleQueue[Callable[[], protocol.FromProcess]]
"""Messages for the writer thread to build and send."""

_Futures: TypeAlias = Mapping[Any, Future[Any]]


class _RequestHandler:
    """Calls the admin client for each request and queues the result."""

    def __init__(self, admin: AdminClient, cluster: str, timeout: int, outgoing: Outgoing) -> None:
        self._admin = admin
        self._cluster = cluster
        self._seconds = timeout / 1000
        self._metadata_seconds = min(self._seconds, _METADATA_SECONDS)
        self._outgoing = outgoing

    def handle(self, message: protocol.NumberedRequest) -> None:
        """Start the call; its response is queued when it completes."""
        try:
            self._start(message)
        except KafkaException as error:
            response = protocol.Response(message.number, now_ms(), _failure(error))
            self._outgoing.put(lambda: response)

    def _start(self, message: protocol.NumberedRequest) -> None:
        admin, cluster, number = self._admin, self._cluster, message.number
        match message.request:
            case protocol.ListGroups():
                listed = admin.list_consumer_groups(request_timeout=self._seconds)
                self._respond(number, lambda _: _groups(listed), listed)
            case protocol.FetchMetadata():
                metadata = run_in_thread("metadata", lambda: admin.list_topics(timeout=self._metadata_seconds))
                self._respond(number, lambda _: _metadata(metadata), metadata)
            case protocol.ListCommits(group):
                selection = [ConsumerGroupTopicPartitions(group)]
                committed = admin.list_consumer_group_offsets(
                    selection, require_stable=False, request_timeout=_MAX_TIMEOUT_SECONDS
                )
                self._respond(number, lambda at: _commits(committed[group], cluster, group, at), committed[group])
            case protocol.ListOffsets(partitions):
                selected = [TopicPartition(*partition) for partition in partitions]
                starts, ends = (
                    admin.list_offsets(dict.fromkeys(selected, spec), request_timeout=self._seconds)
                    for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
                )
                first_start, first_end = next(iter(starts.values())), next(iter(ends.values()))
                self._respond(
                    number, lambda _: _offsets(starts, ends, cluster, message.sent_at), first_start, first_end
                )
            case protocol.DescribeGroup(group):
                described = admin.describe_consumer_groups([group], request_timeout=_MAX_TIMEOUT_SECONDS)
                self._respond(number, lambda at: _group_state(described[group], cluster, group, at), described[group])
            case protocol.ListTasks(group):
                # Deprecated, but the only call that returns the user data of an assignment. It asks all brokers: one
                # that hangs makes it fail after the timeout.
                members = run_in_thread("tasks", lambda: admin.list_groups(group, timeout=self._seconds))
                self._respond(number, lambda _: _tasks(members), members)
            case protocol.DescribeTopics(names):
                topics = admin.describe_topics(TopicCollection(names), request_timeout=self._metadata_seconds)
                self._respond(number, lambda at: _topics(topics, cluster, at), next(iter(topics.values())))

    def _respond(self, number: int, read: Callable[[int], protocol.Result], *futures: Future[Any]) -> None:
        """Queue the response when these futures, one of each call to the client, are done. read: takes the time, ms."""
        first, *others = futures

        def done(_: Future[Any]) -> None:
            if others:
                others.pop().add_done_callback(done)
            else:
                at = now_ms()
                self._outgoing.put(lambda: _response(number, at, read))

        first.add_done_callback(done)


def _response(number: int, at: int, read: Callable[[int], protocol.Result]) -> protocol.Response:
    try:
        result = read(at)
    except KafkaException as error:
        result = _failure(error)
    return protocol.Response(number, at, result)


# --- librdkafka's results as messages; all raise KafkaException if there is no result at all


def _failure(error: KafkaException | KafkaError) -> protocol.Failure:
    kafka_error: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return protocol.Failure(kafka_error.code(), kafka_error.str())


def _result(future: Future[Any]) -> Any:
    return future.result(_COMPLETION_SECONDS)


def _groups(listed: Future[Any]) -> protocol.Groups:
    listing = _result(listed)
    return protocol.Groups([group.group_id for group in listing.valid], [_failure(error) for error in listing.errors])


def _metadata(fetched: Future[Any]) -> protocol.Metadata:
    metadata: ClusterMetadata = _result(fetched)
    topics = {
        name: None if topic.error is not None else {number: part.leader for number, part in topic.partitions.items()}
        for name, topic in metadata.topics.items()
    }
    return protocol.Metadata(sorted(metadata.brokers), topics)


def _commits(listed: Future[Any], cluster: str, group: str, at: int) -> protocol.Commits:
    commits, failures = [], []
    # TopicPartition.metadata must not be touched: it reads past its end (confluent-kafka 2.16.1).
    for committed in _result(listed).topic_partitions:
        topic, partition = committed.topic, committed.partition
        if committed.error is not None:
            failures.append(protocol.PartitionFailure(topic, partition, _failure(committed.error)))
        elif committed.offset >= 0:  # negative: none
            commits.append(
                Commit(
                    at=at,
                    cluster=cluster,
                    group=group,
                    topic=topic,
                    partition=partition,
                    offset=committed.offset,
                    leader_epoch=committed.leader_epoch,
                )
            )
    return protocol.Commits(commits, failures)


def _offsets(starts: _Futures, ends: _Futures, cluster: str, at: int) -> protocol.Offsets:
    logs, failures = [], []
    for (place, start), end in zip(starts.items(), ends.values(), strict=True):
        topic, partition = place.topic, place.partition
        try:
            log_start, log_end = _result(start).offset, _result(end).offset
        except KafkaException as error:
            failures.append(protocol.PartitionFailure(topic, partition, _failure(error)))
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


def _group_state(described: Future[Any], cluster: str, group: str, at: int) -> GroupState:
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


def _tasks(listed: Future[Any]) -> protocol.Tasks:
    assignments, undecodable = {}, None
    for member in (member for group in _result(listed) for member in group.members):
        try:
            assignments[member.id] = decode_assignment(member.assignment)
        except UndecodableAssignmentError as error:
            undecodable = str(error)
    return protocol.Tasks(assignments, undecodable)


def _topics(described: _Futures, cluster: str, at: int) -> protocol.Topics:
    topics: dict[str, protocol.Topic | protocol.Failure] = {}
    for name, future in described.items():
        try:
            topics[name] = _topic(_result(future), cluster, name, at)
        except KafkaException as error:
            topics[name] = _failure(error)
    return protocol.Topics(topics)


def _topic(description: TopicDescription, cluster: str, name: str, at: int) -> protocol.Topic:
    topic_id = None if str(description.topic_id) == _NO_TOPIC_ID else str(description.topic_id)
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


def _leader(partition: TopicPartitionInfo) -> int | None:
    leader: Node | None = partition.leader  # annotated as never None, but None without a leader
    return None if leader is None or leader.id < 0 else leader.id


# --- the process


class _LogForwarder:
    """Passes librdkafka's log on; takes the place of a `logging.Logger`."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing

    def log(self, level: int, text: str, *values: object) -> None:
        """Queue a log line."""
        line = protocol.ClientLog(level, text % values)
        self._outgoing.put(lambda: line)


def main() -> None:
    """Handle requests until standard input ends.

    Signals to the daemon's process group are ignored: the daemon acts on them.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _exit_on_defect
    warnings.filterwarnings("ignore", r"list_groups\(\) is deprecated", DeprecationWarning)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # librdkafka's crashes are known: no core dumps of them
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    setup = protocol.receive(requests, msgspec.msgpack.Decoder(protocol.Setup))
    if setup is None:
        return
    outgoing: Outgoing = queue.SimpleQueue()

    def report(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  librdkafka's own codes are named like this
            text = error.str()
            outgoing.put(lambda: protocol.ClientError(text))

    try:
        properties: dict[str, Any] = {**_DEFAULTS, **setup.properties, "error_cb": report}
        admin = AdminClient(properties, logger=_LogForwarder(outgoing))
    except KafkaException as error:
        protocol.send(
            responses, protocol.ClientError(f"the Kafka client rejects its properties: {_failure(error).text}")
        )
        return
    threading.Thread(target=_write, args=(responses, outgoing), daemon=True).start()
    threading.Thread(target=_poll, args=(admin,), daemon=True).start()
    handler = _RequestHandler(admin, setup.cluster, setup.timeout, outgoing)
    decoder = msgspec.msgpack.Decoder(protocol.NumberedRequest)
    while (request := protocol.receive(requests, decoder)) is not None:
        handler.handle(request)
    os._exit(0)  # closing the client may hang


def _exit_on_defect(failed: threading.ExceptHookArgs) -> None:
    """End the process when a thread fails, so that the source notices and restarts it."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(1)


def _write(responses: BinaryIO, outgoing: Outgoing) -> None:
    while True:
        protocol.send(responses, outgoing.get()())


def _poll(admin: AdminClient) -> None:
    """Serve the client's callbacks: logs and errors."""
    while True:
        admin.poll(1)


if __name__ == "__main__":
    main()
