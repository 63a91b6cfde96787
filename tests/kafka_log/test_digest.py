"""Digests of a log directory, also while a broker writes to it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.kafka_log.digest import BandwidthLimit, read_digest, write_digest
from agent.kafka_log.log_directory import LogDirectoryError, list_partitions
from agent.kafka_log.segments import LocatedFault, read_rows
from tests.kafka_log.test_segments import list_segments
from tests.kafka_log.writer import entry, write_log


def test_digest_holds_what_its_directory_does(tmp_path: Path) -> None:
    """The same rows, checkpoints and faults, without the segments."""
    root = tmp_path / "log"
    write_log(root, entry(2, "none", 0, 10), entry(2, "none", 5, 10), topic="a")
    write_log(root, entry(1, "gzip", 0, 10), topic="b")
    write_log(root, entry(0, "none", 10, 10), base=10, topic="b")
    (root / "replication-offset-checkpoint").write_text("0\n2\na 0 12\nb 0 20\n")
    (root / "a-0/leader-epoch-checkpoint").write_text("0\n1\n4 0\n")
    out = tmp_path / "2005.parquet"
    steps: list[tuple[int, int]] = []
    written = write_digest(2005, str(root), out, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2005.parquet", "log"]
    digest = read_digest(out)
    found: list[LocatedFault] = []
    rows = [batch for segment in list_segments(root) for batch in read_rows(segment, found.append)]
    assert pa.Table.from_batches(digest.read_rows()).equals(pa.Table.from_batches(rows))
    assert digest.found == found == written.found
    assert digest.broker == 2005
    assert [partition._replace(directory="", segments=()) for partition in digest.partitions] == [
        partition._replace(directory="", segments=()) for partition in list_partitions(2005, str(root))
    ]
    assert read_digest(write_digest(2005, str(root), out, topics=["a"]).path).partitions[0].topic == "a"


def test_digest_covers_offsets_from_the_log_start_after_reading(tmp_path: Path) -> None:
    """Retention may delete a segment before it is read: its offsets are not missing, they were deleted."""
    root = tmp_path / "log"
    first = write_log(root, entry(2, "none", 0, 10))
    write_log(root, entry(2, "none", 10, 10), base=10)
    digest = write_digest(
        1, str(root), tmp_path / "d.parquet", progress=lambda _done, _of: first.unlink(missing_ok=True)
    )
    assert [partition.log_start for partition in digest.partitions] == [10]
    assert pq.read_metadata(digest.path).num_rows == 1


@pytest.mark.parametrize("is_done", [True, False])
def test_digest_does_not_cover_what_is_compacted_meanwhile(tmp_path: Path, *, is_done: bool) -> None:
    """The cleaner has written its checkpoint by then, or may still be at work on all but the last segment."""
    root = tmp_path / "log"
    first = write_log(root, entry(2, "none", 0, 10), entry(2, "none", 10, 10))
    for base in (20, 30):
        write_log(root, entry(2, "none", base, 10), base=base)

    def clean(done: int, _of: int) -> None:
        if done == 0:
            first.write_bytes(entry(2, "none", 10, 10))
        elif is_done:
            (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 20\n")
        else:
            first.with_name(f"{20:020d}.log.cleaned").touch()

    digest = write_digest(1, str(root), tmp_path / "d.parquet", progress=clean)
    assert [partition.cleaned_up_to for partition in digest.partitions] == [20 if is_done else 30]


def test_failed_digest_leaves_the_previous_file(tmp_path: Path) -> None:
    root = tmp_path / "log"
    write_log(root, entry(2, "none", 0, 10))
    out = tmp_path / "d.parquet"
    out.write_bytes(b"before")

    def interrupt(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_digest(1, str(root), out, progress=interrupt)
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.parquet", "log"]
    with pytest.raises(LogDirectoryError, match="cannot be written"):
        write_digest(1, str(root), tmp_path / "nowhere" / "d.parquet")


def test_file_that_is_no_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no digest")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    for name in ("missing", "text", "other.parquet"):
        with pytest.raises(LogDirectoryError, match="not a digest written by"):
            read_digest(tmp_path / name)


def test_bandwidth_limit_is_kept() -> None:
    """However large the reads are; an idle time is not made up for."""
    now, waits = [100.0], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    limit = BandwidthLimit(1_000, clock=lambda: now[0], wait=wait)
    for _ in range(10):
        limit(500)
    assert now[0] == pytest.approx(104.5)
    now[0] += 60
    waits.clear()
    limit(500)
    assert not waits
    limit(500)
    assert waits == [pytest.approx(0.5)]
