"""Segments as Arrow rows: what digests store and Spark joins, one row for each entry of a log."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from agent.kafka_log import Fault
from agent.kafka_log.index import IndexCheck, LogEnd, time_index_faults
from agent.kafka_log.log_directory import LogDirectoryError, Segment, is_there, log_of, open_log, read_index
from agent.kafka_log.runs import CODEC_NAMES, MOST, Run, joined
from agent.kafka_log.scan import scan_runs

SCHEMA = pa.schema(
    [
        pa.field("broker", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("magic", pa.int8(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),
        pa.field("records", pa.int32(), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("crc", pa.uint32(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
)
"""A row for each entry of a log, as Batch describes it: a batch, a wrapper or a plain message. Plain messages of the
formats 0 and 1 are not joined into runs, though that makes many rows: only so is the first diverging offset exact."""

_ENTRIES_LOST = frozenset({"crc_mismatch", "garbage", "torn_tail", "zeros", "offsets_went_back", "outside_segment"})

_CODECS = pa.array(CODEC_NAMES)


class Found(NamedTuple):
    """A fault and where it is. file: the path of the log or index in the broker's log directory."""

    topic: str
    partition: int
    file: str
    fault: Fault


def unpaced(_count: int) -> None:
    """Read as fast as the disk can."""


def rows(
    segment: Segment,
    found: Callable[[Found], None],
    *,
    paced: Callable[[int], None] = unpaced,
    deep: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The entries of a segment as record batches of SCHEMA; all else as read() does."""
    for run in read(segment, found, paced=paced, deep=deep):
        yield _record_batch(segment, run)


def read(
    segment: Segment,
    found: Callable[[Found], None],
    *,
    paced: Callable[[int], None] = unpaced,
    deep: bool = False,
) -> Iterator[Run]:
    """The entries of a segment, at most runs.MOST at a time; its faults and its indexes' go to `found` at the end.

    paced: called with a number of bytes before they are read, so that it may wait. deep: as in scan().

    A broker may be at work on the log meanwhile. It is read up to its size when it was opened; where it is gone by
    then, there are none. A fault is told only where a second look finds it again, at the same byte: what was being
    written, rolled, truncated, compacted or deleted at that moment is none. So a torn tail of an active segment has
    stood still between two looks; only a broker that is down, or one hung in the middle of a write, leaves one.
    Raises LogDirectoryError where the disk cannot read.
    """
    index = read_index(segment, ".index")
    time_index = read_index(segment, ".timeindex")
    check = IndexCheck(index or b"", segment.base_offset, active=segment.active)
    faults: list[Fault] = []
    last, timestamp, size = segment.base_offset - 1, -1, 0
    for run in _looks(segment, faults, paced, deep=deep):
        check.see(run.position, run.last_offset)
        last, timestamp = max(last, int(run.last_offset.max())), max(timestamp, int(run.timestamp.max()))
        size = run.end
        yield run
    if faults:
        faults = _again(segment, faults, paced, deep=deep)
    for fault in faults:
        found(Found(segment.topic, segment.partition, segment.file, fault))
    lost = tuple((fault.position, fault.position + fault.size) for fault in faults if fault.label in _ENTRIES_LOST)
    log = LogEnd(size, last, timestamp, lost)
    for suffix, raw, wrong in (
        (".index", index, check.faults(log)),
        (
            ".timeindex",
            time_index,
            time_index_faults(time_index or b"", segment.base_offset, log, active=segment.active),
        ),
    ):
        if wrong and raw == read_index(segment, suffix) and is_there(segment.directory, segment.file):
            for fault in wrong:
                found(Found(segment.topic, segment.partition, segment.file.removesuffix(".log") + suffix, fault))


class _Paced:
    """A file that asks before it reads."""

    def __init__(self, file: Any, path: str, paced: Callable[[int], None]) -> None:
        self._file = file
        self._path = path
        self._paced = paced

    def seek(self, position: int, whence: int = 0, /) -> object:
        return self._file.seek(position, whence)

    def read(self, size: int, /) -> bytes:
        self._paced(size)
        try:
            return bytes(self._file.read(size))
        except OSError as error:
            msg = f"{self._path}: cannot be read: {error}"
            raise LogDirectoryError(msg) from error


def _looks(segment: Segment, faults: list[Fault], paced: Callable[[int], None], *, deep: bool) -> Iterator[Run]:
    """The entries of a segment, up to the log's size when it is opened; nothing where it is gone."""
    file = open_log(segment)
    if file is None:
        return
    held: list[Run] = []
    with file:
        for one in scan_runs(
            _Paced(file, f"{segment.directory}/{segment.file}", paced),
            file.size(),
            base_offset=segment.base_offset,
            next_base=segment.next_base,
            active=segment.active,
            deep=deep,
        ):
            if isinstance(one, Fault):
                faults.append(one)
                continue
            if sum(run.entries for run in held) + one.entries > MOST:
                yield joined(held)
                held = []
            held.append(one)
    if held:
        yield joined(held)


def _again(segment: Segment, faults: list[Fault], paced: Callable[[int], None], *, deep: bool) -> list[Fault]:
    """Those of the faults that a second look finds too."""
    if segment.next_base is not None and not is_there(segment.directory, log_of(segment, segment.next_base)):
        # Compaction joins segments: the one behind may have become part of this one since it was listed.
        segment = segment._replace(next_base=segment.base_offset + (1 << 31))
    seen: list[Fault] = []
    for _ in _looks(segment, seen, paced, deep=deep):
        pass
    places = {(fault.label, fault.position) for fault in seen}
    return [fault for fault in faults if (fault.label, fault.position) in places]


def _record_batch(segment: Segment, run: Run) -> pa.RecordBatch:
    fixed = (segment.broker, segment.topic, segment.partition, segment.file)
    arrays = [pa.repeat(pa.scalar(value, SCHEMA.field(i).type), run.entries) for i, value in enumerate(fixed)]
    for name in SCHEMA.names[4:]:
        column = pa.array(getattr(run, name))
        arrays.append(_CODECS.take(column) if name == "codec" else column)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
