"""Thread that consumes changelogs by assign(): committed records only, without joining a group or committing."""

import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from agent.clock import now_ms
from agent.sources.kafka.admin import protocol as wire
from agent.sources.kafka.log_consumer import make_log_consumer
from agent.sources.streams.changelog_log import Changelog, Records

Topics: TypeAlias = Mapping[str, wire.Topic | wire.Failure]

MAX_RECORDS = 10_000
"""How many records are consumed at a time."""

_POLL_S = 0.1
_RETRY_S = 5.0
_CLOSE_S = 3

_DEFAULTS = {
    "queued.max.messages.kbytes": "8192",
    "fetch.message.max.bytes": "262144",
    "fetch.max.bytes": "1048576",
}
_REQUIRED = {"enable.partition.eof": True}


class ChangelogReader:
    """Consumer thread that applies records to changelogs.

    lock: held while changelogs are changed. failure: why there is no consumer. crash: the exception that ended the
    thread. awaits_topics: whether a partition is read on only after the next `set_topics`.
    """

    def __init__(
        self,
        cluster: str,
        properties: Mapping[str, str],
        changelogs: Mapping[str, Changelog],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.lock = threading.Lock()
        self.failure: str | None = None
        self.crash: BaseException | None = None
        self.awaits_topics = False
        self._properties = properties
        self._changelogs = changelogs
        self._log = log
        self._topics: Topics = {}
        self._closing = threading.Event()
        self._name = f"changelogs-{cluster}"
        self._start()

    def restart(self) -> None:
        """Start the thread again after a crash; it continues where the last one was."""
        self.crash = None
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def set_topics(self, topics: Topics) -> None:
        """Pass on the topics' current state: new partitions are read, those that could not be read are retried."""
        self._topics = topics

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Go on with another consumer that has these properties."""
        self._properties = properties

    def close(self) -> None:
        """End the thread within 3 s."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                properties = self._properties
                try:
                    consumer = make_log_consumer(
                        "changelogs", properties, self._log, defaults=_DEFAULTS, required=_REQUIRED
                    )
                except KafkaException as error:
                    self.failure = f"the Kafka client rejects its properties: {error.args[0].str()}"
                    self._closing.wait(_RETRY_S)
                    continue
                self.failure = None
                try:
                    self._consume(consumer, properties)
                finally:
                    consumer.close()
        except BaseException as error:  # noqa: BLE001  # raised by the source's next poll
            self.crash = error

    def _consume(self, consumer: Consumer, properties: Mapping[str, str]) -> None:
        """Read until the reader is closed or gets other properties."""
        assigned_topics: Topics = {}
        drained_at: int | None = None
        with self.lock:
            for changelog in self._changelogs.values():
                for partition in changelog.partitions.values():
                    partition.assigned = False  # to an earlier consumer
        while not self._closing.is_set() and properties is self._properties:
            topics = self._topics
            if topics is not assigned_topics:
                assigned_topics = topics
                with self.lock:
                    self._assign_topics(consumer, topics)
            messages = consumer.consume(MAX_RECORDS, _POLL_S)
            now = now_ms()
            if messages:
                with self.lock:
                    self._apply(consumer, messages, now, drained_at)
            if len(messages) < MAX_RECORDS:
                drained_at = now

    # --- assignment

    def _assign_topics(self, consumer: Consumer, topics: Topics) -> None:
        self.awaits_topics = False
        now = now_ms()
        for name, changelog in self._changelogs.items():
            topic = topics.get(name)
            if not isinstance(topic, wire.Topic):
                if topic is not None:
                    changelog.missing = _describe_missing(changelog, topic)
                continue
            numbers = [partition.partition for partition in topic.partitions]
            assigned = [number for number, partition in changelog.partitions.items() if partition.assigned]
            if changelog.set_topic(topic.id, numbers, now) and assigned:
                consumer.incremental_unassign([TopicPartition(name, number) for number in assigned])
                self._log.info("changelog_restarted", topic=name, reason="topic re-created")
            for partition in topic.partitions:
                if partition.leader is None:
                    self._unassign(consumer, changelog, partition.partition)
                    changelog.partitions[partition.partition].failure = f"{name}-{partition.partition} has no leader"
                else:
                    self._assign(consumer, changelog, partition.partition)

    def _assign(self, consumer: Consumer, changelog: Changelog, number: int) -> None:
        partition = changelog.partitions[number]
        if not partition.assigned:
            offset = OFFSET_BEGINNING if partition.next_offset is None else partition.next_offset
            consumer.incremental_assign([TopicPartition(changelog.topic, number, offset)])
            partition.assigned = True

    def _unassign(self, consumer: Consumer, changelog: Changelog, number: int) -> None:
        partition = changelog.partitions[number]
        if partition.assigned:
            consumer.incremental_unassign([TopicPartition(changelog.topic, number)])
            partition.assigned = False

    # --- messages

    def _apply(self, consumer: Consumer, messages: Sequence[Message], now: int, drained_at: int | None) -> None:
        records: list[Message] = []
        log_ends: list[Message] = []
        errors: list[tuple[Message, KafkaError]] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif self._is_assigned(message):
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    log_ends.append(message)
                else:
                    errors.append((message, error))
        for message in log_ends:
            changelog, number = self._find_partition(message)
            changelog.set_log_end(number, message.offset() or 0)
        for topic, of_topic in groupby(sorted(records, key=_topic), _topic):
            self._apply_records(consumer, self._changelogs[topic], list(of_topic), now, drained_at)
        for message in log_ends:
            changelog, number = self._find_partition(message)
            changelog.mark_caught_up(number, now, drained_at)
        for message, error in errors:
            self._handle_error(consumer, *self._find_partition(message), error)

    def _apply_records(
        self, consumer: Consumer, changelog: Changelog, messages: Sequence[Message], now: int, drained_at: int | None
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
                # The high watermark of the fetch that brought the records: no request, and negative if unknown.
                high_watermark = consumer.get_watermark_offsets(TopicPartition(changelog.topic, number), cached=True)[1]
                if high_watermark >= 0:
                    changelog.set_log_end(number, high_watermark)
        changelog.apply(records, now, drained_at)

    def _handle_error(self, consumer: Consumer, changelog: Changelog, number: int, error: KafkaError) -> None:
        """Stop reading the partition until the next `set_topics`."""
        self._unassign(consumer, changelog, number)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            changelog.restart_partition(number, now_ms())
            self._log.info("changelog_restarted", topic=changelog.topic, partition=number, reason=error.str())
        else:
            changelog.partitions[number].failure = f"cannot read {changelog.topic}-{number}: {error.str()}"
        self.awaits_topics = True

    def _is_assigned(self, message: Message) -> bool:
        """Return whether the message is about a partition being read, and not about the client or a group."""
        changelog = self._changelogs.get(_topic(message))
        partition = None if changelog is None else changelog.partitions.get(_partition(message))
        return partition is not None and partition.assigned

    def _find_partition(self, message: Message) -> tuple[Changelog, int]:
        return self._changelogs[_topic(message)], _partition(message)


def _topic(message: Message) -> str:
    return message.topic() or ""


def _partition(message: Message) -> int:
    return message.partition() or 0


def _describe_missing(changelog: Changelog, failure: wire.Failure) -> str:
    if failure.code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"topic {changelog.topic}, the changelog of the declared store {changelog.store.store}, does not exist"
    return f"cannot describe topic {changelog.topic}: {failure.text}"
