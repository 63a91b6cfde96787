"""The archive after outages, and while local files cannot be read."""

from collections.abc import Iterable, Iterator
from errno import EIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from agent.storage.journal import archiver, segments
from agent.storage.journal.archive import Archive, Content, LocalFileError
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import ROW_GROUP
from tests.storage.archives import archived, fail, files, merge, ship, write

ROWS = 8 * ROW_GROUP
ROW_BYTES = 112
SCHEMA = pa.schema([("position", pa.int64()), ("group", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> Archive:
    return Archive(f"file://{tmp_path}/archive")


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """The memory that Arrow allocates during the test."""
    default = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(default)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(default)


def tables(first: int, last: int) -> Iterator[pa.Table]:
    """Yield rows of ROW_BYTES, a row group at a time."""
    for begin in range(first, last + 1, ROW_GROUP):
        positions = range(begin, min(begin + ROW_GROUP, last + 1))
        yield pa.table({"position": positions, "group": ["g" * 100] * len(positions)}, SCHEMA)


def seal(folder: Path, first: int, last: int, content: Iterable[pa.Table]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first:019d}-{last:019d}.parquet"
    segments.write(path, SCHEMA, content)
    return path


def test_the_rest_of_a_merged_file_is_streamed(tmp_path: Path, store: Archive, pool: pa.MemoryPool) -> None:
    """After an outage it may be nearly all of a file that takes gigabytes in memory."""
    local = tmp_path / "journal"
    folder = local / "commit" / "date=2026-11-20"
    part = seal(folder, 0, 1_233, tables(0, 1_233))
    ship(local, store)
    part.unlink()
    seal(folder, 0, ROWS - 1, tables(0, ROWS - 1))
    ship(local, store)
    assert [path.name for path in files(store)] == [
        f"{0:019d}-{1_233:019d}.parquet",
        f"{1_234:019d}-{ROWS - 1:019d}.parquet",
    ]
    rest = parquet.read_metadata(files(store)[1])
    assert [rest.row_group(number).num_rows for number in range(rest.num_row_groups)] == 7 * [ROW_GROUP] + [64_302]
    assert pool.max_memory() < 5 * ROW_GROUP * ROW_BYTES


def test_file_in_flight_is_discarded_before_other_folders_are_shipped(
    local: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of a folder that precedes the one with the file in flight was sealed meanwhile."""
    put = store.put

    def put_in_vain(source: Path, content: Content, target: str) -> None:
        if "/tick/" not in target:
            put(source, content, target)
            return
        Path(target).parent.mkdir(parents=True)
        Path(target).write_bytes(bytes(content.size))  # of the same size, as the listing shows
        raise OSError(EIO, "the store is unavailable")

    with monkeypatch.context() as context:
        context.setattr(store, "put", put_in_vain)
        with pytest.raises(OSError, match="unavailable"):
            ship(local, store)
    write(local, 600, 1)
    for folder in (local / "tick").iterdir():
        merge(folder)
    ship(local, store)
    assert archived(store) == list(entries(local, unreadable=fail))
    assert not (local / "archive-in-flight").exists()


def test_what_is_left_of_a_put_is_discarded(store: Archive, tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "tick"
    folder.mkdir(parents=True)
    for name in ("whole.parquet", "_whole.parquet.tmp", "other.parquet"):
        (folder / name).write_bytes(b"rows")
    store.discard(f"{store.root}/tick/whole.parquet")
    store.discard(f"{store.root}/tick/absent.parquet")
    store.discard(f"{store.root}/commit/absent.parquet")
    assert [path.name for path in files(store)] == ["other.parquet"]


def test_file_in_flight_of_another_archive_is_left_alone(local: Path, store: Archive, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes(b"rows")
    (local / "archive-in-flight").write_text(f"{other}\n")
    ship(local, store)
    assert other.exists()
    assert archived(store) == list(entries(local, unreadable=fail))


def make_unreadable(path: Path) -> None:
    """Put a link to itself in place of a file: opening it fails also for root."""
    path.unlink()
    path.symlink_to(path)


def test_unreadable_file_holds_back_its_folder_only(local: Path, store: Archive) -> None:
    expected = list(entries(local, unreadable=fail))
    folder, *others = sorted(local.glob("*/date=*"))
    unreadable = sorted(folder.iterdir())[1]
    content = unreadable.read_bytes()
    make_unreadable(unreadable)
    shipper = Archiver(local, store, "a", 0, unreadable=fail)
    for _ in range(2):
        with pytest.raises(LocalFileError, match=f"symbolic links: '{unreadable}'"):
            shipper.ship()
        assert len(files(store)) == 1 + 3 * len(others)
        assert [shipper.is_archived(other) for other in others] == [True] * len(others)
        assert not shipper.is_archived(folder)
        assert shipper.progress.pending == 2
    unreadable.unlink()
    unreadable.write_bytes(content)
    shipper.ship()
    assert archived(store) == expected


def test_file_that_becomes_unreadable_in_flight_holds_back_its_folder_only(
    local: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(entries(local, unreadable=fail))
    source = min((local / "commit" / "date=2026-11-21").iterdir())
    content, begin = source.read_bytes(), archiver._write

    def begin_and_make_unreadable(mark: Path, target: str) -> None:
        begin(mark, target)
        if target.endswith(source.name) and "/commit/" in target:
            make_unreadable(source)

    shipper = Archiver(local, store, "a", 0, unreadable=fail)
    with monkeypatch.context() as context:
        context.setattr(archiver, "_write", begin_and_make_unreadable)
        with pytest.raises(LocalFileError, match=source.name):
            shipper.ship()
    assert len(files(store)) == 9
    source.unlink()
    source.write_bytes(content)
    shipper.ship()
    assert archived(store) == expected
    assert len(files(store)) == 12


def test_failure_of_the_archive_is_raised_at_once(local: Path, store: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further attempt would take as long as a server that does not respond."""
    attempts = []

    def put(source: Path, content: Content, target: str) -> None:
        attempts.append((source, content, target))
        raise OSError(EIO, "the store is unavailable")

    monkeypatch.setattr(store, "put", put)
    with pytest.raises(OSError, match="unavailable"):
        ship(local, store)
    assert len(attempts) == 1
