"""Reads changelogs in a thread of its own, by assign(): only what is committed, as no group's member, never committing.

What the records mean is known by changelog_log; what there is to read is told by changelogs.
"""

import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from agent.sources.availability import now_ms
from agent.sources.kafka import admin_protocol as wire
from agent.sources.streams.changelog_log import Changelog, Records

Topics: TypeAlias = Mapping[str, wire.Topic | wire.Failure]

RECORDS = 10_000
"""How many records are taken at a time."""

_WAIT_SECONDS = 0.1
_AGAIN_SECONDS = 5.0
_CLOSE_SECONDS = 3

_FETCHING: Mapping[str, str] = {
    # A record that waits costs librdkafka some hundreds of bytes beside its own; by default 100,000 of them wait.
    "queued.min.messages": "20000",
    "queued.max.messages.kbytes": "8192",
    "fetch.message.max.bytes": "262144",
    "fetch.max.bytes": "1048576",
    "fetch.queue.backoff.ms": "5",  # by default no more is fetched for a second once enough waits
    "reconnect.backoff.max.ms": "2000",
    "client.id": "backflow",
}
_OURS: Mapping[str, Any] = {
    "group.id": "backflow-changelogs",  # the client wants one; nothing joins it or commits for it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",  # else what was never committed before a kill would look like falls
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # told as an error: the log is another one, or has lost what was to be read next
}


