"""Consumers of three habits that record what really happened to them: by assign(), in a group, with auto commit.

Each works through its records at a bounded rate, so that a backlog takes a while to read again.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from testbed.traffic import IMPATIENT, Place, Worker
from testbed.waiting import wait_until

T = TypeVar("T")


class Rewind(NamedTuple):
    """A consumer was given the record `to` where `position` was next. at: ms since the epoch, when it was given."""

    at: int
    topic: str
    partition: int
    position: int
    to: int


class Commit(NamedTuple):
    """Kafka has confirmed a committed offset. at: ms since the epoch, when it did."""

    at: int
    topic: str
    partition: int
    offset: int


class RecordingConsumer(Worker):
    """What all habits share: auto.offset.reset=earliest, a bounded rate, short queues, and a record of events.

    positions: the next offset per partition it has. rewinds: the times it went back. resets: librdkafka's own lines
    about offset resets. commits: what Kafka has confirmed, committed: the last of it per partition. errors: what came
    in place of records.
    """

    auto_commit: ClassVar[bool] = False
    """Whether librdkafka commits by itself."""

    def __init__(self, bootstrap_servers: str, group: str, *, rate: float = 2000, commit_ms: int = 500) -> None:
        """rate: records per second over all partitions. commit_ms: the time between commits."""
        super().__init__(group)
        self.group = group
        self.positions: dict[Place, int] = {}
        self.commits: list[Commit] = []
        self.committed: dict[Place, int] = {}
        self.rewinds: list[Rewind] = []
        self.resets: list[str] = []
        self.errors: list[KafkaError] = []
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
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 1000,
                "fetch.wait.max.ms": 100,
                # Short queues: no partition waits long behind the backlog of another.
                "fetch.message.max.bytes": 20_000,
                "queued.min.messages": 500,
                "fetch.queue.backoff.ms": 20,
                "on_commit": self._on_commit,
                **IMPATIENT,
            },
            logger=self._logger(),
        )

    def wait_until_at(self, topic: str, partition: int, offset: int, seconds: float = 60) -> None:
        """Wait until its position is at least this offset."""
        what = f"{self.group} to be at {offset} in {topic}[{partition}]"
        self._wait(lambda: self.positions.get((topic, partition), -1) >= offset, what, seconds)

    def wait_for_rewind(self, topic: str, partition: int, seconds: float = 60) -> Rewind:
        """Wait until it has gone back in this partition, and tell the first time."""

        def mine() -> Rewind | None:
            return next((one for one in self.rewinds if (one.topic, one.partition) == (topic, partition)), None)

        return self._wait(mine, f"{self.group} to go back in {topic}[{partition}]", seconds)

    def _wait(self, condition: Callable[[], T | None], what: str, seconds: float) -> T:
        def alive() -> T | None:
            self.raise_failure()
            return condition()

        return wait_until(alive, what, seconds)

    def _step(self) -> None:
        now = time.monotonic()
        self._paid_until = max(self._paid_until, now - 0.1)  # what was not used in 100 ms is not saved up
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
        """Commit backwards too: the committed offset follows the position wherever that goes."""
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
        """A logger of its own, which keeps the lines about resets and drops the rest."""
        logger, handler = logging.getLogger(f"testbed.{self.group}.{id(self)}"), logging.Handler()
        logger.propagate = False
        handler.emit = lambda record: self.resets.append(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(lambda record: "offset reset" in record.getMessage())
        logger.addHandler(handler)
        return logger


class ExplicitConsumer(RecordingConsumer):
    """Takes its partitions by assign(), as Flink does: a group without members, with explicit commits."""

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
    """A member of its group, with explicit commits."""

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topics: Iterable[str],
        *,
        rate: float = 2000,
        commit_ms: int = 500,
    ) -> None:
        super().__init__(bootstrap_servers, group, rate=rate, commit_ms=commit_ms)
        self._consumer.subscribe(list(topics), on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Commit what is done, as a good member does, and forget the partitions: another goes on from there."""
        done = [
            TopicPartition(place.topic, place.partition, self.positions[place.topic, place.partition])
            for place in places
            if (place.topic, place.partition) in self.positions
        ]
        if done:
            try:
                consumer.commit(offsets=done, asynchronous=False)
            except KafkaException as error:  # the group has moved on; the next owner reads a little again
                self.errors.append(error.args[0])
        self._on_lost(consumer, places)

    def _on_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self.positions.pop((place.topic, place.partition), None)


class AutoCommitConsumer(SubscribedConsumer):
    """A member that leaves commits to librdkafka, which so hides a reset.

    It commits by itself only what is of a newer leader epoch, or further in the same, than what is committed: nothing
    of what is read again until that comes to the records written by the leader that caused the reset.
    """

    auto_commit = True

    def _commit(self) -> None:
        """Librdkafka does it, of every record that `consume` has returned."""

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._on_lost(consumer, places)


def _now() -> int:
    return time.time_ns() // 1_000_000
