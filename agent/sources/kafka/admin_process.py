"""The process that holds librdkafka's AdminClient: questions come by standard input, answers go to standard output.

A process of its own, because librdkafka (seen with 2.16)
- aborts when a group's coordinator comes back after a call to it has timed out (its issue 5397, open),
- crashes when a coordinator refuses to list offsets, having handed the group over (it looks for a consumer it is not),
- never again asks a coordinator that was missing from the metadata for a while,
- may hang when it is to end.
So the source replaces this process when it must, and nothing here retries or remembers.
"""

import os
import queue
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from agent.sources.availability import now_ms
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka import admin_results as results
from agent.sources.kafka.admin_results import Futures

_NEVER_SECONDS = 3_600
"""The longest request timeout that librdkafka takes: calls to coordinators must not time out in here (see above)."""

_METADATA_SECONDS = 3.0
"""Any broker can answer for metadata, so do not wait long for a frozen one: the client asks another next time."""

_DEFAULTS = {"client.id": "backflow", "reconnect.backoff.max.ms": "2000"}

Out: TypeAlias = queue.SimpleQueue[Callable[[], wire.FromClient]]
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
            answered = wire.Answered(asked.number, now_ms(), results.failure(error))
            self._out.put(lambda: answered)

    def _issue(self, number: int, question: wire.Question) -> None:
        admin = self._admin
        match question:
            case wire.ListGroups():
                listed = admin.list_consumer_groups(request_timeout=self._seconds)
                self._answer(number, results.groups, {"": listed})
            case wire.Layout():
                metadata = _in_thread(lambda: admin.list_topics(timeout=self._metadata_seconds))
                self._answer(number, results.metadata, {"": metadata})
            case wire.ListCommits(group):
                asked = [ConsumerGroupTopicPartitions(group)]
                committed = admin.list_consumer_group_offsets(
                    asked, require_stable=False, request_timeout=_NEVER_SECONDS
                )
                self._answer(number, results.commits, committed)
            case wire.ListOffsets(places):
                partitions = [TopicPartition(*place) for place in places]
                starts, ends = (
                    admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=self._seconds)
                    for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
                )
                self._answer(number, results.offsets, starts, ends)
            case wire.DescribeGroup(group):
                described = admin.describe_consumer_groups([group], request_timeout=_NEVER_SECONDS)
                self._answer(number, results.group, described)
            case wire.ListTasks(group):
                # Deprecated, but the only call that tells what stands in an assignment besides partitions. It asks all
                # brokers: one that hangs makes it fail when its time is up.
                listed_group = _in_thread(lambda: admin.list_groups(group, timeout=self._seconds))
                self._answer(number, results.tasks, {"": listed_group})
            case wire.DescribeTopics(topics):
                collection = TopicCollection(topics)
                told = admin.describe_topics(collection, request_timeout=self._metadata_seconds)
                self._answer(number, results.topics, told)

    def _answer(self, number: int, read: Callable[..., wire.Result], *requests: Futures) -> None:
        """When one future of each request is done, all are about to be: let the writer read them then."""
        first, *others = (next(iter(futures.values())) for futures in requests)

        def done(_: Future[Any]) -> None:
            if others:
                others.pop().add_done_callback(done)
            else:
                self._out.put(partial(_answered, number, now_ms(), read, requests))

        first.add_done_callback(done)


def _answered(number: int, at: int, read: Callable[..., wire.Result], requests: tuple[Futures, ...]) -> wire.Answered:
    try:
        result = read(*requests)
    except KafkaException as error:
        result = results.failure(error)
    return wire.Answered(number, at, result)


def _in_thread(call: Callable[[], Any]) -> Future[Any]:
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
    threading.excepthook = _die
    warnings.filterwarnings("ignore", r"list_groups\(\) is deprecated", DeprecationWarning)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # librdkafka's crashes are known: no dumps of them
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
        wire.send(answers, wire.Complaint(f"the client refuses its properties: {results.failure(error).text}"))
        return
    threading.Thread(target=_write, args=(answers, out), daemon=True).start()
    threading.Thread(target=_serve, args=(admin,), daemon=True).start()
    answering = _Answering(admin, setup.timeout, out)
    decoder = msgspec.msgpack.Decoder(wire.Asked)
    while (asked := wire.receive(questions, decoder)) is not None:
        answering.ask(asked)
    os._exit(0)  # the client's own end may hang


def _die(failed: threading.ExceptHookArgs) -> None:
    """A thread's defect ends the process, so that the source sees it and starts another."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(1)


def _write(answers: BinaryIO, out: Out) -> None:
    while True:
        wire.send(answers, out.get()())


def _serve(admin: AdminClient) -> None:
    """Let the client call back: its log and its complaints."""
    while True:
        admin.poll(1)


if __name__ == "__main__":
    main()
