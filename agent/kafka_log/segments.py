"""A segment read as a whole: its batches as columns or Arrow rows, and the faults of its log and indexes."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from agent.kafka_log.batch_formats import MAX_ROWS, BatchColumns, concatenate
from agent.kafka_log.codecs import CODEC_NAMES
from agent.kafka_log.faults import Fault
from agent.kafka_log.index import IndexCheck, LogSummary, find_time_index_faults
from agent.kafka_log.log_directory import LogDirectoryError, Segment, file_exists, open_log, read_index, sibling_log
from agent.kafka_log.scan import scan_columns

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
"""A row for each batch, which digests store and Spark joins; its fields are those of Batch.

Plain messages of formats 0 and 1 are not merged into ranges, although that makes many rows: only then is the first
diverging offset exact.
"""

_DAMAGE = frozenset({"crc_mismatch", "garbage", "torn_tail", "zeros", "offsets_went_back", "outside_segment"})
_CODECS = pa.array(CODEC_NAMES)

Throttle = Callable[[int], None]
"""Called with a number of bytes before they are read, so that it may wait."""


class LocatedFault(NamedTuple):
    """A fault and where it is. file: the path of the log or index in the broker's log directory."""

    topic: str
    partition: int
    file: str
    fault: Fault


def unthrottled(_count: int) -> None:
    """Read as fast as the disk allows."""


def read_rows(
    segment: Segment, report: Callable[[LocatedFault], None], *, throttle: Throttle = unthrottled, deep: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield a segment's batches as Arrow record batches of SCHEMA; otherwise like read_segment()."""
    for columns in read_segment(segment, report, throttle=throttle, deep=deep):
        yield _to_record_batch(segment, columns)


def read_segment(
    segment: Segment, report: Callable[[LocatedFault], None], *, throttle: Throttle = unthrottled, deep: bool = False
) -> Iterator[BatchColumns]:
    """Yield a segment's batches, at most MAX_ROWS at a time, then report the faults of its log and its indexes.

    deep: as in scan().

    A broker may be writing to the log meanwhile. The log is read up to its size when it is opened; if it is gone by
    then, there are no batches. A fault is reported only if a second pass finds it again at the same byte, so that what
    was being written, rolled, truncated, compacted or deleted at that moment is no fault. A torn tail of an active
    segment therefore did not change between two passes; only a broker that is down, or that hangs in the middle of a
    write, leaves one. Raises LogDirectoryError if the disk cannot be read.
    """
    index = read_index(segment, ".index")
    time_index = read_index(segment, ".timeindex")
    check = IndexCheck(index or b"", segment.base_offset, active=segment.active)
    log_faults: list[Fault] = []
    last_offset, timestamp, size = segment.base_offset - 1, -1, 0
    for columns in _scan_log(segment, log_faults, throttle, deep=deep):
        check.add_batches(columns.position, columns.last_offset)
        last_offset = max(last_offset, int(columns.last_offset.max()))
        timestamp = max(timestamp, int(columns.timestamp.max()))
        size = columns.end
        yield columns
    if log_faults:
        log_faults = _confirm(segment, log_faults, throttle, deep=deep)
    for fault in log_faults:
        report(LocatedFault(segment.topic, segment.partition, segment.file, fault))
    damaged = tuple((fault.position, fault.position + fault.size) for fault in log_faults if fault.label in _DAMAGE)
    log = LogSummary(size, last_offset, timestamp, damaged)
    time_index_faults = find_time_index_faults(time_index or b"", segment.base_offset, log, active=segment.active)
    for suffix, raw, index_faults in (
        (".index", index, check.find_faults(log)),
        (".timeindex", time_index, time_index_faults),
    ):
        if index_faults and raw == read_index(segment, suffix) and file_exists(segment.directory, segment.file):
            file = segment.file.removesuffix(".log") + suffix
            for fault in index_faults:
                report(LocatedFault(segment.topic, segment.partition, file, fault))


class _ThrottledFile:
    """A log file that calls a Throttle before each read."""

    def __init__(self, file: Any, path: str, throttle: Throttle) -> None:
        self._file = file
        self._path = path
        self._throttle = throttle

    def seek(self, position: int, whence: int = 0, /) -> object:
        return self._file.seek(position, whence)

    def read(self, size: int, /) -> bytes:
        self._throttle(size)
        try:
            return bytes(self._file.read(size))
        except OSError as error:
            msg = f"{self._path}: cannot be read: {error}"
            raise LogDirectoryError(msg) from error


def _scan_log(segment: Segment, log_faults: list[Fault], throttle: Throttle, *, deep: bool) -> Iterator[BatchColumns]:
    """Yield a log's batches up to its size when it is opened, none if it is gone, and collect its faults."""
    file = open_log(segment)
    if file is None:
        return
    pending: list[BatchColumns] = []
    rows = 0
    with file:
        for item in scan_columns(
            _ThrottledFile(file, f"{segment.directory}/{segment.file}", throttle),
            file.size(),
            base_offset=segment.base_offset,
            next_base=segment.next_base,
            active=segment.active,
            deep=deep,
        ):
            if isinstance(item, Fault):
                log_faults.append(item)
                continue
            rows += item.row_count
            if rows > MAX_ROWS:
                yield concatenate(pending)
                pending, rows = [], item.row_count
            pending.append(item)
    if pending:
        yield concatenate(pending)


def _confirm(segment: Segment, log_faults: list[Fault], throttle: Throttle, *, deep: bool) -> list[Fault]:
    """Return those of the faults that a second pass finds too."""
    if segment.next_base is not None and not file_exists(segment.directory, sibling_log(segment, segment.next_base)):
        # Compaction merges segments: the next one may have become part of this one since it was listed.
        segment = segment._replace(next_base=segment.base_offset + (1 << 31))
    found_again: list[Fault] = []
    for _ in _scan_log(segment, found_again, throttle, deep=deep):
        pass
    places = {(fault.label, fault.position) for fault in found_again}
    return [fault for fault in log_faults if (fault.label, fault.position) in places]


def _to_record_batch(segment: Segment, columns: BatchColumns) -> pa.RecordBatch:
    constants = (segment.broker, segment.topic, segment.partition, segment.file)
    arrays = [pa.repeat(pa.scalar(value, SCHEMA.field(i).type), columns.row_count) for i, value in enumerate(constants)]
    for name in SCHEMA.names[4:]:
        column = pa.array(getattr(columns, name))
        arrays.append(_CODECS.take(column) if name == "codec" else column)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
