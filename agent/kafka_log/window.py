"""A window of a file's bytes in memory, and what their batch headers and checksums show without decoding them.

Memory stays bounded: one chunk, or one batch of at most MAX_BATCH_BYTES.
"""

import io
import struct
from collections.abc import Callable, Iterator
from typing import Protocol
from zlib import crc32

import numpy as np
from crc32c import crc32c

CHUNK = 2 << 20
"""Bytes read at a time."""

MAX_BATCH_BYTES = 64 << 20
"""A larger batch, or one whose length is corrupt, is not loaded whole; only its CRC is computed."""

MIN_LENGTHS = (14, 22, 49)
"""The smallest length field by magic: LegacyRecord.RECORD_OVERHEAD_V0 and _V1, and a format 2 header of 61 bytes."""

HEADER_BYTES = 18
"""Bytes that `unpack_header` reads."""

unpack_header = struct.Struct(">qiIbb").unpack_from
"""Offset, length, CRC (formats 0 and 1; format 2: leader epoch), magic, attributes (formats 0 and 1)."""

_int = struct.Struct(">i").unpack_from


class RandomAccess(Protocol):
    """A binary file with random access: a local file, or a pyarrow NativeFile."""

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> object: ...
    def read(self, size: int, /) -> bytes: ...


class Window:
    """The bytes of a file from `start` on.

    size: where the file ends; it decreases if the file is truncated while it is read.
    """

    def __init__(self, file: RandomAccess, size: int) -> None:
        self._file = file
        self.size = size
        self.start = 0
        self.bytes = b""
        self.view = memoryview(self.bytes)

    def load(self, position: int, count: int) -> int:
        """Load the `count` bytes from `position` on, padded with zeros, and return where they begin in `bytes`."""
        at = position - self.start
        if at < 0 or at + count > len(self.bytes):
            left = max(self.size - position, 0)
            wanted = min(max(count, CHUNK), left)
            self._file.seek(position)
            self.bytes = bytes(self._file.read(wanted))
            if len(self.bytes) < wanted:
                self.size = position + len(self.bytes)
            if len(self.bytes) < count:
                self.bytes += bytes(count - len(self.bytes))
            self.view = memoryview(self.bytes)
            self.start, at = position, 0
        return at

    def iter_chunks(self, position: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `position` to `end` in pieces of at most CHUNK."""
        while position < end:
            count = min(CHUNK, end - position)
            at = self.load(position, count)
            yield self.view[at : at + count]
            position += count

    def checksum(self, position: int, end: int, magic: int) -> int:
        """Return the CRC-32C (format 2) or CRC-32 of the bytes from `position` to `end`."""
        value = 0
        function: Callable[[memoryview, int], int] = crc32c if magic == 2 else crc32
        for chunk in self.iter_chunks(position, end):
            value = function(chunk, value)
        return value

    def is_zero(self, position: int, end: int) -> bool:
        """Return whether all bytes from `position` to `end` are zero."""
        return not any(np.frombuffer(chunk, dtype=np.uint8).any() for chunk in self.iter_chunks(position, end))

    def batch_size(self, position: int) -> int | None:
        """Return the size of the batch at `position`; None without a plausible header, or if the file ends first."""
        if self.size - position < HEADER_BYTES:
            return None
        at = self.load(position, HEADER_BYTES)
        _, length, _, magic, _ = unpack_header(self.bytes, at)
        if not 0 <= magic <= 2 or length < MIN_LENGTHS[magic] or position + 12 + length > self.size:
            return None
        return 12 + int(length)

    def has_batch(self, position: int) -> bool:
        """Return whether a batch with a correct checksum begins at `position`."""
        size = self.batch_size(position)
        if size is None:
            return False
        at = self.load(position, 21)
        magic = self.bytes[at + 16]
        stored = int.from_bytes(self.bytes[at + 17 : at + 21] if magic == 2 else self.bytes[at + 12 : at + 16])
        return self.checksum(position + (21 if magic == 2 else 16), position + size, magic) == stored

    def find_batch(self, position: int, above: int, limit: int) -> int | None:
        """Return where the next batch with a correct checksum begins whose offset is in (above, limit], or None.

        The offset matters because messages inside a batch look like batches: those of a format 1 wrapper have small
        offsets. Candidates are found by what all headers have in common, so that a gigabyte takes seconds.
        """
        while self.size - position >= HEADER_BYTES:
            count = min(CHUNK, self.size - position)
            at = self.load(position, count)
            chunk = self.bytes[at : at + count]
            for index in _find_candidates(chunk):
                candidate = position + index
                offset, length, _, magic, attributes = unpack_header(chunk, index)
                if (
                    above < offset <= limit
                    and MIN_LENGTHS[magic] <= length <= MAX_BATCH_BYTES
                    and candidate + 12 + length <= self.size
                    and self._is_plausible(candidate, length, magic, attributes)
                    and self.has_batch(candidate)
                ):
                    return candidate
            position += len(chunk) - HEADER_BYTES + 1
        return None

    def _is_plausible(self, position: int, length: int, magic: int, attributes: int) -> bool:
        """Return whether a header's fields agree with each other, which saves a checksum over megabytes."""
        at = self.load(position, 61)
        if magic == 2:
            (last_delta,), (count,) = _int(self.bytes, at + 23), _int(self.bytes, at + 57)
            return self.bytes[at + 21] == 0 and last_delta >= 0 and 0 <= count <= last_delta + 1
        key_at = 18 + 8 * magic
        (key_length,) = _int(self.bytes, at + key_at)
        value_at = key_at + 4 + max(key_length, 0)
        if attributes & 0xF0 or key_length < -1 or value_at + 4 > length + 12:
            return False
        at = self.load(position, value_at + 4)
        (value_length,) = _int(self.bytes, at + value_at)
        return bool(value_at + 4 + max(value_length, 0) == length + 12)


def _find_candidates(chunk: bytes) -> list[int]:
    """Return where a header may begin: an offset below 2^48, a length of 1 byte to 80 MiB, and a magic from 0 to 2."""
    byte = np.frombuffer(chunk, dtype=np.uint8)
    count = len(chunk) - HEADER_BYTES + 1
    mask = byte[16 : 16 + count] <= 2
    mask &= (byte[:count] == 0) & (byte[1 : 1 + count] == 0) & (byte[8 : 8 + count] <= 4)
    mask &= (byte[9 : 9 + count] | byte[10 : 10 + count] | byte[11 : 11 + count]) != 0
    indexes: list[int] = np.flatnonzero(mask).tolist()
    return indexes
