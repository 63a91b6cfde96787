"""Changelogs drawn by seed, written in transactions to a real broker, and the expected findings in plain Python."""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from testbed.streams.topics import Decrease, Record, find_decreases

FORMS: Mapping[str, tuple[Callable[[int], bytes], Callable[[bytes], int]]] = {
    "long": (
        lambda number: number.to_bytes(8, "big", signed=True),
        lambda value: int.from_bytes(value, "big", signed=True),
    ),
    "int": (
        lambda number: number.to_bytes(4, "big", signed=True),
        lambda value: int.from_bytes(value, "big", signed=True),
    ),
    "json:sum.total": (
        # Now and then as 15.0: a whole number too.
        lambda number: json.dumps(
            {"n": [1], "sum": {"total": float(number) if number % 5 == 0 and number < 1 << 53 else number}}
        ).encode(),
        lambda value: int(json.loads(value)["sum"]["total"]),
    ),
}
"""Encoder and decoder of a number, by the form of the value."""

UNREADABLE: Mapping[str, tuple[bytes, ...]] = {
    "long": (b"", b"\x00" * 4, b"12", b"\x00" * 9),
    "int": (b"", b"\x00" * 8, b"7"),
    "json:sum.total": (
        b"", b"none", b'{"sum": 1}', b'{"sum": {"total": null}}', b'{"sum": {"total": "many"}}',
        b'{"sum": {"total": 1.5}}', b'{"sum": {"total": true}}', b'{"sum": {"total": 9223372036854775808}}',
    ),
}  # fmt: skip
"""Values that are not numbers of the form."""

_HIGH: Mapping[str, int] = {"long": (1 << 63) - 10_000, "int": (1 << 31) - 10_000, "json:sum.total": 1 << 62}
"""Where some keys start: together they decrease by more than a long holds."""

_YESTERDAY = time.time_ns() // 1_000_000 - 86_400_000


class Expected(NamedTuple):
    """Expected episode of a partition's decreases in a range of offsets."""

    keys: int
    restarted: int
    total: int
    first_offset: int
    last_offset: int
    unwritten: int
    live_keys: int


def write(bootstrap_servers: str, topic: str, form: str, *, partitions: int, seed: int, records: int = 3_000) -> None:
    """Write a changelog of counts that are lost now and then, wholly or in part.

    A third of the transactions is aborted, with lower values in them; keys are deleted, start again, and exist in
    several partitions; some values are not numbers.
    """
    chance = random.Random(seed)  # noqa: S311 - drawn by seed so that a run can be repeated
    encode = FORMS[form][0]
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    counts: dict[tuple[int, bytes], int] = {}
    kept: dict[tuple[int, bytes], int] = {}
    written = 0
    while written < records:
        producer.begin_transaction()
        aborted = chance.random() < 0.33
        working = dict(counts)
        for _ in range(chance.randrange(1, 60)):
            place = (chance.randrange(partitions), _key(chance.randrange(40)))
            number = (
                0 if aborted else working.get(place, chance.choice((0, 0, 0, -7, _HIGH[form]))) + chance.randrange(3)
            )
            what = chance.random()
            if what < 0.03:
                value = None
                working.pop(place, None)
            elif what < 0.06:
                value = chance.choice(UNREADABLE[form])
            else:
                value = encode(number)
                working[place] = number
            producer.produce(topic, value, place[1], place[0], timestamp=_YESTERDAY + written)
            written += 1
        if aborted:
            producer.flush()  # else they would never have been in the log
            producer.abort_transaction(60)
            continue
        producer.commit_transaction(60)
        counts = working
        if chance.random() < 0.1:
            kept = dict(counts)
        if chance.random() < 0.15:  # the task comes back with what a checkpoint held, or with nothing
            lost = chance.randrange(partitions)
            old = kept if chance.random() < 0.5 else {}
            counts = {place: old.get(place, 0) if place[0] == lost else count for place, count in counts.items()}


def _key(number: int) -> bytes:
    """Return a text key, an empty key, a binary key, or a windowed key."""
    if number in (3, 4, 5):
        return b"windowed" + (_YESTERDAY + number * 300_000).to_bytes(8, "big") + bytes(4)
    return {0: b"", 1: b"\xff\x00", 2: b"\x00" * 8}.get(number, f"key-{number}".encode())


def expected(read: Sequence[Record], form: str, low: int, high: int) -> Expected | None:
    """Return the expected episode of one partition, decreases from offset low to below high; None without any."""
    number = FORMS[form][1]
    fell = [fall for fall in find_decreases(read, number) if low <= fall.after_offset < high]
    if not fell:
        return None
    last = {record.key: record for record in read}
    held = [entry for entry in last.values() if entry.value is not None]
    return Expected(
        keys=len({fall.key for fall in fell}),
        restarted=len({fall.key for fall in fell if fall.after <= began(read, fall, number)}),
        total=sum(fall.before - fall.after for fall in fell),
        first_offset=fell[0].after_offset,
        last_offset=fell[-1].after_offset,
        unwritten=sum(record.offset < fell[0].after_offset for record in held),
        live_keys=len(held),
    )


def began(read: Iterable[Record], fall: Decrease, number: Callable[[bytes], int]) -> int:
    """Return the first value of the key since its last tombstone before the decrease."""
    first = fall.before
    fresh = True
    for record in read:
        if record.key == fall.key and record.offset < fall.after_offset:
            if record.value is None:
                fresh = True
            elif fresh:
                first, fresh = number(record.value), False
    return first


def readable(read: Iterable[Record], form: str) -> list[Record]:
    """Return the records whose values are numbers of the form."""
    return [record for record in read if record.value not in UNREADABLE[form]]


def by_partition(read: Iterable[Record]) -> dict[int, list[Record]]:
    """Return the records of each partition."""
    parted: dict[int, list[Record]] = defaultdict(list)
    for record in read:
        parted[record.partition].append(record)
    return parted
