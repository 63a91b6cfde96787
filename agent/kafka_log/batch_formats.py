"""Batches of any format decoded and checked: one at a time, or many at once as columns.

Layouts: org.apache.kafka.common.record.LegacyRecord (formats 0 and 1) and DefaultRecordBatch (format 2). How batches
follow each other in a segment is checked by `agent.kafka_log.scan`.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from agent.kafka_log import Batch, format2
from agent.kafka_log.codecs import CODEC_NAMES, CODECS
from agent.kafka_log.faults import Fault, undecodable
from agent.kafka_log.format01 import unwrap
from agent.kafka_log.window import HEADER_BYTES, MAX_BATCH_BYTES, MIN_LENGTHS, Window, unpack_header

MAX_ROWS = 65_536
"""Batches in one BatchColumns, at most."""

_MESSAGE_FIELDS = [("offset", ">i8"), ("length", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "i1")]
_HEADER_TYPES = (
    np.dtype(_MESSAGE_FIELDS),
    np.dtype([*_MESSAGE_FIELDS, ("timestamp", ">i8")]),
    np.dtype(
        {
            "names": ["offset", "length", "epoch", "crc", "attributes", "last_delta", "timestamp", "count"],
            "formats": [">i8", ">i4", ">i4", ">u4", ">i2", ">i4", ">i8", ">i4"],
            "offsets": [0, 8, 12, 17, 21, 23, 35, 57],
            "itemsize": format2.HEADER_BYTES,
        }
    ),
)
"""By magic: LegacyRecord up to its attributes, with format 1's timestamp; DefaultRecordBatch up to its records."""

_COLUMN_TYPES = (
    np.int64, np.int64, np.int8, np.int8, np.int64, np.int64, np.int32, np.int32, np.uint32, np.int64, bool, bool,
)  # fmt: skip
_long = struct.Struct(">q").unpack_from
_int = struct.Struct(">i").unpack_from


def read_batch(window: Window, position: int, faults: list[Fault], *, deep: bool = False) -> Batch | None:
    """Return the batch at `position`, or None if none with a correct checksum begins there.

    faults: takes what is wrong inside the batch. deep: check the records of a format 2 batch too.
    """
    left = window.size - position
    if left < HEADER_BYTES:
        return None
    at = position - window.start
    if at + 61 > len(window.bytes):
        at = window.load(position, 61)
    offset, length, stored, magic, attributes = unpack_header(window.bytes, at)
    if not 0 <= magic <= 2 or length < MIN_LENGTHS[magic] or length + 12 > left:
        return None
    size = length + 12
    if size > MAX_BATCH_BYTES:
        return _read_large_batch(window, position, size, faults)
    if at + size > len(window.bytes):
        at = window.load(position, size)
    if position + size > window.size:
        return None  # truncated while it was read: the window is padded with zeros
    if magic == 2:
        if crc32c(window.view[at + 21 : at + size]) != _int(window.bytes, at + 17)[0] & 0xFFFFFFFF:
            return None
        batch = format2.decode_header(window.bytes, at, position, size, faults)
        if deep and batch.records and not faults:
            format2.check_records(batch, window.bytes[at + format2.HEADER_BYTES : at + size], faults)
        return batch
    if crc32(window.view[at + 16 : at + size]) != stored:
        return None
    timestamp = _long(window.bytes, at + 18)[0] if magic else -1
    codec = attributes & 7
    if not codec:
        return Batch(position, size, magic, "none", offset, offset, 1, -1, stored, timestamp)
    wrapper = Batch(position, size, magic, CODEC_NAMES[codec], offset, offset, 0, -1, stored, timestamp)
    return unwrap(wrapper, window.bytes[at : at + size], faults)


def _read_large_batch(window: Window, position: int, size: int, faults: list[Fault]) -> Batch | None:
    """Return a batch too large to be loaded: its checksum is computed piece by piece, its content is not decoded."""
    if not window.has_batch(position):
        return None
    at = window.load(position, 61)
    offset, _, stored, magic, attributes = unpack_header(window.bytes, at)
    if magic == 2:
        return format2.decode_header(window.bytes, at, position, size, faults)
    timestamp = _long(window.bytes, at + 18)[0] if magic else -1
    codec = attributes & 7
    batch = Batch(position, size, magic, CODEC_NAMES[codec], offset, offset, 1, -1, stored, timestamp)
    if codec:
        faults.append(undecodable(batch, f"{size} bytes, more than the {MAX_BATCH_BYTES} that are decompressed"))
    return batch


class BatchColumns(NamedTuple):
    """Consecutive batches of a log as columns.

    The columns are the fields of Batch, with the codec as its number. An object for each batch would cost more than
    its checksum; a log of small batches is read several times faster as columns.
    """

    position: NDArray[np.int64]
    size: NDArray[np.int64]
    magic: NDArray[np.int8]
    codec: NDArray[np.int8]
    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    records: NDArray[np.int32]
    leader_epoch: NDArray[np.int32]
    crc: NDArray[np.uint32]
    timestamp: NDArray[np.int64]
    transactional: NDArray[np.bool_]
    control: NDArray[np.bool_]

    @property
    def row_count(self) -> int:
        """The number of batches."""
        return len(self.position)

    @property
    def end(self) -> int:
        """The byte after the last batch."""
        return int(self.position[-1] + self.size[-1])

    def take_first(self, count: int, shift: int) -> "BatchColumns":
        """Return the first `count` batches, with `shift` bytes added to their positions."""
        columns: list[Any] = [column[:count] for column in self]
        return BatchColumns(*columns)._replace(position=self.position[:count] + shift)

    def to_batches(self) -> Iterator[Batch]:
        """Yield the batches as objects."""
        codecs = [CODEC_NAMES[number] for number in self.codec]
        columns = [column.tolist() for column in self]
        columns[3] = codecs
        return map(Batch._make, zip(*columns, strict=True))


