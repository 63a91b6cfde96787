"""Consumers that record what happened to them: with assign(), as group members, and with auto commit.

Each processes records at a bounded rate, so that it takes a while to reprocess a backlog.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from testbed.traffic import IMPATIENT, Place, Worker
from testbed.waiting import wait_until

T = TypeVar("T")

# Under KIP-848 ("consumer") the broker has these settings.
_PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "classic": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    "consumer": {"group.protocol": "consumer"},
}


class Rewind(NamedTuple):
    """A consumer received the record `to` when `position` was next. at: when, ms since the epoch."""

    at: int
    topic: str
    partition: int
    position: int
    to: int


class Commit(NamedTuple):
    """Kafka confirmed a committed offset. at: when, ms since the epoch."""

    at: int
    topic: str
    partition: int
    offset: int


class RecordingConsumer(Worker):
    """A consumer with auto.offset.reset=earliest, a bounded rate, short queues, and a record of events.

    positions: the next offset of each partition. rewinds: where positions moved backwards. resets: librdkafka's log
    lines about offset resets. commits: all confirmed commits. committed: the last one of each partition. errors: errors
    received instead of records.
    """

    auto_commit: ClassVar[bool] = False
    """Whether librdkafka commits by itself."""

    def __init__(
        self, bootstrap_servers: str, group: str, *, rate: float = 2000, commit_ms: int = 500, protocol: str = "classic"
    ) -> None:
        """Prepare the consumer.

        rate: records per second in total. commit_ms: time between commits. protocol: group.protocol.
        """
        super().__init__(group)
        self.group = group
        self.positions: dict[Place, int] = {}
        self.commits: list[Commit] = []
        self.committed: dict[Place, int] = {}
        self.rewinds: list[Rewind] = []
        self.resets: list[str] = []
        self.errors: list[KafkaError] = []
        self._seeking = threading.Event()
        self._rate = rate
        self._commit_seconds = commit_ms / 1000
        self._paid_until = self._next_commit = time.monotonic()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": self.auto_commit,
                "auto.commit.interval.ms": commit_ms,
                "fetch.wait.max.ms": 100,
                # Short queues, so that no partition waits long behind another's backlog.
                "fetch.message.max.bytes": 20_000,
                "queued.min.messages": 500,
                "fetch.queue.backoff.ms": 20,
                "on_commit": self._on_commit,
                **IMPATIENT,
                **_PROTOCOLS[protocol],
            },
            logger=self._logger(),
        )

    def wait_until_at(self, topic: str, partition: int, offset: int, seconds: float = 60) -> None:
        """Wait until its position is at least this offset."""
        what = f"{self.group} to reach {offset} on {topic}[{partition}]"
        self._wait(lambda: self.positions.get((topic, partition), -1) >= offset, what, seconds)

    def wait_for_rewind(self, topic: str, partition: int, seconds: float = 60) -> Rewind:
        """Wait until it rewinds in this partition, and return the first rewind."""

        def find() -> Rewind | None:
            rewinds = (rewind for rewind in self.rewinds if (rewind.topic, rewind.partition) == (topic, partition))
            return next(rewinds, None)

        return self._wait(find, f"{self.group} to rewind on {topic}[{partition}]", seconds)

    def seek_to_start(self) -> None:
        """Seek to the log start offset in all its partitions, as an application does that reprocesses everything.

        Its own thread does so soon: another might never get its turn to use the consumer.
        """
        self._seeking.set()

    def _wait(self, condition: Callable[[], T | None], what: str, seconds: float) -> T:
        def check() -> T | None:
            self.raise_failure()
            return condition()

        return wait_until(check, what, seconds)

    def _step(self) -> None:
        if self._seeking.is_set():
            self._seeking.clear()
            for place in self.positions:
                self._consumer.seek(TopicPartition(*place, OFFSET_BEGINNING))
        now = time.monotonic()
        self._paid_until = max(self._paid_until, now - 0.1)  # unused allowance of more than 100 ms is dropped
        due = int((now - self._paid_until) * self._rate)
        if due:
            for message in self._consumer.consume(due, timeout=0.02):
                error = message.error()
                if error is not None:
                    self.errors.append(error)
                    continue
                self._paid_until += 1 / self._rate
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                if topic is not None and partition is not None and offset is not None:  # as every record has
                    self._work(topic, partition, offset)
        else:
            self._stopped.wait(0.01)
        if now >= self._next_commit:
            self._next_commit = now + self._commit_seconds
            self._commit()

    def _work(self, topic: str, partition: int, offset: int) -> None:
        position = self.positions.get((topic, partition), offset)
        if offset < position:
            self.rewinds.append(Rewind(_now(), topic, partition, position, offset))
        self.positions[topic, partition] = offset + 1

    def _commit(self) -> None:
        """Commit all changed positions, backwards too."""
        ahead = [
            TopicPartition(*place, position)
            for place, position in self.positions.items()
            if self.committed.get(place) != position
        ]
        if ahead:
            self._consumer.commit(offsets=ahead, asynchronous=True)

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and place.offset >= 0:
                self.commits.append(Commit(_now(), place.topic, place.partition, place.offset))
                self.committed[place.topic, place.partition] = place.offset

    def _finish(self) -> None:
        self._consumer.close()

    def _logger(self) -> logging.Logger:
        """Return its own logger, which keeps the lines about resets and drops the rest."""
        logger, handler = logging.getLogger(f"testbed.{self.group}.{id(self)}"), logging.Handler()
        logger.propagate = False
        handler.emit = lambda record: self.resets.append(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(lambda record: "offset reset" in record.getMessage())
        logger.addHandler(handler)
        return logger


class ExplicitConsumer(RecordingConsumer):
    """A group without members: partitions by assign() and explicit commits, as Flink does."""

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        places: Iterable[Place],
        *,
        rate: float = 2000,
        commit_ms: int = 500,
    ) -> None:
        super().__init__(bootstrap_servers, group, rate=rate, commit_ms=commit_ms)
        self._consumer.assign([TopicPartition(*place) for place in places])


class SubscribedConsumer(RecordingConsumer):
    """A group member with explicit commits."""

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topics: Iterable[str],
        *,
        rate: float = 2000,
        commit_ms: int = 500,
        protocol: str = "classic",
    ) -> None:
        super().__init__(bootstrap_servers, group, rate=rate, commit_ms=commit_ms, protocol=protocol)
        self._consumer.subscribe(list(topics), on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Commit the positions, and forget the partitions: their next owner continues from there."""
        done = [
            TopicPartition(place.topic, place.partition, self.positions[place.topic, place.partition])
            for place in places
            if (place.topic, place.partition) in self.positions
        ]
        if done:
            try:
                consumer.commit(offsets=done, asynchronous=False)
            except KafkaException as error:  # the group has rebalanced; the next owner reprocesses a little
                self.errors.append(error.args[0])
        self._on_lost(consumer, places)

    def _on_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self.positions.pop((place.topic, place.partition), None)


class AutoCommitConsumer(SubscribedConsumer):
    """A group member that leaves commits to librdkafka, which hides a reset.

    librdkafka commits only offsets of a newer leader epoch than the committed one, or further in the same epoch. While
    a consumer reprocesses records, it therefore commits nothing until it reaches the records of the leader that caused
    the reset.
    """

    auto_commit = True

    def _commit(self) -> None:
        """Leave commits to librdkafka, which commits every record that `consume` has returned."""

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._on_lost(consumer, places)


def _now() -> int:
    return time.time_ns() // 1_000_000
