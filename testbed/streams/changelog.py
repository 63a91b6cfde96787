"""Topics read from end to end in plain Python, read_committed: the truth about a store.

What was done to the store: faults.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from testbed.traffic import IMPATIENT

NUMBERS: Mapping[str, Callable[[bytes], int]] = {
    "long": lambda value: int.from_bytes(value, "big", signed=True),
    "int": lambda value: int.from_bytes(value, "big", signed=True),
    "json": lambda value: int(json.loads(value)["value"]),
}
"""The number in a value, by the name of the format."""


class Record(NamedTuple):
    """One record. at: its timestamp (ms), which in a changelog is its input's, not when it was written."""

    partition: int
    offset: int
    at: int
    key: bytes
    value: bytes | None


class Decrease(NamedTuple):
    """A key whose number is lower than the one before. at: the timestamp of the later record (ms)."""

    partition: int
    key: bytes
    before: int
    before_offset: int
    after: int
    after_offset: int
    at: int


def records(bootstrap_servers: str, topic: str) -> list[Record]:
    """All committed records that the topic holds now, in order per partition. Raises KafkaException."""
    with _reader(bootstrap_servers) as consumer:
        behind = set(_partitions(consumer, topic))
        # A logical offset: with 0, a partition whose first records were deleted would be out of range.
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
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                    behind.discard(partition or 0)
                else:
                    raise KafkaException(error)
        return read


def falls(read: Iterable[Record], number: Callable[[bytes], int]) -> list[Decrease]:
    """Each record whose number is lower than its key's before it; a tombstone lets the key begin anew."""
    last: dict[tuple[int, bytes], tuple[int, int]] = {}
    found = []
    for partition, offset, at, key, value in read:
        if value is None:
            last.pop((partition, key), None)
            continue
        now = number(value)
        before = last.get((partition, key))
        if before is not None and now < before[0]:
            found.append(Decrease(partition, key, *before, now, offset, at))
        last[partition, key] = (now, offset)
    return found


def last_values(read: Iterable[Record], number: Callable[[bytes], int]) -> dict[tuple[int, bytes], int]:
    """The number of each key (partition, key) after the last record; deleted keys are left out."""
    last = {(one.partition, one.key): one.value for one in read}
    return {place: number(value) for place, value in last.items() if value is not None}


def log_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The high watermark of each partition. Raises KafkaException."""
    with _reader(bootstrap_servers) as consumer:
        partitions = _partitions(consumer, topic)
        return {one: consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)[1] for one in partitions}


@contextmanager
def _reader(bootstrap_servers: str) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "testbed-reader",  # of which nothing is ever committed
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