def to_columns(batches: Sequence[Batch]) -> BatchColumns:
    """Return batches as columns."""
    columns = list(zip(*batches, strict=True))
    columns[3] = tuple(map(CODEC_NAMES.index, columns[3]))
    return BatchColumns(*(np.array(column, dtype=kind) for column, kind in zip(columns, _COLUMN_TYPES, strict=True)))


def concatenate(parts: Sequence[BatchColumns]) -> BatchColumns:
    """Join columns of consecutive batches."""
    return BatchColumns(*map(np.concatenate, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def read_columns(window: Window, position: int, last_offset: int, limit: int) -> BatchColumns | None:
    """Return the batches of one format from `position` on whose offsets increase from above `last_offset` to `limit`.

    Reads no further than the window once it holds the first batch. Stops before a batch that is damaged or out of
    order, and before a wrapper of format 0 or 1, which must be decompressed. None if there is no batch.
    """
    size = window.batch_size(position)
    if size is None or size > MAX_BATCH_BYTES or limit >> 63:
        return None
    at = window.load(position, size)
    raw, magic = window.bytes, window.bytes[at + 16]
    starts = np.array(_find_starts(raw, at, min(len(raw), window.size - window.start)), dtype=np.int64)
    is_same_format = np.frombuffer(raw, np.uint8)[starts[:-1] + 16] == magic
    starts = starts[: _count_leading_true(is_same_format & (np.diff(starts) >= 12 + MIN_LENGTHS[magic])) + 1]
    columns = _decode_headers(raw, starts, magic)
    starts = starts[: _count_leading_true(_are_in_order(columns, magic, last_offset, limit)) + 1]
    crcs = np.fromiter(_checksums(window, starts.tolist(), magic), np.uint32, len(starts) - 1)
    count = _count_leading_true(crcs == columns.crc[: len(crcs)])
    return columns.take_first(count, window.start) if count else None


def _find_starts(raw: bytes, at: int, end: int) -> list[int]:
    """Return where batches begin, following their lengths, and where the last whole one ends."""
    starts = [at]
    append, unpack_length, last, min_size = starts.append, _int, end - HEADER_BYTES, 12 + MIN_LENGTHS[0]
    while at <= last and len(starts) <= MAX_ROWS:
        next_at = at + 12 + unpack_length(raw, at + 8)[0]
        if next_at > end or next_at < at + min_size:
            break
        append(next_at)
        at = next_at
    return starts


def _count_leading_true(mask: NDArray[np.bool_]) -> int:
    return len(mask) if mask.all() else int(mask.argmin())


def _are_in_order(columns: BatchColumns, magic: int, last_offset: int, limit: int) -> NDArray[np.bool_]:
    """Return for each batch whether its header is sane, needs no decompression and follows the one before it."""
    before = np.concatenate(([last_offset], columns.last_offset[:-1]))
    # An offset near the largest number there is becomes less than the first when the delta is added.
    mask: NDArray[np.bool_] = columns.first_offset > before
    mask &= (columns.last_offset >= columns.first_offset) & (columns.last_offset <= limit)
    if magic < 2:
        mask &= columns.codec == 0
    else:
        delta = columns.last_offset - columns.first_offset
        mask &= (columns.codec < len(CODECS)) & (columns.records >= 0) & (columns.records <= delta + 1)
    return mask


def _checksums(window: Window, starts: list[int], magic: int) -> Iterator[int]:
    if magic == 2:
        return (crc32c(window.view[start + 21 : end]) for start, end in pairwise(starts))
    return (crc32(window.view[start + 16 : end]) for start, end in pairwise(starts))


def _decode_headers(raw: bytes, starts: NDArray[np.int64], magic: int) -> BatchColumns:
    """Decode the headers at `starts`, the last of which is the end; positions are those in `raw`."""
    kind = _HEADER_TYPES[magic]
    # A view of overlapping headers, one at every byte, from which those at `starts` are taken.
    headers: NDArray[Any] = np.ndarray((len(raw) - kind.itemsize + 1,), kind, raw, strides=(1,))[starts[:-1]]
    count = len(headers)
    first = headers["offset"].astype(np.int64)
    attributes = headers["attributes"]
    no_flags = np.zeros(count, dtype=bool)
    return BatchColumns(
        position=starts[:-1],
        size=np.diff(starts),
        magic=np.full(count, magic, dtype=np.int8),
        codec=(attributes & 7).astype(np.int8),
        first_offset=first,
        last_offset=first + headers["last_delta"] if magic == 2 else first,
        records=headers["count"].astype(np.int32) if magic == 2 else np.ones(count, dtype=np.int32),
        leader_epoch=headers["epoch"].astype(np.int32) if magic == 2 else np.full(count, -1, dtype=np.int32),
        crc=headers["crc"].astype(np.uint32),
        timestamp=headers["timestamp"].astype(np.int64) if magic else np.full(count, -1, dtype=np.int64),
        transactional=attributes & 0x10 != 0 if magic == 2 else no_flags,
        control=attributes & 0x20 != 0 if magic == 2 else no_flags,
    )
