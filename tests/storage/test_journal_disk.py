"""The journal on a disk that is full or takes no writes: observations wait, and each is written once."""

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from errno import EIO
from pathlib import Path

import pyarrow as pa
import pytest

from agent.model.observations.base import Tick
from agent.model.observations.kafka import OffsetsPosition
from agent.storage.journal.reader import entries, read
from agent.storage.journal.segments import DAY_MS, Segment, batches
from agent.storage.journal.writer import Journal, JournalError
from tests.storage.journals import NOON, Unreadable, commit


def test_a_segment_that_cannot_be_sealed_is_sealed_later(tmp_path: Path) -> None:
    """The journal says so until then, and seals the others."""
    sealed: list[bool] = []
    with closing(Journal(tmp_path, segment_ms=0, sealed=lambda: sealed.append(True))) as journal:
        journal.append([commit(NOON), Tick(at=NOON)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
        in_the_way = stream.with_suffix(".tmp")
        in_the_way.mkdir()
        with pytest.raises(JournalError, match=f"{stream} cannot be sealed"):
            journal.seal(NOON)
        assert sealed == [True]
        journal.append([commit(NOON + 1)])
        journal.flush()
        in_the_way.rmdir()
        with pytest.raises(JournalError, match="is tried again"):
            journal.seal(NOON + 59_999)
        journal.seal(NOON + 60_000)
        assert not list(tmp_path.glob("*/*/_*"))
        assert list(read(tmp_path)) == [commit(NOON), Tick(at=NOON), commit(NOON + 1)]


def test_what_cannot_be_sealed_at_the_start_is_sealed_later(tmp_path: Path) -> None:
    """As on a disk that is still full after a restart."""
    stopped = Journal(tmp_path)
    stopped.append([commit(NOON), Tick(at=NOON)])
    stopped.flush()
    for stream in tmp_path.glob("*/*/_*.arrow"):
        stream.with_suffix(".tmp").mkdir()
    with pytest.raises(JournalError, match="cannot be sealed"):
        stopped.close()
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        assert [reason.partition(":")[0] for reason in unreadable.reasons] == ["cannot be recovered"]
        for in_the_way in tmp_path.glob("*/*/_*.tmp"):
            in_the_way.rmdir()
        journal.seal(NOON)
        assert not list(tmp_path.glob("*/*/_*"))
        assert list(read(tmp_path)) == [commit(NOON), Tick(at=NOON)]


def test_a_start_on_a_full_disk_reads_only_what_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that cannot be sealed does not keep the others from it."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, offset) for offset in range(70)])
    stopped = Journal(tmp_path)
    stopped.append([commit(NOON, 70), Tick(at=NOON), commit(NOON, 71)])
    stopped.flush()
    for stream in tmp_path.glob("*/*/_*.arrow"):
        stream.with_suffix(".tmp").mkdir()
    with pytest.raises(JournalError, match="cannot be sealed"):
        stopped.close()
    next(tmp_path.glob("tick/*/_*.tmp")).rmdir()
    read_files: list[str] = []

    def note(segment: Segment, since: int, until: int) -> Iterator[pa.RecordBatch]:
        read_files.append(segment.path.name)
        yield from batches(segment, since, until)

    monkeypatch.setattr("agent.storage.journal.reader.batches", note)
    restarted = Journal(tmp_path, unreadable=Unreadable())
    assert restarted.position == 73
    assert read_files == [f"_{70:019d}.arrow"]
    assert [path.name for path in tmp_path.glob("tick/*/*")] == [f"{71:019d}-{71:019d}.parquet"]
    next(tmp_path.glob("commit/*/_*.tmp")).rmdir()
    restarted.close()


def test_a_segment_that_cannot_be_sealed_may_be_removed(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, segment_ms=0)) as journal:
        journal.append([commit(NOON)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
        stream.with_suffix(".tmp").mkdir()
        with pytest.raises(JournalError):
            journal.seal(NOON)
        journal.append([commit(NOON + 9 * DAY_MS)])
        journal.flush()
        journal.retain(days=1, now=NOON + 9 * DAY_MS)
        journal.seal(NOON + 9 * DAY_MS)
    assert list(read(tmp_path)) == [commit(NOON + 9 * DAY_MS)]


def test_after_a_full_disk_observations_are_written_once(tmp_path: Path) -> None:
    """An incomplete write raises; readers see earlier flushes; nothing is lost or duplicated."""
    observations = [commit(NOON, 1), Tick(at=NOON + 1), *(commit(NOON, offset) for offset in range(2, 500))]
    with closing(Journal(tmp_path)) as journal:
        journal.append(observations[:1])
        journal.flush()
        journal.append(observations[1:])
        with no_larger_than(1_000, tmp_path), pytest.raises(JournalError, match=r"cannot be written.*File too large"):
            journal.flush()
        assert list(read(tmp_path)) == observations[:2]
        journal.append([commit(NOON, 500)])
        journal.flush()
        assert list(read(tmp_path)) == [*observations, commit(NOON, 500)]
    assert list(read(tmp_path)) == [*observations, commit(NOON, 500)]


def test_what_follows_dropped_observations_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shorter than the incomplete write before it, of which nothing may remain in the file."""
    monkeypatch.setattr("agent.storage.journal.writer.MAX_WAITING", 400)
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        journal.append([commit(NOON, 1)])
        journal.flush()
        journal.append([commit(NOON, offset) for offset in range(2, 500)])
        with no_larger_than(10_000, tmp_path), pytest.raises(JournalError, match="498 observations were dropped"):
            journal.flush()
        journal.append([commit(NOON, 500)])
        journal.flush()
        assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 500)]
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 500)]
    assert unreadable.reasons == []


def test_a_position_is_written_only_after_the_commits_before_it(tmp_path: Path) -> None:
    """A small write succeeds on a nearly full disk where a large one fails."""

    def position(offset: int) -> OffsetsPosition:
        return OffsetsPosition(at=NOON, cluster="c", partition=0, next_offset=offset, partitions=1)

    commits = [commit(NOON, offset) for offset in range(2, 500)]
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
        journal.flush()
        journal.append([position(1)])
        journal.append([*commits, position(500)])
        with no_larger_than(10_000, tmp_path), pytest.raises(JournalError):
            journal.flush()
        assert list(read(tmp_path)) == [commit(NOON, 1)]
        journal.flush()
        assert list(read(tmp_path)) == [commit(NOON, 1), position(1), *commits, position(500)]


def test_a_kind_that_cannot_be_written_keeps_no_other_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder belongs to another user, say: only its own observations are dropped beyond the limit."""
    monkeypatch.setattr("agent.storage.journal.writer.MAX_WAITING", 5)
    (tmp_path / "commit").touch()
    with closing(Journal(tmp_path)) as journal:
        for second in range(3):
            journal.append([commit(NOON, 2 * second), commit(NOON, 2 * second + 1), Tick(at=NOON + second)])
            with pytest.raises(JournalError, match=r"commit/date=.* wait in memory") as raised:
                journal.flush()
        assert "6 observations were dropped" in str(raised.value)
        assert list(read(tmp_path, kinds=["tick"])) == [Tick(at=NOON + second) for second in range(3)]
        (tmp_path / "commit").unlink()
        journal.append([commit(NOON, 6)])
        journal.flush()
    assert list(read(tmp_path, kinds=["commit"])) == [commit(NOON, 6)]


def test_a_disk_that_does_not_keep_names_costs_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush tries again."""

    def fail(folder: Path) -> None:
        raise OSError(EIO, "Input/output error", str(folder))

    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
        before = len(list(Path("/proc/self/fd").iterdir()))
        with monkeypatch.context() as patched:
            patched.setattr("agent.storage.journal.segments.sync", fail)
            for _ in range(3):
                with pytest.raises(JournalError, match="Input/output error"):
                    journal.flush()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(read(tmp_path)) == [commit(NOON, 1)]


@contextmanager
def no_larger_than(more: int, directory: Path) -> Iterator[None]:
    """Let this process write so many bytes more to the open segment of commits, as if the disk were full then."""
    (stream,) = directory.glob("commit/*/_*.arrow")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (stream.stat().st_size + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_observations_wait_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.storage.journal.writer.MAX_WAITING", 10)
    (tmp_path / "file").touch()
    with closing(Journal(tmp_path / "file" / "journal", unreadable=Unreadable())) as journal:
        journal.append([commit(NOON, offset) for offset in range(10)])
        with pytest.raises(JournalError, match=r"cannot be opened: [^;]*$"):
            journal.flush()
        journal.append([commit(NOON, 10)])
        with pytest.raises(JournalError, match="11 observations were dropped"):
            journal.flush()
        (tmp_path / "file").unlink()
        journal.append([commit(NOON, 11)])
        journal.flush()
        assert list(entries(tmp_path / "file" / "journal")) == [(11, commit(NOON, 11))]
