"""The topics of a Streams application: writing its input, and reading topics whole (read_committed)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from testbed.streams.app import StreamsApp
from testbed.traffic import IMPATIENT, Worker
from testbed.waiting import wait_until

NUMBERS: Mapping[str, Callable[[bytes], int]] = {
    "long": lambda value: int.from_bytes(value, "big", signed=True),
    "int": lambda value: int.from_bytes(value, "big", signed=True),
    "json": lambda value: int(json.loads(value)["value"]),
}
"""Functions that read the number in a value, by format."""


class Record(NamedTuple):
    """A record. at: its timestamp (ms), which in a changelog is that of its input, not of the write."""

    partition: int
    offset: int
    at: int
    key: bytes
    value: bytes | None


class Decrease(NamedTuple):
    """A key whose number is lower than before. at: the timestamp of the later record (ms)."""

    partition: int
    key: bytes
    before: int
    before_offset: int
    after: int
    after_offset: int
    at: int


def records(bootstrap_servers: str, topic: str) -> list[Record]:
    """Return all committed records of the topic, in order per partition. Raises KafkaException."""
    with _reader(bootstrap_servers) as consumer:
        behind = set(_partitions(consumer, topic))
        # Not 0, which is out of range if a partition's first records were deleted.
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in behind])
        read: list[Record] = []
        while behind:
            for message in consumer.consume(10_000, timeout=1):
                partition, error = message.partition(), message.error()
                if error is None:
                    read.append(
                        Record(
                            partition or 0,
                            message.offset() or 0,
                            message.timestamp()[1],
                            message.key() or b"",
                            message.value(),
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # the client has no public name for it
                    behind.discard(partition or 0)
                else:
                    raise KafkaException(error)
        return read


def find_decreases(read: Iterable[Record], number: Callable[[bytes], int]) -> list[Decrease]:
    """Return every decrease of a key's number; after a tombstone the key starts again."""
    last: dict[tuple[int, bytes], tuple[int, int]] = {}
    decreases = []
    for partition, offset, at, key, value in read:
        if value is None:
            last.pop((partition, key), None)
            continue
        now = number(value)
        before = last.get((partition, key))
        if before is not None and now < before[0]:
            decreases.append(Decrease(partition, key, *before, now, offset, at))
        last[partition, key] = (now, offset)
    return decreases


def last_values(read: Iterable[Record], number: Callable[[bytes], int]) -> dict[tuple[int, bytes], int]:
    """Return the last number of each (partition, key), without deleted keys."""
    last = {(record.partition, record.key): record.value for record in read}
    return {place: number(value) for place, value in last.items() if value is not None}


def log_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return the high watermark of each partition. Raises KafkaException."""
    with _reader(bootstrap_servers) as consumer:
        partitions = _partitions(consumer, topic)
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in partitions
        }


KEYS = tuple(f"key-{number:02d}" for number in range(24))
"""Enough keys for every one of four partitions."""


def feed(
    bootstrap_servers: str, topic: str, rounds: int, *, value: str | None = None, keys: Sequence[str] = KEYS
) -> None:
    """Write `rounds` records of each key, partitioned as Java's clients do, and wait for their acknowledgement.

    value: by default the round's number, from 1 on.
    """
    producer = _producer(bootstrap_servers)
    for number in range(1, rounds + 1):
        for key in keys:
            producer.produce(topic, key=key, value=value or str(number))
        producer.poll(0)
    unacknowledged = producer.flush(60)
    if unacknowledged:
        msg = f"{unacknowledged} records were not written to {topic}."
        raise KafkaException(msg)


class Trickle(Worker):
    """Writes a record of each key repeatedly until its context ends, so that an application is never idle."""

    def __init__(self, bootstrap_servers: str, topic: str, *, every: float = 0.05) -> None:
        """Prepare the producer. every: seconds between two records of a key."""
        super().__init__("trickle")
        self.rounds = 0
        self._topic = topic
        self._every = every
        self._producer = _producer(bootstrap_servers)

    def _step(self) -> None:
        for key in KEYS:
            self._producer.produce(self._topic, key=key, value="1")
        self._producer.poll(0)
        self.rounds += 1
        self._stopped.wait(self._every)

    def _finish(self) -> None:
        self._producer.flush(30)


def wait_until_processed(app: StreamsApp, seconds: float = 120) -> None:
    """Wait until the application has processed and committed all of its current input."""
    client = Consumer({"bootstrap.servers": app.bootstrap_servers, "group.id": app.application_id, **_QUIET})
    try:
        for topic in app.source_topics:
            ends: dict[int, int] = {}
            # The last record, not the log end offset: 2.x does not commit past the marker that ends a transaction.
            for record in records(app.bootstrap_servers, topic):
                ends[record.partition] = record.offset + 1

            def behind(topic: str = topic, ends: dict[int, int] = ends) -> list[TopicPartition]:
                places = [TopicPartition(topic, partition) for partition in ends]
                committed = client.committed(places, timeout=30) if places else []
                return [place for place in committed if place.offset < ends[place.partition]]

            wait_until(lambda: not behind(), f"{app.application_id} to have processed {topic}", seconds)
    finally:
        client.close()


_QUIET = {"enable.auto.commit": False, "log_level": 0, **IMPATIENT}


def _producer(bootstrap_servers: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "log_level": 0, **IMPATIENT}
    return Producer({**settings, "partitioner": "murmur2_random"})  # the partitioner of Java's clients


@contextmanager
def _reader(bootstrap_servers: str) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "testbed-reader",  # it never commits
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
        **IMPATIENT,
    }
    consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=30).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)
