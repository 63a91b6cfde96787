"""The process that holds librdkafka's AdminClient: questions come by standard input, answers go to standard output.

A process of its own, because librdkafka aborts the one it lives in when a group's coordinator comes back after a call
to it has timed out (librdkafka 5397, open; seen with 2.8 and 2.16), never again asks a coordinator that was missing
from the metadata for a while (seen with 2.16), and may hang when it is to end (both). So the source replaces it
when it must, and nothing here retries or remembers.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
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

from agent.observations import Member
from agent.sources import kafka_wire as wire
from agent.sources.sight import now_ms

_NEVER_SECONDS = 3_600
"""The longest request timeout that librdkafka takes: calls to coordinators must not time out in here (see above)."""

_METADATA_SECONDS = 3.0
"""Any broker can answer for metadata, so do not wait long for a frozen one: the client asks another next time."""

_SAME_GO_SECONDS = 5
"""The client sets all futures of a request in one go: when the first is done, the others are about to be."""

_DEFAULTS = {"client.id": "backflow", "reconnect.backoff.max.ms": "2000"}

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

Futures: TypeAlias = Mapping[Any, "Future[Any]"]
Out: TypeAlias = "queue.SimpleQueue[Callable[[], wire.FromClient]]"
"""What the writer is to make and send."""


class _Answering:
    """Turns questions into calls, and finished calls into answers on a queue."""

    def __init__(self, admin: AdminClient, timeout: int, out: Out) -> None:
        self._admin = admin
        self._seconds = timeout / 1000
        self._metadata_seconds = min(self._seconds, _METADATA_SECONDS)
        self._out = out

    def ask(self, asked: wire.Asked) -> None:
        """Issue the call; its answer is put on the queue when it comes."""
        try:
            self._issue(asked.number, asked.question)
        except KafkaException as error:
            answered = wire.Answered(asked.number, now_ms(), _failure(error))
            self._out.put(lambda: answered)

    def _issue(self, number: int, question: wire.Question) -> None:
        admin = self._admin
        match question:
            case wire.ListGroups():
                listed = admin.list_consumer_groups(request_timeout=self._seconds)
                self._answer(number, _groups, {"": listed})
            case wire.Layout():
                metadata = _in_thread(lambda: admin.list_topics(timeout=self._metadata_seconds))
                self._answer(number, _metadata, {"": metadata})
            case wire.ListCommits(group):
                asked = [ConsumerGroupTopicPartitions(group)]
                committed = admin.list_consumer_group_offsets(
                    asked, require_stable=False, request_timeout=_NEVER_SECONDS
                )
                self._answer(number, _commits, committed)
            case wire.ListOffsets(places):
                partitions = [TopicPartition(*place) for place in places]
                starts, ends = (
                    admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=self._seconds)
                    for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
                )
                self._answer(number, _offsets, starts, ends)
            case wire.DescribeGroup(group):
                described = admin.describe_consumer_groups([group], request_timeout=_NEVER_SECONDS)
                self._answer(number, _group, described)
            case wire.DescribeTopics(topics):
                collection = TopicCollection(topics)
                told = admin.describe_topics(collection, request_timeout=self._metadata_seconds)
                self._answer(number, _topics, told)

    def _answer(self, number: int, read: Callable[..., wire.Result], *requests: Futures) -> None:
        """When one future of each request is done, all are about to be: let the writer read them then."""
        first, *others = (next(iter(futures.values())) for futures in requests)

        def done(_: "Future[Any]") -> None:
            if others:
                others.pop().add_done_callback(done)
            else:
                self._out.put(partial(_answered, number, now_ms(), read, requests))

        first.add_done_callback(done)


def _answered(number: int, at: int, read: Callable[..., wire.Result], requests: tuple[Futures, ...]) -> wire.Answered:
    try:
        result = read(*requests)
    except KafkaException as error:
        result = _failure(error)
    return wire.Answered(number, at, result)


def _failure(error: KafkaException | KafkaError) -> wire.Failure:
    """What the client says went wrong."""
    kafka_error: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return wire.Failure(kafka_error.code(), kafka_error.str())


def _result(future: "Future[Any]") -> Any:
    return future.result(_SAME_GO_SECONDS)


def _groups(futures: Futures) -> wire.Groups:
    listed = _result(futures[""])
    return wire.Groups([one.group_id for one in listed.valid], [_failure(one) for one in listed.errors])


def _metadata(futures: Futures) -> wire.Metadata:
    metadata: ClusterMetadata = _result(futures[""])
    return wire.Metadata(
        sorted(metadata.brokers),
        {
            name: {number: one.leader for number, one in topic.partitions.items()} if topic.error is None else None
            for name, topic in metadata.topics.items()
        },
    )


def _commits(futures: Futures) -> wire.Commits:
    (future,) = futures.values()
    return wire.Commits(
        [
            # TopicPartition.metadata must not be touched: it reads past its end (confluent-kafka 2.16.1).
            wire.CommittedOffset(
                one.topic,
                one.partition,
                one.offset,
                one.leader_epoch,
                None if one.error is None else _failure(one.error),
            )
            for one in _result(future).topic_partitions
        ]
    )


def _offsets(starts: Futures, ends: Futures) -> wire.Offsets:
    ranges = []
    for (place, start), end in zip(starts.items(), ends.values(), strict=True):
        try:
            found = wire.LogRange(place.topic, place.partition, _result(start).offset, _result(end).offset, None)
        except KafkaException as error:
            found = wire.LogRange(place.topic, place.partition, -1, -1, _failure(error))
        ranges.append(found)
    return wire.Offsets(ranges)


def _group(futures: Futures) -> wire.Group:
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
    return wire.Group(_STATES.get(state, state), described.is_simple_consumer_group, members)


def _topics(futures: Futures) -> wire.Topics:
    topics: dict[str, wire.Topic | wire.Failure] = {}
    for name, future in futures.items():
        try:
            topics[name] = _topic(_result(future))
        except KafkaException as error:
            topics[name] = _failure(error)
    return wire.Topics(topics)


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


def _in_thread(call: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call()
        except KafkaException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


class _Log:
    """What librdkafka takes for a `logging.Logger`."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def log(self, level: int, text: str, *values: object) -> None:
        """Pass a line on."""
        line = wire.Line(level, text % values)
        self._out.put(lambda: line)


