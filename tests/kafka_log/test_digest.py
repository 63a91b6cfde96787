"""Rows and digests of a log directory, also where a broker is at work on it meanwhile."""

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.kafka_log.digest import Pace, digest, read_digest
from agent.kafka_log.log_directory import LogDirectoryError, Segment, partitions
from agent.kafka_log.rows import SCHEMA, Found, rows
from tests.kafka_log.writer import batch, entry, wrapper


def log_of(root: Path, *entries: bytes, base: int = 0, topic: str = "t") -> Path:
    """A segment's log with these entries."""
    path = root / f"{topic}-0" / f"{base:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(entries))
    return path


def segments(root: Path) -> list[Segment]:
    """All segments of a log directory."""
    return [segment for one in partitions(2005, str(root)) for segment in one.segments]


def test_rows_are_the_entries_of_a_segment(tmp_path: Path) -> None:
    """With the broker and the file, so that those of several can be joined."""
    log_of(tmp_path, batch(0, range(10), epoch=3, timestamp=77), wrapper([10, 15], magic=1, codec="lz4"))
    found: list[Found] = []
    (segment,) = segments(tmp_path)
    table = pa.Table.from_batches(rows(segment, found.append))
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


def test_faults_name_the_file_they_are_in(tmp_path: Path) -> None:
    """The log's, and those of its indexes."""
    log = log_of(tmp_path, entry(2, "none", 0, 10), entry(2, "none", 5, 10), entry(2, "none", 15, 5))
    log_of(tmp_path, base=20)
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 5, 7))
    log.with_suffix(".timeindex").write_bytes(struct.pack(">qiqi", 1_000, 5, 999, 6))
    found: list[Found] = []
    for segment in segments(tmp_path):
        list(rows(segment, found.append))
    assert [(one.file, one.fault.label) for one in found] == [
        ("t-0/00000000000000000000.log", "offsets_went_back"),
        ("t-0/00000000000000000000.index", "index_wrong"),
        ("t-0/00000000000000000000.timeindex", "index_wrong"),
    ]


def test_an_index_that_leads_to_where_offsets_go_back_is_not_blamed(tmp_path: Path) -> None:
    """Brokers up to 1.x write such an entry when they append the batch of KAFKA-3919."""
    one = entry(1, "snappy", 0, 100)
    log = log_of(tmp_path, one, entry(1, "snappy", 50, 100))
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 50, len(one)))
    found: list[Found] = []
    list(rows(segments(tmp_path)[0], found.append))
    assert [one.fault.label for one in found] == ["offsets_went_back"]


def test_an_index_that_leads_to_a_damaged_batch_is_not_blamed(tmp_path: Path) -> None:
    """The damage is told once."""
    parts = [entry(2, "none", first, 10) for first in (0, 10, 20)]
    size = len(parts[0])
    log = log_of(tmp_path, parts[0], parts[1][:-1] + b"\x99", parts[2])
    log_of(tmp_path, base=30)
    log.with_suffix(".index").write_bytes(struct.pack(">iiii", 10, size, 29, 2 * size))
    found: list[Found] = []
    list(rows(segments(tmp_path)[0], found.append))
    assert [one.fault.label for one in found] == ["crc_mismatch"]


def test_a_batch_that_is_being_written_is_no_torn_tail(tmp_path: Path) -> None:
    """The second look finds it whole; one that stays as it is, is torn."""
    whole = entry(2, "none", 10, 10)
    log = log_of(tmp_path, entry(2, "none", 0, 10), whole[:-7])
    found: list[Found] = []
    (segment,) = segments(tmp_path)
    list(rows(segment, found.append))
    assert [one.fault.label for one in found] == ["torn_tail"]
    found.clear()
    reads: list[int] = []

    def finish_writing(count: int) -> None:
        reads.append(count)
        if len(reads) == 1:
            with log.open("ab") as file:
                file.write(whole[-7:])

    list(rows(segment, found.append, paced=finish_writing))
    assert len(reads) == 2
    assert not found


def test_a_log_that_is_truncated_or_deleted_meanwhile_has_no_faults(tmp_path: Path) -> None:
    """A follower truncates, retention deletes."""
    good, bad = entry(2, "none", 0, 10), b"\1" * 50
    for content in (good, None):
        log = log_of(tmp_path, good, bad, entry(2, "none", 10, 10))
        (segment,) = segments(tmp_path)
        found: list[Found] = []
        taken = rows(segment, found.append)
        assert next(taken).num_rows == 2
        log.unlink()
        if content is not None:
            log.write_bytes(content)
        assert not list(taken)
        assert not found


