"""Child process that runs Kafka's admin clients: requests on standard input, results on standard output.

librdkafka sends most requests, kafka-python those that librdkafka does not offer, and those about many groups or
partitions. It is a separate process because
librdkafka (seen with 2.16)
- aborts when a group's coordinator returns after a call to it has timed out (its issue 5397, open),
- crashes when a coordinator that no longer owns the group refuses to list offsets (it looks for a consumer it is not),
- never again contacts a coordinator that was missing from the metadata for a while,
- may hang when it is closed.
The source restarts this process when necessary, so nothing here retries or keeps state.
"""

import logging
import os
import queue
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from agent.clock import now_ms
from agent.sources.background import run_in_thread
from agent.sources.kafka.admin import frames, protocol, results
from agent.sources.kafka.admin.client_choice import ClientChoice
from agent.sources.kafka.admin.log_forwarder import LogForwarder, Outgoing
from agent.sources.kafka.admin.second_client_options import UntranslatableError, translate

if TYPE_CHECKING:
    from agent.sources.kafka.admin.second_client import SecondClient

_MAX_TIMEOUT_SECONDS = 3_600
"""The longest request timeout that librdkafka takes: calls to coordinators must not time out in here (see above)."""

_METADATA_SECONDS = 3.0
"""Any broker can return metadata, so do not wait long for a frozen one: the client picks another next time."""

_UNANSWERED = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001
"""librdkafka's codes if no broker can be talked to; not a timeout, which a slow broker causes as well."""

_FRAME = 100
"""How many messages are sent together at most."""

_DEFAULTS = {"client.id": "backflow", "reconnect.backoff.max.ms": "2000"}
_REQUIRED = {"allow.auto.create.topics": "false"}
"""What the user's properties cannot override. By default, reading the metadata of a deleted topic creates it again."""


