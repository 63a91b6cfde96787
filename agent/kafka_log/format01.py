"""Compressed wrapper messages of formats 0 and 1 (before Kafka 0.11), and the inner messages they hold.

Layouts: org.apache.kafka.common.record.LegacyRecord and AbstractLegacyRecordBatch.
"""

import struct
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from agent.kafka_log import MAX_OFFSET, Batch
from agent.kafka_log.codecs import UndecodableError, decompress
from agent.kafka_log.faults import INNER_CORRUPT, Fault, inner_offsets_decrease, undecodable

# Offset i64, length i32, CRC u32 (over all that follows it), magic i8, attributes i8.
_message_header = struct.Struct(">qiIbb").unpack_from
_int = struct.Struct(">i").unpack_from
_FEW = 16
"""So few messages are read faster one by one than with a dozen calls of numpy."""


class InnerMessages(NamedTuple):
    """The messages of one wrapper.

    first, last: offsets as stored; format 1 counts them from the batch's own base. decreases: (previous, next) offsets
    as stored, wherever an offset is not above the one before it. corrupt: the first message with a wrong checksum: its
    offset as stored, the stored CRC and the computed one.
    """

    first: int
    last: int
    records: int
    decreases: tuple[tuple[int, int], ...]
    corrupt: tuple[int, int, int] | None


def unwrap(wrapper: Batch, raw: bytes, faults: list[Fault]) -> Batch:
    """Return the wrapper with its first offset and number of records, and add the faults of its inner messages.

    raw: the whole wrapper message, which is returned as it is if it cannot be decoded.
    """
    offset = wrapper.last_offset
    try:
        inner = read_messages(decompress(wrapper.codec, _read_value(raw, wrapper.magic), magic=wrapper.magic))
    except UndecodableError as error:
        faults.append(undecodable(wrapper, str(error)))
        return wrapper
    # In format 1 inner offsets count from the batch's own base; if the wrapper's offset is 0 they are absolute, as
    # some versions of librdkafka wrote them (AbstractLegacyRecordBatch.DeepRecordsIterator).
    base = offset - inner.last if wrapper.magic and offset else 0
    if base < 0 or (not wrapper.magic and inner.last != offset):
        detail = f"the wrapper's offset is {offset}, that of its last inner message {inner.last}"
        faults.append(undecodable(wrapper, detail))
        return wrapper
    first = min(base + inner.first, MAX_OFFSET)
    batch = wrapper._replace(first_offset=first, last_offset=base + inner.last, records=inner.records)
    if inner.decreases:
        pairs = [(base + before, base + after) for before, after in inner.decreases]
        faults.append(inner_offsets_decrease(batch, pairs))
    if inner.corrupt:
        relative, stored, computed = inner.corrupt
        faults.append(
            Fault(
                "crc_mismatch",
                batch.position,
                batch.size,
                {"offset": base + relative, "crc": stored},
                {"offset": base + relative, "crc": computed},
                batch.timestamp,
                f"inside the {batch.codec} batch the message at offset {base + relative} has a wrong checksum",
                INNER_CORRUPT,
            )
        )
    return batch


def _read_value(raw: bytes, magic: int) -> bytes:
    """Return the value of a message. Raises UndecodableError if it is null or its length is wrong."""
    at = 18 + 8 * magic
    try:
        at += 4 + max(_int(raw, at)[0], 0)
        (length,) = _int(raw, at)
    except struct.error as error:
        msg = "the key's length is larger than the message"
        raise UndecodableError(msg) from error
    if length < 0 or at + 4 + length != len(raw):
        msg = f"the value has a length of {length} bytes, but {len(raw) - at - 4} are left"
        raise UndecodableError(msg)
    return raw[at + 4 :]


def read_messages(unpacked: bytes) -> InnerMessages:
    """Read the inner messages of a decompressed wrapper. Raises UndecodableError if one is incomplete or nested.

    As AbstractLegacyRecordBatch.DeepRecordsIterator does, but stricter: Kafka ignores an
    incomplete last message.
    """
    return _read_equal_sized(unpacked) or _read_one_by_one(unpacked)


def _read_equal_sized(unpacked: bytes) -> InnerMessages | None:
    """Read messages of one size in offset order, as machines write them, without an object for each; else None."""
    if len(unpacked) < 26:
        return None
    size = 12 + _int(unpacked, 8)[0]
    if size < 26 or len(unpacked) % size or len(unpacked) < _FEW * size:
        return None
    messages = np.frombuffer(unpacked, _dtype(size))
    offsets = messages["offset"].astype(np.int64)
    if (
        (messages["length"] != size - 12).any()
        or (messages["attributes"] & 7).any()
        or offsets[0] < 0
        or (offsets[1:] <= offsets[:-1]).any()
        or (np.fromiter(map(crc32, messages["covered"].tolist()), np.uint32, len(messages)) != messages["crc"]).any()
    ):
        return None
    return InnerMessages(int(offsets[0]), int(offsets[-1]), len(messages), (), None)


@lru_cache(maxsize=256)
def _dtype(message_size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": ["offset", "length", "crc", "attributes", "covered"],
            "formats": [">i8", ">i4", ">u4", "i1", f"V{message_size - 16}"],
            "offsets": [0, 8, 12, 17, 16],
            "itemsize": message_size,
        }
    )


def _read_one_by_one(unpacked: bytes) -> InnerMessages:
    position, end = 0, len(unpacked)
    count, first, last, all_attributes = 0, 0, 0, 0
    decreases: list[tuple[int, int]] = []
    corrupt: tuple[int, int, int] | None = None
    previous = -1
    try:
        while position < end:
            offset, size, stored, _magic, attributes = _message_header(unpacked, position)
            next_position = position + 12 + size
            if size < 14 or next_position > end:
                msg = f"inner message {count} has a length of {size} bytes, but {end - position - 12} are left"
                raise UndecodableError(msg)
            # The copy of a slice is faster than a memoryview for messages below 1 KiB, which most are.
            if crc32(unpacked[position + 16 : next_position]) != stored and corrupt is None:
                corrupt = (offset, stored, crc32(unpacked[position + 16 : next_position]))
            if offset <= previous:
                decreases.append((last, offset))
            if not count:
                first = offset
            previous = last = offset
            all_attributes |= attributes
            count += 1
            position = next_position
    except struct.error as error:
        msg = f"inner message {count} is cut short: {end - position} bytes are left"
        raise UndecodableError(msg) from error
    if not count:
        msg = "no inner messages"
        raise UndecodableError(msg)
    if all_attributes & 7:
        msg = "an inner message is itself compressed"
        raise UndecodableError(msg)
    return InnerMessages(first, last, count, tuple(decreases), corrupt)
