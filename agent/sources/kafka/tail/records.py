"""Records of `__consumer_offsets`, as Kafka's group coordinators write them. Makes no calls.

The layouts are those of Kafka's OffsetCommitKey, OffsetCommitValue (versions 0 to 4), and GroupMetadataKey.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from confluent_kafka import Message
from numpy.typing import NDArray

from agent.model.batches import CommitKey, Integers
from agent.model.text import visible

_COMMIT_KEYS = (0, 1)
_GROUP_KEYS = range(2, 24)
"""Key versions 2 (classic groups) and 3 to 23 (KIP-848, KIP-932, KIP-1071): all begin with the group."""

_WRITTEN_KEY = 1
"""The version of commit keys that every broker since 0.8.2 writes."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Records(NamedTuple):
    """Records of `__consumer_offsets`; those of a partition in order of their offsets.

    keys: None of a record without one. values: None of a tombstone. timestamps: of the records, ms; read of tombstones
    only.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Records":
        """Return the records of messages as a consumer returns them."""
        values = list(map(Message.value, messages))
        timestamps = [] if all(values) else [message.timestamp()[1] for message in messages]
        return cls(list(map(Message.key, messages)), values, timestamps)


class GroupKey(NamedTuple):
    """A group whose state, members or assignment a record is about."""

    group: str


class UndecodableError(Exception):
    """A key that is not of a known layout; the message says why."""


def decode_key(key: bytes) -> CommitKey | GroupKey:
    """Return what a record is about. Raises UndecodableError."""
    try:
        (version,) = _INT16.unpack_from(key)
        if version in _COMMIT_KEYS:
            group, at = _string(key, 2)
            topic, at = _string(key, at)
            (partition,) = _INT32.unpack_from(key, at)
            return CommitKey(group, topic, partition)
        if version in _GROUP_KEYS:
            return GroupKey(_string(key, 2)[0])
    except (struct.error, UnicodeDecodeError) as error:
        msg = f"key {visible(repr(key[:40]))}: {error}"
        raise UndecodableError(msg) from error
    msg = f"key of version {version}"
    raise UndecodableError(msg)


def encode_key(key: CommitKey) -> bytes:
    """Return the key of the records of these commits, as brokers write it."""
    group, topic = key.group.encode(), key.topic.encode()
    strings = _INT16.pack(len(group)) + group + _INT16.pack(len(topic)) + topic
    return _INT16.pack(_WRITTEN_KEY) + strings + _INT32.pack(key.partition)


def _string(content: bytes, at: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(content, at)
    begin, end = at + 2, at + 2 + length
    if length < 0 or end > len(content):
        msg = f"a string of {length} bytes at {at}"
        raise struct.error(msg)
    return content[begin:end].decode(), end


class CommitValues(NamedTuple):
    """The values of commits: offsets, leader epochs (-1: unknown) and commit timestamps (ms), one of each per value.

    undecodable: the number of a value -> why it is not of a known layout; its offset is -1.
    """

    offsets: Integers
    leader_epochs: Integers
    timestamps: Integers
    undecodable: Mapping[int, str]


class _Layout(NamedTuple):
    """Where a version of the value has its fields, in bytes from the start.

    length: of the length of the metadata; after: how many bytes follow the commit timestamp at least and at most.
    """

    has_epoch: bool
    length_at: int
    length_type: Literal[">i2", "u1"]
    after: range


_LAYOUTS: Mapping[int, _Layout] = {
    0: _Layout(has_epoch=False, length_at=10, length_type=">i2", after=range(1)),
    1: _Layout(has_epoch=False, length_at=10, length_type=">i2", after=range(8, 9)),
    2: _Layout(has_epoch=False, length_at=10, length_type=">i2", after=range(1)),
    3: _Layout(has_epoch=True, length_at=14, length_type=">i2", after=range(1)),
    4: _Layout(has_epoch=True, length_at=14, length_type="u1", after=range(1, 1 << 16)),
}
_SHORTEST = 20
_LONGER = (1 << 7, 1 << 14)
"""From which lengths on that of a compact string has one byte more: seven bits are in each."""


def decode_values(values: Sequence[bytes]) -> CommitValues:
    """Return the fields of the values. Those of one layout and length are decoded together."""
    count = len(values)
    undecodable: dict[int, str] = {}
    offsets, leader_epochs, timestamps = (np.full(count, -1, np.int64) for _ in range(3))
    decoded = CommitValues(offsets, leader_epochs, timestamps, undecodable)
    lengths = np.fromiter(map(len, values), np.int64, count)
    for length in np.unique(lengths).tolist():
        numbers = np.flatnonzero(lengths == length)
        chosen = values if len(numbers) == count else [values[number] for number in numbers.tolist()]
        if length < _SHORTEST:
            undecodable.update(dict.fromkeys(numbers.tolist(), f"value of {length} bytes"))
        else:
            block = np.frombuffer(b"".join(chosen), np.uint8).reshape(-1, length)
            undecodable.update(_decode_block(block, numbers, decoded))
    return decoded


def _decode_block(block: NDArray[np.uint8], numbers: Integers, decoded: CommitValues) -> Iterator[tuple[int, str]]:
    """Decode values of one length into the places of these numbers; yield those that are not of a known layout."""
    versions = _column(block, 0, ">i2")
    for version in np.unique(versions).tolist():
        of_version = np.flatnonzero(versions == version)
        layout = _LAYOUTS.get(version)
        if layout is None:
            yield from ((number, f"value of version {version}") for number in numbers[of_version].tolist())
            continue
        lengths = _metadata_lengths(block[of_version], layout)
        for length in np.unique(lengths).tolist():
            rows = of_version[lengths == length]
            begin = layout.length_at + np.dtype(layout.length_type).itemsize
            if layout.length_type == "u1":
                begin += sum(length + 1 >= limit for limit in _LONGER)
            end = begin + max(length, 0) + 8
            if block.shape[1] - end not in layout.after:
                reason = f"value of version {version} with {length} bytes of metadata and {block.shape[1]} in all"
                yield from ((number, reason) for number in numbers[rows].tolist())
                continue
            chosen, places = block[rows], numbers[rows]
            decoded.offsets[places] = _column(chosen, 2, ">i8")
            decoded.timestamps[places] = _column(chosen, end - 8, ">i8")
            if layout.has_epoch:
                decoded.leader_epochs[places] = _column(chosen, 10, ">i4")


def _metadata_lengths(block: NDArray[np.uint8], layout: _Layout) -> Integers:
    """Return the lengths of the metadata, -1 for none. The compact strings of version 4 have one more than that."""
    lengths = _column(block, layout.length_at, layout.length_type)
    if layout.length_type == "u1":
        for place, limit in enumerate(_LONGER, 1):
            more = block[:, layout.length_at + place].astype(np.int64)
            has_more = lengths >= limit  # the bit that says so is the length's highest so far
            lengths = np.where(has_more, lengths - limit + (more << 7 * place), lengths)
        lengths = lengths - 1
    return lengths


def _column(block: NDArray[np.uint8], at: int, kind: str) -> Integers:
    """Return the integers of this kind that begin at that byte of each row."""
    width = np.dtype(kind).itemsize
    column = np.ascontiguousarray(block[:, at : at + width]).view(kind)
    return column.reshape(-1).astype(np.int64)
