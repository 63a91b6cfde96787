"""Segments read as rows with their faults, also while a broker writes to them."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from agent.kafka_log import segments
from agent.kafka_log.batch_formats import BatchColumns
from agent.kafka_log.log_directory import Segment, list_partitions
from agent.kafka_log.segments import SCHEMA, LocatedFault, Throttle, read_rows, unthrottled
from tests.kafka_log.writer import batch, entry, wrapper, write_log


def list_segments(root: Path) -> list[Segment]:
    """Return all segments of a log directory."""
    return [segment for partition in list_partitions(2005, str(root)) for segment in partition.segments]


def find_labels(*of: Segment, throttle: Throttle = unthrottled) -> list[str]:
    """Return the labels of the segments' faults."""
    found: list[LocatedFault] = []
    for segment in of:
        list(read_rows(segment, found.append, throttle=throttle))
    return [located.fault.label for located in found]


def test_rows_are_the_batches_of_a_segment(tmp_path: Path) -> None:
    write_log(tmp_path, batch(0, range(10), epoch=3, timestamp=77), wrapper([10, 15], magic=1, codec="lz4"))
    found: list[LocatedFault] = []
    (segment,) = list_segments(tmp_path)
    table = pa.Table.from_batches(read_rows(segment, found.append))
    assert not found
    assert table.schema == SCHEMA
    first, second = table.to_pylist()
    assert first | {"crc": 0, "size": 0} == {
        "broker": 2005,
        "topic": "t",
        "partition": 0,
        "file": "t-0/00000000000000000000.log",
        "position": 0,
        "size": 0,
        "magic": 2,
        "codec": "none",
        "first_offset": 0,
        "last_offset": 9,
        "records": 10,
        "leader_epoch": 3,
        "crc": 0,
        "timestamp": 77,
    }
    assert (second["position"], second["codec"], second["first_offset"]) == (first["size"], "lz4", 10)


def test_faults_name_their_file(tmp_path: Path) -> None:
    log = write_log(tmp_path, entry(2, "none", 0, 10), entry(2, "none", 5, 10), entry(2, "none", 15, 5))
    write_log(tmp_path, base=20)
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 5, 7))
    log.with_suffix(".timeindex").write_bytes(struct.pack(">qiqi", 1_000, 5, 999, 6))
    found: list[LocatedFault] = []
    for segment in list_segments(tmp_path):
        list(read_rows(segment, found.append))
    assert [(located.file, located.fault.label) for located in found] == [
        ("t-0/00000000000000000000.log", "offsets_went_back"),
        ("t-0/00000000000000000000.index", "index_wrong"),
        ("t-0/00000000000000000000.timeindex", "index_wrong"),
    ]


def test_index_entry_for_decreasing_offsets_is_not_a_fault(tmp_path: Path) -> None:
    """Brokers up to 1.x write such an entry when they append the batch of KAFKA-3919."""
    first = entry(1, "snappy", 0, 100)
    log = write_log(tmp_path, first, entry(1, "snappy", 50, 100))
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 50, len(first)))
    assert find_labels(list_segments(tmp_path)[0]) == ["offsets_went_back"]


def test_index_entry_for_a_damaged_batch_is_not_a_fault(tmp_path: Path) -> None:
    parts = [entry(2, "none", first, 10) for first in (0, 10, 20)]
    size = len(parts[0])
    log = write_log(tmp_path, parts[0], parts[1][:-1] + b"\x99", parts[2])
    write_log(tmp_path, base=30)
    log.with_suffix(".index").write_bytes(struct.pack(">iiii", 10, size, 29, 2 * size))
    assert find_labels(list_segments(tmp_path)[0]) == ["crc_mismatch"]


def test_batch_being_written_is_no_torn_tail(tmp_path: Path) -> None:
    """The second pass finds it whole; one that stays as it is, is torn."""
    whole = entry(2, "none", 10, 10)
    log = write_log(tmp_path, entry(2, "none", 0, 10), whole[:-7])
    (segment,) = list_segments(tmp_path)
    assert find_labels(segment) == ["torn_tail"]
    reads: list[int] = []

    def finish_writing(count: int) -> None:
        reads.append(count)
        if len(reads) == 1:
            with log.open("ab") as file:
                file.write(whole[-7:])

    assert not find_labels(segment, throttle=finish_writing)
    assert len(reads) == 2


def test_log_truncated_or_deleted_meanwhile_has_no_faults(tmp_path: Path) -> None:
    """A follower truncates, retention deletes."""
    good, bad = entry(2, "none", 0, 10), b"\1" * 50
    for content in (good, None):
        log = write_log(tmp_path, good, bad, entry(2, "none", 10, 10))
        (segment,) = list_segments(tmp_path)
        found: list[LocatedFault] = []
        batches = read_rows(segment, found.append)
        assert next(batches).num_rows == 2
        log.unlink()
        if content is not None:
            log.write_bytes(content)
        assert not list(batches)
        assert not found


def test_deleted_segment_has_no_rows(tmp_path: Path) -> None:
    log = write_log(tmp_path, entry(2, "none", 0, 10))
    (segment,) = list_segments(tmp_path)
    log.unlink()
    found: list[LocatedFault] = []
    assert not list(read_rows(segment, found.append))
    assert not found


def test_segments_merged_meanwhile_hold_the_offsets_of_both(tmp_path: Path) -> None:
    """Compaction merges segments after they were listed; while both files exist, such offsets are a fault."""
    write_log(tmp_path, entry(2, "none", 0, 10), entry(2, "none", 50, 10))
    next_log = write_log(tmp_path, base=20)
    write_log(tmp_path, base=100)
    segment = list_segments(tmp_path)[0]
    assert find_labels(segment) == ["outside_segment"]
    next_log.unlink()
    assert not find_labels(segment)


def test_work_grows_with_the_number_of_faults_not_its_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    row_count = BatchColumns.row_count

    def count(columns: BatchColumns) -> int:
        counted.append(1)
        return int(row_count.__get__(columns))

    monkeypatch.setattr(BatchColumns, "row_count", property(count))
    write_log(tmp_path, *(entry(1, "none", offset, 1) for offset in range(240, 0, -1)))
    assert find_labels(*list_segments(tmp_path)) == ["offsets_went_back"] * 239
    assert len(counted) < 10 * 240


def test_rows_between_faults_are_joined_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_ROWS", 7)
    write_log(tmp_path, *(entry(1, "none", offset, 1) for offset in range(18, 0, -1)))
    (segment,) = list_segments(tmp_path)
    assert [rows.num_rows for rows in read_rows(segment, lambda _: None)] == [7, 7, 4]