def main() -> None:
    """Answer until standard input ends. Signals for the daemon's whole group are the daemon's to act on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    setup = wire.receive(questions, msgspec.msgpack.Decoder(wire.Setup))
    if setup is None:
        return
    out: Out = queue.SimpleQueue()

    def complain(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  librdkafka's own codes are named like this
            text = error.str()
            out.put(lambda: wire.Complaint(text))

    try:
        properties: dict[str, Any] = {**_DEFAULTS, **setup.properties, "error_cb": complain}
        admin = AdminClient(properties, logger=_Log(out))
    except KafkaException as error:
        wire.send(answers, wire.Complaint(f"the client refuses its properties: {_failure(error).text}"))
        return
    threading.Thread(target=_write, args=(answers, out), daemon=True).start()
    threading.Thread(target=_serve, args=(admin,), daemon=True).start()
    answering = _Answering(admin, setup.timeout, out)
    decoder = msgspec.msgpack.Decoder(wire.Asked)
    while (asked := wire.receive(questions, decoder)) is not None:
        answering.ask(asked)
    os._exit(0)  # the client's own end may hang


def _write(answers: BinaryIO, out: Out) -> None:
    while True:
        wire.send(answers, out.get()())


def _serve(admin: AdminClient) -> None:
    """Let the client call back: its log and its complaints."""
    while True:
        admin.poll(1)


if __name__ == "__main__":
    main()
