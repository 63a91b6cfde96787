"""What a wrapper message of the formats 0 and 1 holds: its inner messages, walked without an object for each."""

import struct
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from agent.kafka_log.codecs import UndecodableError

# Offset i64, length i32, CRC u32 (over all that follows it), magic i8, attributes i8.
_inner = struct.Struct(">qiIbb").unpack_from
_size = struct.Struct(">i").unpack_from
_FEW = 16
"""Messages that are walked sooner than numpy is called a dozen times."""


class Inner(NamedTuple):
    """The messages of one wrapper. first, last: offsets as stored, which format 1 counts from the batch's own base.

    falls: where an offset is not above the one before it, both as stored. bad: the first inner message whose checksum
    is wrong: its offset as stored, the stored CRC and that of the bytes.
    """

    first: int
    last: int
    records: int
    falls: tuple[tuple[int, int], ...]
    bad: tuple[int, int, int] | None


def walk(unpacked: bytes) -> Inner:
    """The inner messages of a decompressed wrapper. Raises UndecodableError where they are cut short or nested.

    As AbstractLegacyRecordBatch.DeepRecordsIterator reads them, and stricter: Kafka passes over a last message that is
    cut short.
    """
    return _alike(unpacked) or _one_by_one(unpacked)


def _alike(unpacked: bytes) -> Inner | None:
    """Messages that are all of one size and in order, as machines write them; None where they are not."""
    if len(unpacked) < 26:
        return None
    size = 12 + _size(unpacked, 8)[0]
    if size < 26 or len(unpacked) % size or len(unpacked) < _FEW * size:
        return None
    messages = np.frombuffer(unpacked, _of_size(size))
    offsets = messages["offset"].astype(np.int64)
    if (
        (messages["length"] != size - 12).any()
        or (messages["attributes"] & 7).any()
        or offsets[0] < 0
        or (offsets[1:] <= offsets[:-1]).any()
        or (np.fromiter(map(crc32, messages["covered"].tolist()), np.uint32, len(messages)) != messages["crc"]).any()
    ):
        return None
    return Inner(int(offsets[0]), int(offsets[-1]), len(messages), (), None)


@lru_cache(maxsize=256)
def _of_size(size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": ["offset", "length", "crc", "attributes", "covered"],
            "formats": [">i8", ">i4", ">u4", "i1", f"V{size - 16}"],
            "offsets": [0, 8, 12, 17, 16],
            "itemsize": size,
        }
    )


def _one_by_one(unpacked: bytes) -> Inner:
    position, end = 0, len(unpacked)
    count, first, last, nested = 0, 0, 0, 0
    falls: list[tuple[int, int]] = []
    bad: tuple[int, int, int] | None = None
    before = -1
    try:
        while position < end:
            offset, size, stored, _magic, attributes = _inner(unpacked, position)
            following = position + 12 + size
            if size < 14 or following > end:
                msg = f"inner message {count} claims {size} bytes, {end - position - 12} are there"
                raise UndecodableError(msg)
            # The copy of a slice is faster than a memoryview for messages below 1 KiB, which most are.
            if crc32(unpacked[position + 16 : following]) != stored and bad is None:
                bad = (offset, stored, crc32(unpacked[position + 16 : following]))
            if offset <= before:
                falls.append((last, offset))
            if not count:
                first = offset
            before = last = offset
            nested |= attributes
            count += 1
            position = following
    except struct.error as error:
        msg = f"inner message {count} is cut short: {end - position} bytes are left"
        raise UndecodableError(msg) from error
    if not count:
        msg = "no inner messages"
        raise UndecodableError(msg)
    if nested & 7:
        msg = "an inner message is itself compressed"
        raise UndecodableError(msg)
    return Inner(first, last, count, tuple(falls), bad)