class _RequestHandler:
    """Calls one of the clients for each request and queues the result."""

    def __init__(
        self, admin: AdminClient, setup: protocol.Setup, outgoing: Outgoing, examine_ports: Callable[[], None]
    ) -> None:
        """examine_ports: called when no broker answers."""
        self._admin = admin
        self._examine_ports = examine_ports
        self._setup = setup
        self._second: SecondClient | None = None
        self._cluster = setup.cluster
        self._seconds = setup.timeout / 1000
        self._metadata_seconds = min(self._seconds, _METADATA_SECONDS)
        self._outgoing = outgoing
        self._making_second = threading.Lock()
        self._choice = ClientChoice()

    def handle(self, messages: Sequence[protocol.NumberedRequest]) -> None:
        """Start the calls; their responses are queued when they complete."""
        self._choice.update(messages)
        self._call_second([message for message in messages if self._choice.is_for_second(message)])
        for message in messages:
            if not self._choice.is_for_second(message):
                self._call_librdkafka(message)

    def _call_second(self, messages: Sequence[protocol.NumberedRequest]) -> None:
        if not messages:
            return
        with self._making_second:
            if self._second is None:
                # Only some clusters need it, and it takes 20 MB.
                from agent.sources.kafka.admin.second_client import SecondClient  # noqa: PLC0415

                try:
                    options = translate(self._setup.properties)
                except UntranslatableError as error:
                    for message in messages:
                        self._call_without_second(message, f"kafka-python does not support {error}")
                    return
                self._second = SecondClient(
                    options, self._cluster, self._setup.timeout, self._queue, self._call_without_second
                )
        self._second.handle(messages)

    def _call_without_second(self, message: protocol.NumberedRequest, reason: str) -> None:
        """Ask librdkafka if it knows the request, although its response is less complete."""
        match message.request:
            case (
                protocol.DescribeTopics()
                | protocol.DescribeGroup()
                | protocol.ListCommits()
                | protocol.ListOffsets()
                | protocol.ListStableOffsets()
            ):
                self._call_librdkafka(message)
            case protocol.FetchMetadata(topics) if topics:
                self._fetch_topics(message, topics)
            case protocol.FetchMetadata():
                self._fetch_metadata(message, self._respond_metadata)
            case _:
                self._queue(message.number, protocol.Failure(protocol.UNSUPPORTED, reason))

    def _call_librdkafka(self, message: protocol.NumberedRequest) -> None:
        try:
            self._start(message)
        except KafkaException as error:
            self._queue(message.number, results.read_failure(error))

    def _queue(self, number: int, result: protocol.Result) -> None:
        response = protocol.Response(number, now_ms(), result)
        self._outgoing.put(lambda: response)

    def _start(self, message: protocol.NumberedRequest) -> None:
        admin, cluster, number = self._admin, self._cluster, message.number
        match message.request:
            case protocol.ListGroups():
                listed = admin.list_consumer_groups(request_timeout=self._seconds)
                self._respond(number, lambda _: results.read_groups(listed), listed)
            case protocol.FetchMetadata():
                self._fetch_metadata(message, self._respond_decodable_metadata)
            case protocol.ListCommits(group):
                selection = [ConsumerGroupTopicPartitions(group)]
                committed = admin.list_consumer_group_offsets(
                    selection, require_stable=False, request_timeout=_MAX_TIMEOUT_SECONDS
                )
                self._respond(
                    number, lambda at: results.read_commits(committed[group], cluster, group, at), committed[group]
                )
            case protocol.ListOffsets(partitions=partitions):
                selected = [TopicPartition(*partition) for partition in partitions]
                starts, ends = (
                    admin.list_offsets(dict.fromkeys(selected, spec), request_timeout=self._seconds)
                    for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
                )
                first_start, first_end = next(iter(starts.values())), next(iter(ends.values()))
                self._respond(
                    number,
                    lambda _: results.read_offsets(starts, ends, cluster, message.sent_at),
                    first_start,
                    first_end,
                )
            case protocol.DescribeGroup(group):
                described = admin.describe_consumer_groups([group], request_timeout=_MAX_TIMEOUT_SECONDS)
                self._respond(
                    number, lambda at: results.read_group_state(described[group], cluster, group, at), described[group]
                )
            case protocol.ListTasks(group):
                # Deprecated, but the only call that returns the user data of an assignment. It asks all brokers: one
                # that hangs makes it fail after the timeout.
                members = run_in_thread("tasks", lambda: admin.list_groups(group, timeout=self._seconds))
                self._respond(number, lambda _: results.read_tasks(members), members)
            case protocol.DescribeTopics(names):
                topics = admin.describe_topics(TopicCollection(names), request_timeout=self._metadata_seconds)
                self._respond(number, lambda at: results.read_topics(topics, cluster, at), next(iter(topics.values())))
            case protocol.CheckTopics(names):
                checked = admin.describe_topics(TopicCollection(names), request_timeout=self._metadata_seconds)
                self._respond(number, lambda _: results.read_topic_checks(checked), next(iter(checked.values())))
            case protocol.CheckGroup(group):
                found = admin.describe_consumer_groups([group], request_timeout=_MAX_TIMEOUT_SECONDS)[group]
                self._respond(number, lambda _: results.read_group_check(found), found)
            case protocol.ListOperations(topic):
                permitted = admin.describe_topics(
                    TopicCollection([topic]),
                    include_authorized_operations=True,
                    request_timeout=self._metadata_seconds,
                )[topic]
                self._respond(number, lambda _: results.read_operations(permitted), permitted)
            case protocol.ListStableOffsets(partitions=partitions):
                stable = admin.list_offsets(
                    {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions},
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    request_timeout=self._seconds,
                )
                self._respond(
                    number,
                    lambda _: results.read_stable_offsets(stable, cluster, message.sent_at),
                    next(iter(stable.values())),
                )
            case protocol.DescribeBrokerSettings(broker):
                resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
                settings = admin.describe_configs([resource], request_timeout=self._seconds)[resource]
                self._respond(number, lambda _: results.read_broker_settings(settings), settings)
            case protocol.DescribeTopicSettings(names):
                configs = admin.describe_configs(
                    [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names], request_timeout=self._seconds
                )
                self._respond(
                    number,
                    lambda at: results.read_topic_settings(configs, cluster, at),
                    next(iter(configs.values())),
                )

    def _fetch_metadata(
        self, message: protocol.NumberedRequest, respond: Callable[[protocol.NumberedRequest, Future[Any]], None]
    ) -> None:
        metadata = run_in_thread("metadata", lambda: self._admin.list_topics(timeout=self._metadata_seconds))
        metadata.add_done_callback(lambda _: respond(message, metadata))

    def _respond_decodable_metadata(self, message: protocol.NumberedRequest, fetched: Future[Any]) -> None:
        """Queue the response, or ask the second client: librdkafka cannot parse what some brokers send.

        Seen with 2.16 and brokers before 2.8 that have many topics of one partition and short names.
        """
        error = fetched.exception()
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._BAD_MSG:  # noqa: SLF001
            self._call_second([message])
        else:
            self._respond_metadata(message, fetched)

    def _respond_metadata(self, message: protocol.NumberedRequest, fetched: Future[Any]) -> None:
        error = fetched.exception()
        if isinstance(error, KafkaException) and error.args[0].code() in _UNANSWERED:
            run_in_thread("ports", self._examine_ports)
        at = now_ms()
        self._outgoing.put(lambda: _response(message.number, at, lambda _: results.read_metadata(fetched.result())))

    def _fetch_topics(self, message: protocol.NumberedRequest, topics: list[str]) -> None:
        """Queue the metadata of these topics, fetched one by one."""
        seconds = self._metadata_seconds

        def fetch() -> protocol.Metadata:
            fetched = [results.read_metadata(self._admin.list_topics(topic, timeout=seconds)) for topic in topics]
            brokers = {broker for metadata in fetched for broker in metadata.brokers}
            by_name = {name: leaders for metadata in fetched for name, leaders in metadata.topics.items()}
            return protocol.Metadata(sorted(brokers), by_name)

        metadata = run_in_thread("metadata", fetch)
        self._respond(message.number, lambda _: metadata.result(), metadata)

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
        result = results.read_failure(error)
    return protocol.Response(number, at, result)


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
    for setup in frames.receive(requests, msgspec.msgpack.Decoder(list[protocol.Setup])) or ():
        _serve(requests, responses, setup)


