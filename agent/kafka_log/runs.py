"""Many entries of a log decoded at once, as columns: those that are plainly in order. The rest is left to `entries`.

An object for each entry costs more than its checksum; a log of small batches is read several times faster so.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from agent.kafka_log import Batch
from agent.kafka_log.codecs import CODECS
from agent.kafka_log.window import HEAD, LEAST_LENGTHS, MOST_HELD, Window

MOST = 65_536
"""Entries in a run, at most."""

# LegacyRecord up to its attributes, and with format 1's timestamp; DefaultRecordBatch up to its records.
_MESSAGE = [("offset", ">i8"), ("length", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "i1")]
_HEADS = (
    np.dtype(_MESSAGE),
    np.dtype([*_MESSAGE, ("timestamp", ">i8")]),
    np.dtype(
        {
            "names": ["offset", "length", "epoch", "crc", "attributes", "last_delta", "timestamp", "count"],
            "formats": [">i8", ">i4", ">i4", ">u4", ">i2", ">i4", ">i8", ">i4"],
            "offsets": [0, 8, 12, 17, 21, 23, 35, 57],
            "itemsize": 61,
        }
    ),
)
_length = struct.Struct(">i").unpack_from


class Run(NamedTuple):
    """Entries that follow each other in a log, as columns; what each means is said at Batch, codec is its number."""

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
    def entries(self) -> int:
        """How many these are."""
        return len(self.position)

    @property
    def end(self) -> int:
        """The byte behind the last one."""
        return int(self.position[-1] + self.size[-1])

    def first(self, count: int, moved: int) -> "Run":
        """The first `count` of them, at positions that are larger by `moved`."""
        columns: list[Any] = [column[:count] for column in self]
        return Run(*columns)._replace(position=self.position[:count] + moved)

    def batches(self) -> Iterator[Batch]:
        """The entries one by one."""
        names = [CODEC_NAMES[number] for number in self.codec]
        columns = [column.tolist() for column in self]
        columns[3] = names
        return map(Batch._make, zip(*columns, strict=True))


CODEC_NAMES = (*CODECS, *["unknown"] * (8 - len(CODECS)))
"""What Batch calls a codec, by its number."""

_TYPES = (np.int64, np.int64, np.int8, np.int8, np.int64, np.int64, np.int32, np.int32, np.uint32, np.int64, bool, bool)


def run_of(batches: Sequence[Batch]) -> Run:
    """Batches as columns."""
    columns = list(zip(*batches, strict=True))
    columns[3] = tuple(map(CODEC_NAMES.index, columns[3]))
    return Run(*(np.array(column, dtype=kind) for column, kind in zip(columns, _TYPES, strict=True)))


def joined(runs: Sequence[Run]) -> Run:
    """Runs that follow each other as one."""
    return Run(*map(np.concatenate, zip(*runs, strict=True))) if len(runs) > 1 else runs[0]


def run(window: Window, position: int, last: int, limit: int) -> Run | None:
    """The entries from a position on, of one format, whose offsets rise from above `last` up to `limit`.

    As far as they are held once the first of them is. It ends where an entry does not simply follow, and where one
    must be looked into: a wrapper of format 0 or 1. None where there is none.
    """
    size = window.extent(position)
    if size is None or size > MOST_HELD or limit >> 63:
        return None
    at = window.cover(position, size)
    raw, magic = window.bytes, window.bytes[at + 16]
    starts = np.array(_starts(raw, at, min(len(raw), window.size - window.start)), dtype=np.int64)
    alike = np.frombuffer(raw, np.uint8)[starts[:-1] + 16] == magic
    starts = starts[: _true(alike & (np.diff(starts) >= 12 + LEAST_LENGTHS[magic])) + 1]
    found = _decoded(raw, starts, magic)
    starts = starts[: _true(_in_order(found, magic, last, limit)) + 1]
    crcs = np.fromiter(_checksums(window, starts.tolist(), magic), np.uint32, len(starts) - 1)
    count = _true(crcs == found.crc[: len(crcs)])
    return found.first(count, window.start) if count else None


def _starts(raw: bytes, at: int, end: int) -> list[int]:
    """Where entries begin, as their lengths lead from one to the next, and where the last whole one ends."""
    starts = [at]
    append, length, last, least = starts.append, _length, end - HEAD, 12 + LEAST_LENGTHS[0]
    while at <= last and len(starts) <= MOST:
        following = at + 12 + length(raw, at + 8)[0]
        if following > end or following < at + least:
            break
        append(following)
        at = following
    return starts


def _true(fine: NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(fine) if fine.all() else int(fine.argmin())


def _in_order(found: Run, magic: int, last: int, limit: int) -> NDArray[np.bool_]:
    """Whether each is sane, need not be looked into, and simply follows the one before it."""
    before = np.concatenate(([last], found.last_offset[:-1]))
    # An offset near the largest number there is becomes less than the first when the delta is added.
    fine: NDArray[np.bool_]
    fine = (found.first_offset > before) & (found.last_offset >= found.first_offset) & (found.last_offset <= limit)
    if magic < 2:
        fine &= found.codec == 0
    else:
        delta = found.last_offset - found.first_offset
        fine &= (found.codec < len(CODECS)) & (found.records >= 0) & (found.records <= delta + 1)
    return fine


def _checksums(window: Window, starts: list[int], magic: int) -> Iterator[int]:
    """Those of the bytes between these starts."""
    if magic == 2:
        return (crc32c(window.view[start + 21 : end]) for start, end in pairwise(starts))
    return (crc32(window.view[start + 16 : end]) for start, end in pairwise(starts))


def _decoded(raw: bytes, starts: NDArray[np.int64], magic: int) -> Run:
    """The entries between these starts, as their headers say; positions are those in `raw`."""
    kind = _HEADS[magic]
    # A header may begin at any byte: as many overlapping ones as fit, of which those are taken that are some.
    heads: NDArray[Any] = np.ndarray((len(raw) - kind.itemsize + 1,), kind, raw, strides=(1,))[starts[:-1]]
    count = len(heads)
    first = heads["offset"].astype(np.int64)
    attributes = heads["attributes"]
    none = np.zeros(count, dtype=bool)
    return Run(
        position=starts[:-1],
        size=np.diff(starts),
        magic=np.full(count, magic, dtype=np.int8),
        codec=(attributes & 7).astype(np.int8),
        first_offset=first,
        last_offset=first + heads["last_delta"] if magic == 2 else first,
        records=heads["count"].astype(np.int32) if magic == 2 else np.ones(count, dtype=np.int32),
        leader_epoch=heads["epoch"].astype(np.int32) if magic == 2 else np.full(count, -1, dtype=np.int32),
        crc=heads["crc"].astype(np.uint32),
        timestamp=heads["timestamp"].astype(np.int64) if magic else np.full(count, -1, dtype=np.int64),
        transactional=attributes & 0x10 != 0 if magic == 2 else none,
        control=attributes & 0x20 != 0 if magic == 2 else none,
    )
