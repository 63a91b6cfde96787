"""What a wrapper message of the formats 0 and 1 holds: its inner messages, walked without an object for each."""

import struct
from typing import NamedTuple
from zlib import crc32

from agent.segments.codecs import UndecodableError

# Offset i64, length i32, CRC u32 (over all that follows it), magic i8, attributes i8.
_inner = struct.Struct(">qiIbb").unpack_from


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