def _serve(requests: BinaryIO, responses: BinaryIO, setup: protocol.Setup) -> None:
    """Handle the requests that follow."""
    outgoing: Outgoing = queue.SimpleQueue()
    forwarder = LogForwarder(outgoing, setup.properties)
    logging.getLogger("kafka").addHandler(forwarder)

    def report(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  librdkafka's own codes are named like this
            forwarder.report(error.str())

    try:
        admin = make_admin_client(setup.properties, report, forwarder)
    except KafkaException as error:
        reason = f"the Kafka client rejects its properties: {results.read_failure(error).text}"
        frames.send(responses, protocol.ConnectionFailure("", None, reason))
        return
    threading.Thread(target=_write, args=(responses, outgoing), daemon=True).start()
    threading.Thread(target=_poll, args=(admin,), daemon=True).start()
    handler = _RequestHandler(admin, setup, outgoing, forwarder.examine_ports)
    decoder = msgspec.msgpack.Decoder(list[protocol.NumberedRequest])
    while (messages := frames.receive(requests, decoder)) is not None:
        handler.handle(messages)
    os._exit(0)  # closing the client may hang


def make_admin_client(
    properties: Mapping[str, Any], report: Callable[[KafkaError], None], forwarder: LogForwarder
) -> AdminClient:
    """Return a client whose requests create no topics. Raises KafkaException if librdkafka rejects the properties.

    properties: the user's, which override defaults. report: called with errors that concern no request.
    """
    settled: dict[str, Any] = {**_DEFAULTS, **properties, **_REQUIRED, "error_cb": report}
    return AdminClient(settled, logger=forwarder)


def _exit_on_defect(failed: threading.ExceptHookArgs) -> None:
    """End the process when a thread fails, so that the source notices and restarts it."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(1)


def _write(responses: BinaryIO, outgoing: Outgoing) -> None:
    while True:
        builders = [outgoing.get()]
        while len(builders) < _FRAME and not outgoing.empty():
            builders.append(outgoing.get())
        frames.send(responses, *(build() for build in builders))


def _poll(admin: AdminClient) -> None:
    """Serve the client's callbacks: logs and errors."""
    while True:
        admin.poll(1)


if __name__ == "__main__":
    main()
