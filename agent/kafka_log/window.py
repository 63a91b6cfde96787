"""A part of a file in memory, moved over the file on demand, and what can be said of its bytes without decoding them.

Memory stays bounded: a chunk, or one batch of at most MOST_HELD bytes.
"""

import io
import struct
from collections.abc import Callable, Iterator
from typing import Protocol
from zlib import crc32

import numpy as np
from crc32c import crc32c

CHUNK = 2 << 20
MOST_HELD = 64 << 20
"""Bytes of a batch that is loaded whole; of a larger one, or of one whose length is corrupt, only the CRC is taken."""

LEAST_LENGTHS = (14, 22, 49)
"""What an entry's length is at least, by magic: LegacyRecord.RECORD_OVERHEAD_V0 and _V1, a format 2 header of 61."""

HEAD = 18
"""Bytes that `head` wants: offset i64, length i32, CRC (formats 0, 1) or leader epoch, magic i8, attributes i8."""

head = struct.Struct(">qiIbb").unpack_from
_lengths = struct.Struct(">i").unpack_from


class RandomAccess(Protocol):
    """A binary file that can be read anywhere: a local file, or a pyarrow NativeFile."""

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> object: ...
    def read(self, size: int, /) -> bytes: ...


class Window:
    """The bytes of a file from `start` on. size: where the file ends; falls where it was cut while it is read."""

    def __init__(self, file: RandomAccess, size: int) -> None:
        self._file = file
        self.size = size
        self.start = 0
        self.bytes = b""
        self.view = memoryview(self.bytes)

    def cover(self, position: int, count: int) -> int:
        """Hold the `count` bytes from `position` on; where they begin in `bytes`. Behind the file's end stand zeros."""
        at = position - self.start
        if at < 0 or at + count > len(self.bytes):
            left = max(self.size - position, 0)
            want = min(max(count, CHUNK), left)
            self._file.seek(position)
            self.bytes = bytes(self._file.read(want))
            if len(self.bytes) < want:
                self.size = position + len(self.bytes)
            if len(self.bytes) < count:
                self.bytes += bytes(count - len(self.bytes))
            self.view = memoryview(self.bytes)
            self.start, at = position, 0
        return at

    def pieces(self, position: int, end: int) -> Iterator[memoryview]:
        """The bytes from position to end in pieces of at most CHUNK."""
        while position < end:
            count = min(CHUNK, end - position)
            at = self.cover(position, count)
            yield self.view[at : at + count]
            position += count

    def checksum(self, position: int, end: int, magic: int) -> int:
        """CRC-32C in format 2, else CRC-32, of the bytes from position to end."""
        value = 0
        function: Callable[[memoryview, int], int] = crc32c if magic == 2 else crc32
        for piece in self.pieces(position, end):
            value = function(piece, value)
        return value

    def is_zero(self, position: int, end: int) -> bool:
        """Whether all bytes from position to end are zero."""
        return not any(np.frombuffer(piece, dtype=np.uint8).any() for piece in self.pieces(position, end))

    def extent(self, position: int) -> int | None:
        """The size of the entry whose header stands at a position, if it looks like one and the file holds it whole."""
        if self.size - position < HEAD:
            return None
        at = self.cover(position, HEAD)
        _, length, _, magic, _ = head(self.bytes, at)
        if not 0 <= magic <= 2 or length < LEAST_LENGTHS[magic] or position + 12 + length > self.size:
            return None
        return 12 + int(length)

    def holds_entry(self, position: int) -> bool:
        """Whether an entry stands at a position whose checksum is right."""
        size = self.extent(position)
        if size is None:
            return False
        at = self.cover(position, 21)
        magic = self.bytes[at + 16]
        stored = int.from_bytes(self.bytes[at + 17 : at + 21] if magic == 2 else self.bytes[at + 12 : at + 16])
        return self.checksum(position + (21 if magic == 2 else 16), position + size, magic) == stored

    def next_entry(self, position: int, above: int, limit: int) -> int | None:
        """Where the next entry begins whose checksum is right and whose offset is above `above`, up to `limit`.

        The offset is asked for because the messages inside a batch look like entries: those of a format 1 wrapper have
        small offsets. Candidates are found by what every header has in common, so that a gigabyte takes seconds.
        """
        while self.size - position >= HEAD:
            count = min(CHUNK, self.size - position)
            at = self.cover(position, count)
            chunk = self.bytes[at : at + count]
            for index in _candidates(chunk):
                candidate = position + index
                offset, length, _, magic, attributes = head(chunk, index)
                if (
                    above < offset <= limit
                    and LEAST_LENGTHS[magic] <= length <= MOST_HELD
                    and candidate + 12 + length <= self.size
                    and self._fits(candidate, length, magic, attributes)
                    and self.holds_entry(candidate)
                ):
                    return candidate
            position += len(chunk) - HEAD + 1
        return None

    def _fits(self, position: int, length: int, magic: int, attributes: int) -> bool:
        """Whether the fields of a header agree with each other: a checksum over megabytes need not be tried."""
        at = self.cover(position, 61)
        if magic == 2:
            (last_delta,), (count,) = _lengths(self.bytes, at + 23), _lengths(self.bytes, at + 57)
            return self.bytes[at + 21] == 0 and last_delta >= 0 and 0 <= count <= last_delta + 1
        key_at = 18 + 8 * magic
        (key,) = _lengths(self.bytes, at + key_at)
        value_at = key_at + 4 + max(key, 0)
        if attributes & 0xF0 or key < -1 or value_at + 4 > length + 12:
            return False
        at = self.cover(position, value_at + 4)
        (value,) = _lengths(self.bytes, at + value_at)
        return bool(value_at + 4 + max(value, 0) == length + 12)


def _candidates(chunk: bytes) -> list[int]:
    """Where a header may begin: an offset below 2^48, a length from 1 byte to 80 MiB, and a magic from 0 to 2."""
    byte = np.frombuffer(chunk, dtype=np.uint8)
    count = len(chunk) - HEAD + 1
    may = byte[16 : 16 + count] <= 2
    may &= (byte[:count] == 0) & (byte[1 : 1 + count] == 0) & (byte[8 : 8 + count] <= 4)
    may &= (byte[9 : 9 + count] | byte[10 : 10 + count] | byte[11 : 11 + count]) != 0
    indexes: list[int] = np.flatnonzero(may).tolist()
    return indexes