def test_a_segment_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    """It was deleted after it had been listed."""
    log = log_of(tmp_path, entry(2, "none", 0, 10))
    (segment,) = segments(tmp_path)
    log.unlink()
    found: list[Found] = []
    assert not list(rows(segment, found.append))
    assert not found


def test_segments_that_compaction_joined_meanwhile_hold_the_offsets_of_both(tmp_path: Path) -> None:
    """The listing was older than the files; while both are there, such offsets are a fault."""
    log_of(tmp_path, entry(2, "none", 0, 10), entry(2, "none", 50, 10))
    behind = log_of(tmp_path, base=20)
    log_of(tmp_path, base=100)
    segment = segments(tmp_path)[0]
    found: list[Found] = []
    list(rows(segment, found.append))
    assert [one.fault.label for one in found] == ["outside_segment"]
    found.clear()
    behind.unlink()
    list(rows(segment, found.append))
    assert not found


def test_a_digest_says_what_its_directory_does(tmp_path: Path) -> None:
    """The same rows, checkpoints and faults, without the segments."""
    root = tmp_path / "log"
    log_of(root, entry(2, "none", 0, 10), entry(2, "none", 5, 10), topic="a")
    log_of(root, entry(1, "gzip", 0, 10), topic="b")
    log_of(root, entry(0, "none", 10, 10), base=10, topic="b")
    (root / "replication-offset-checkpoint").write_text("0\n2\na 0 12\nb 0 20\n")
    (root / "a-0/leader-epoch-checkpoint").write_text("0\n1\n4 0\n")
    out = tmp_path / "2005.parquet"
    steps: list[tuple[int, int]] = []
    made = digest(2005, str(root), out, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2005.parquet", "log"]
    taken = read_digest(out)
    found: list[Found] = []
    direct = [one for segment in segments(root) for one in rows(segment, found.append)]
    assert pa.Table.from_batches(taken.rows()).equals(pa.Table.from_batches(direct))
    assert taken.found == found == made.found
    assert taken.broker == 2005
    assert [one._replace(directory="", segments=()) for one in taken.partitions] == [
        one._replace(directory="", segments=()) for one in partitions(2005, str(root))
    ]
    assert read_digest(digest(2005, str(root), out, topics=["a"]).path).partitions[0].topic == "a"


def test_a_digest_vouches_from_the_log_start_of_afterwards(tmp_path: Path) -> None:
    """Retention may delete a segment before it is read: its offsets are not missing, they are gone."""
    root = tmp_path / "log"
    first = log_of(root, entry(2, "none", 0, 10))
    log_of(root, entry(2, "none", 10, 10), base=10)
    made = digest(1, str(root), tmp_path / "d.parquet", progress=lambda _done, _of: first.unlink(missing_ok=True))
    assert [one.log_start for one in made.partitions] == [10]
    assert pq.read_metadata(made.path).num_rows == 1


def test_a_digest_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """It takes its name when it is whole."""
    root = tmp_path / "log"
    log_of(root, entry(2, "none", 0, 10))
    out = tmp_path / "d.parquet"
    out.write_bytes(b"before")

    def interrupted(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digest(1, str(root), out, progress=interrupted)
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.parquet", "log"]
    with pytest.raises(LogDirectoryError, match="cannot be written"):
        digest(1, str(root), tmp_path / "nowhere" / "d.parquet")


def test_what_is_no_digest_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A file that is missing, one that is no Parquet, and a Parquet file of something else."""
    (tmp_path / "text").write_text("no digest")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    for name in ("missing", "text", "other.parquet"):
        with pytest.raises(LogDirectoryError, match="no digest that"):
            read_digest(tmp_path / name)


def test_a_digest_reads_no_faster_than_it_may() -> None:
    """However the reads come; a pause is not made up for."""
    now, waits = [100.0], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    pace = Pace(1_000, clock=lambda: now[0], wait=wait)
    for _ in range(10):
        pace(500)
    assert now[0] == pytest.approx(104.5)
    now[0] += 60
    waits.clear()
    pace(500)
    assert not waits
    pace(500)
    assert waits == [pytest.approx(0.5)]
