"""Files of the journal that checks cannot read: damage is counted, a failure of the system fails the check."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.model.exit_status import FAILED
from agent.model.observations.base import Tick
from agent.storage.journal import segments
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.failures import ArchivedFile, ArchiveError, ReadError
from agent.storage.journal.places import open_journals
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import find
from agent.storage.journal.writer import Journal
from spark_checks.command import external_cause, run_command
from spark_checks.journal import compaction, files
from spark_checks.journal.compaction import merge
from spark_checks.journal.files import DamagedFiles, Piece, find_pieces, read, scan, without_damaged
from tests.storage.journals import NOON, Unreadable, commit

EVER = (0, NOON * 2)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with three files of 100 commits each."""
    for number in range(3):
        with closing(Journal(tmp_path / "journal")) as writer:
            writer.append([commit(NOON + number * 100 + at, number * 100 + at) for at in range(100)])
    return tmp_path / "journal"


def paths(journal: Path) -> list[Path]:
    return sorted(journal.glob("commit/*/*.parquet"))


def refuse(path: Path) -> None:
    """Let the system fail to open a file: with ELOOP, which permissions of this user do not change."""
    path.unlink()
    path.symlink_to(path)


def damage(path: Path) -> None:
    """Damage the first page of a file."""
    content = bytearray(path.read_bytes())
    content[10:30] = bytes(20)
    path.write_bytes(content)


def offsets(pieces: list[Piece]) -> list[int]:
    return [offset for piece in pieces for offset in read(piece, ["offset"])["offset"].to_pylist()]


def pieces_of(journal: Path) -> list[Piece]:
    return find_pieces(journal, "commit", *EVER, lambda *found: pytest.fail(str(found)))


def test_a_file_that_the_system_cannot_open_is_not_damaged(journal: Path) -> None:
    pieces = pieces_of(journal)
    refuse(paths(journal)[1])
    with pytest.raises(ReadError, match=r"0100-.*\.parquet cannot be read: Too many levels of symbolic links"):
        pieces_of(journal)
    with pytest.raises(ReadError, match=r"0100-.*\.parquet cannot be read: Too many levels of symbolic links"):
        offsets(pieces)
    with pytest.raises(ReadError):
        list(entries(journal, skips_failures=False))


def test_an_agent_starts_without_a_file_that_the_system_cannot_open(journal: Path) -> None:
    refuse(paths(journal)[1])
    unreadable = Unreadable()
    found = [position for position, _ in entries(journal, unreadable=unreadable)]
    assert found == [*range(100), *range(200, 300)]
    assert unreadable.paths == [paths(journal)[1]]


def test_an_archived_file_that_cannot_be_read_is_not_damaged(journal: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    Archiver(journal, Archive(url), "a", 1 << 40).ship()
    (archived,) = open_journals(url)
    pieces = find_pieces(archived, "commit", *EVER, lambda *found: pytest.fail(str(found)))
    found = archived.find(["commit"])
    assert offsets(pieces) == list(range(300))
    refuse(next((tmp_path / "archive").rglob("*0100-*.parquet")))
    with pytest.raises(ArchiveError, match="cannot be read"):
        offsets(pieces)
    with pytest.raises(ArchiveError, match="cannot be read"):
        list(segments.batches(found[1], *EVER))


class Unreachable:
    """An object store, and a file of it, whose connection breaks after opening: Arrow's error has no errno."""

    closed = False

    def open_input_file(self, _: str) -> "Unreachable":
        return self

    def read(self, *_: int) -> bytes:
        msg = "When reading information for key: AWS Error NETWORK_CONNECTION"
        raise OSError(msg)

    def seek(self, *_: int) -> int:
        return 4_096

    def tell(self) -> int:
        return 4_096

    def close(self) -> None:
        """Do nothing."""


def test_an_error_of_an_object_store_is_that_of_the_archive() -> None:
    store: Any = Unreachable()
    with pytest.raises(ArchiveError, match=r"^s3://b/k cannot be read: When reading .* NETWORK_CONNECTION"):
        parquet.read_metadata(ArchivedFile(store, "k", "s3://b/k"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 40 rows, each a piece."""
    monkeypatch.setattr(segments, "ROW_GROUP", 40)
    monkeypatch.setattr(compaction, "ROW_GROUP", 40)
    monkeypatch.setattr(files, "PIECE_ROWS", 1)


@pytest.mark.usefixtures("small")
def test_rows_of_a_file_that_was_merged_are_read_from_the_other(journal: Path) -> None:
    pieces = pieces_of(journal)
    assert len(pieces) == 9
    whole = [read(piece, ["position", "offset"]) for piece in pieces]
    merge(find(journal))
    assert len(paths(journal)) == 1
    assert [read(piece, ["position", "offset"]) for piece in pieces] == whole
    assert offsets(pieces) == list(range(300))


def test_of_a_file_that_was_removed_there_are_no_rows(journal: Path) -> None:
    pieces = pieces_of(journal)
    paths(journal)[1].unlink()
    assert offsets(pieces) == [*range(100), *range(200, 300)]
    (journal / "commit").rename(journal / "gone")
    assert offsets(pieces) == []


def test_files_that_are_merged_while_they_are_listed_are_listed_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = find(journal)
    merge(listed)
    lists = iter([listed, find(journal)])
    monkeypatch.setattr(files, "find_segments", lambda *_: next(lists))
    assert offsets(pieces_of(journal)) == list(range(300))


def test_a_damaged_page_is_left_out_and_counted(spark: SparkSession, journal: Path) -> None:
    damaged, times = DamagedFiles(), 0

    def count_rows() -> int:
        nonlocal times
        times += 1
        pieces = find_pieces(journal, "commit", *EVER, damaged)
        return scan(spark, "commit", pieces, ["position"], since=0, until=EVER[1], only={}, damaged=damaged).count()

    for path in paths(journal)[:2]:
        damage(path)
    assert without_damaged(spark, damaged, count_rows) == 100
    assert (damaged, damaged.summary(), times) == (paths(journal)[:2], ["2 damaged journal files skipped"], 2)


def test_a_failure_of_the_system_fails_the_query(spark: SparkSession, journal: Path) -> None:
    damaged = DamagedFiles()
    pieces = pieces_of(journal)
    refuse(paths(journal)[1])

    def count_rows() -> int:
        return scan(spark, "commit", pieces, ["position"], since=0, until=EVER[1], only={}, damaged=damaged).count()

    with pytest.raises(Exception, match="Too many levels of symbolic links") as failed:
        without_damaged(spark, damaged, count_rows)
    assert external_cause(failed.value) == f"{paths(journal)[1]} cannot be read: Too many levels of symbolic links"
    assert damaged == []


def test_a_check_fails_if_its_options_cannot_be_compared_with_the_journal(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Journal(journal)) as writer:
        writer.append([Tick(at=NOON)])
    for path in paths(journal):
        refuse(path)
    no_session: Any = None
    assert run_command(["offset_history", "--journal", str(journal)], no_session) == FAILED
    assert "The check offset_history failed: " in capsys.readouterr().err