class Reader:
    """Feeds the changelogs what is written to their topics.

    lock: held while the changelogs are changed. refused: why there is no consumer. defect: what has ended the thread.
    stuck: whether a partition waits for the topics to be looked at.
    """

    def __init__(
        self,
        cluster: str,
        properties: Mapping[str, str],
        changelogs: Mapping[str, Changelog],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.lock = threading.Lock()
        self.refused: str | None = None
        self.defect: BaseException | None = None
        self.stuck = False
        self._properties = {**_FETCHING, **properties, **_OURS}
        self._changelogs = changelogs
        self._log = log
        self._topics: Topics = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"changelogs-{cluster}", daemon=True)
        self._thread.start()

    def look(self, topics: Topics) -> None:
        """The topics as they are now: what is new in them is read, what could not be read is tried again."""
        self._topics = topics

    def close(self) -> None:
        """End the thread within 3 s."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    consumer = Consumer(self._properties, logger=_Log(self._log))
                except KafkaException as error:
                    self.refused = f"the client refuses its properties: {error.args[0].str()}"
                    self._closing.wait(_AGAIN_SECONDS)
                    continue
                self.refused = None
                try:
                    self._read(consumer)
                finally:
                    consumer.close()
        except BaseException as error:  # noqa: BLE001  # raised by the source's next poll
            self.defect = error

    def _read(self, consumer: Consumer) -> None:
        looked_at: Topics = {}
        drained: int | None = None
        while not self._closing.is_set():
            topics = self._topics
            if topics is not looked_at:
                looked_at = topics
                with self.lock:
                    self._assign(consumer, topics)
            messages = consumer.consume(RECORDS, _WAIT_SECONDS)
            now = now_ms()
            if messages:
                with self.lock:
                    self._take(consumer, messages, now, drained)
            if len(messages) < RECORDS:
                drained = now

    # --- what is read

    def _assign(self, consumer: Consumer, topics: Topics) -> None:
        self.stuck = False
        now = now_ms()
        for name, one in self._changelogs.items():
            topic = topics.get(name)
            if not isinstance(topic, wire.Topic):
                if topic is not None:
                    one.missing = _why_missing(one, topic)
                continue
            numbers = [partition.partition for partition in topic.partitions]
            reading = [number for number, partition in one.partitions.items() if partition.reading]
            if one.found(topic.id, numbers, now) and reading:
                consumer.incremental_unassign([TopicPartition(name, number) for number in reading])
                self._log.info("a changelog is read from its start: the topic is another one", topic=name)
            for partition in topic.partitions:
                if partition.leader is None:
                    self._stop(consumer, one, partition.partition)
                    one.partitions[partition.partition].trouble = f"{name}-{partition.partition} has no leader"
                else:
                    self._start(consumer, one, partition.partition)

    def _start(self, consumer: Consumer, changelog: Changelog, number: int) -> None:
        partition = changelog.partitions[number]
        if not partition.reading:
            offset = OFFSET_BEGINNING if partition.next is None else partition.next
            consumer.incremental_assign([TopicPartition(changelog.topic, number, offset)])
            partition.reading = True

    def _stop(self, consumer: Consumer, changelog: Changelog, number: int) -> None:
        partition = changelog.partitions[number]
        if partition.reading:
            consumer.incremental_unassign([TopicPartition(changelog.topic, number)])
            partition.reading = False

    # --- what comes

    def _take(self, consumer: Consumer, messages: Sequence[Message], now: int, drained: int | None) -> None:
        records: list[Message] = []
        ends: list[Message] = []
        errors: list[tuple[Message, KafkaError]] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif self._is_read(message):
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    ends.append(message)
                else:
                    errors.append((message, error))
        for message in ends:
            changelog, number = self._place(message)
            changelog.ends_at(number, message.offset() or 0)
        for topic, of_topic in groupby(sorted(records, key=_topic), _topic):
            self._take_records(consumer, self._changelogs[topic], list(of_topic), now, drained)
        for message in ends:
            changelog, number = self._place(message)
            changelog.reached_end(number, now, drained)
        for message, error in errors:
            self._cannot_read(consumer, *self._place(message), error)

    def _take_records(
        self, consumer: Consumer, changelog: Changelog, messages: Sequence[Message], now: int, drained: int | None
    ) -> None:
        count = len(messages)
        records = Records(
            np.fromiter(map(Message.partition, messages), np.int64, count),
            np.fromiter(map(Message.offset, messages), np.int64, count),
            list(map(Message.key, messages)),
            list(map(Message.value, messages)),
        )
        for number in np.unique(records.partitions).tolist():
            if changelog.partitions[number].live_from is None:
                place = TopicPartition(changelog.topic, number)
                # The high watermark of the fetch that brought the records: no request, and negative where unknown.
                end = consumer.get_watermark_offsets(place, cached=True)[1]
                if end >= 0:
                    changelog.ends_at(number, end)
        changelog.take(records, now, drained)

    def _cannot_read(self, consumer: Consumer, changelog: Changelog, number: int, error: KafkaError) -> None:
        """The partition is read on when the topics have been looked at next."""
        self._stop(consumer, changelog, number)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            changelog.begin_anew(number, now_ms())
            self._log.info(
                "a changelog is read from its start", topic=changelog.topic, partition=number, reason=error.str()
            )
        else:
            changelog.partitions[number].trouble = f"{changelog.topic}-{number} cannot be read: {error.str()}"
        self.stuck = True

    def _is_read(self, message: Message) -> bool:
        """Whether the message is about a partition that is being read, and not about the client or a group."""
        changelog = self._changelogs.get(_topic(message))
        partition = None if changelog is None else changelog.partitions.get(_partition(message))
        return partition is not None and partition.reading

    def _place(self, message: Message) -> tuple[Changelog, int]:
        return self._changelogs[_topic(message)], _partition(message)


class _Log:
    """What librdkafka takes for a `logging.Logger`."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log

    def log(self, level: int, text: str, *values: object) -> None:
        """Pass a line on."""
        self._log.debug(text % values, level=level)


def _topic(message: Message) -> str:
    return message.topic() or ""


def _partition(message: Message) -> int:
    return message.partition() or 0


def _why_missing(changelog: Changelog, failure: wire.Failure) -> str:
    if failure.code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"there is no topic {changelog.topic}, the changelog of the declared store {changelog.store.store}"
    return f"the brokers do not tell of {changelog.topic}: {failure.text}"
