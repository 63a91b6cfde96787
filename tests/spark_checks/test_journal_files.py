"""The journal's files read and maintained with Spark: find_pieces, merged files, retention."""

import fcntl
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit
from agent.model.times import millis
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import DAY_MS, find, segments_in
from agent.storage.journal.writer import Journal
from spark_checks.journal import compaction
from spark_checks.journal.compaction import (
    apply_retention,
    compact,
    find_sealed,
    group_by_size,
    merge,
    remove_merged_parts,
)
from spark_checks.journal.files import find_pieces, read

NOON = millis("2026-11-18T12:00:00.000Z")
NOW = NOON + 3 * DAY_MS


def fail(path: Path, reason: str) -> None:
    """Fail, because no problem is expected."""
    pytest.fail(f"{path}: {reason}")


def observation(number: int) -> Observation:
    """Return a commit or a tick, of four dates in turn, a hundred of each."""
    at = NOON + number // 100 % 4 * DAY_MS + number
    key: dict[str, Any] = {"cluster": "main", "group": f"g{number % 3}", "topic": "t", "partition": number % 5}
    return Tick(at=at) if number % 10 == 0 else Commit(at=at, offset=None if number % 50 == 7 else number, **key)


def write(directory: Path, rounds: int = 5, size: int = 400) -> list[tuple[int, Observation]]:
    """Write `rounds` small files for each kind and date; return their content."""
    for number in range(rounds):
        with closing(Journal(directory)) as journal:
            journal.append([observation(number * size + own_number) for own_number in range(size)])
    return list(entries(directory, unreadable=fail))


def files(directory: Path, kind: str = "commit") -> list[int]:
    """Return the number of files of each date."""
    return [len(list(folder.iterdir())) for folder in sorted((directory / kind).iterdir())]


def test_merged_files_hold_the_same_observations(spark: SparkSession, tmp_path: Path) -> None:
    before = write(tmp_path)
    assert files(tmp_path) == [5, 5, 5, 5]
    assert compact(spark, tmp_path, NOW) == 2 * 2 * 5
    assert files(tmp_path) == [1, 1, 5, 5]
    assert list(entries(tmp_path, unreadable=fail)) == before
    assert compact(spark, tmp_path, NOW) == 0
    with closing(Journal(tmp_path)) as journal:
        assert journal.position == before[-1][0] + 1


def test_crash_while_merging_changes_nothing_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    folder = min((tmp_path / "commit").iterdir())
    group = find_sealed(folder)
    whole = [segment.path.read_bytes() for segment in group]
    positions = rows(tmp_path)
    monkeypatch.setattr(Path, "unlink", lambda _, **_more: None)
    merge(group)
    monkeypatch.undo()
    for segment in group:
        assert rows(tmp_path) == positions
        assert [position for position, _ in entries(tmp_path, kinds=["commit"])] == sorted(positions)
        os.unlink(segment.path)  # noqa: PTH108 - `unlink` is what merging uses
    assert rows(tmp_path) == positions
    for segment, content in zip(group[1:], whole[1:], strict=True):
        segment.path.write_bytes(content)
    remove_merged_parts(folder)
    assert [(segment.first, segment.last) for segment in find_sealed(folder)] == [(group[0].first, group[-1].last)]


def rows(directory: Path) -> list[int]:
    """Return the positions of all commits in the find_pieces."""
    every = find_pieces(directory, "commit", 0, NOW + DAY_MS, fail)
    return [position for piece in every for position in read(piece, ["position"])["position"].to_pylist()]


def test_damaged_file_and_its_neighbours_are_not_merged(tmp_path: Path) -> None:
    write(tmp_path)
    group = find_sealed(min((tmp_path / "commit").iterdir()))
    content = bytearray(group[2].path.read_bytes())
    content[40:80] = bytes(40)
    group[2].path.write_bytes(content)
    assert merge(group) == 0
    assert find_sealed(group[0].path.parent) == group
    assert not list(group[0].path.parent.glob("_*"))


def test_file_without_times_is_reported_and_skipped(tmp_path: Path) -> None:
    """As a flipped bit in a column's name leaves it."""
    write(tmp_path, rounds=2)
    damaged = find_sealed(min((tmp_path / "commit").iterdir()))[0].path
    names = ["ad" if name == "at" else name for name in parquet.read_schema(damaged).names]
    parquet.write_table(parquet.read_table(damaged, partitioning=None).rename_columns(names), damaged)
    reported: list[Path] = []
    pieces = find_pieces(tmp_path, "commit", NOON, NOW + DAY_MS, lambda path, _: reported.append(path))
    assert (len(pieces), reported) == (7, [damaged])


def test_only_one_run_merges_files_at_a_time(tmp_path: Path) -> None:
    """Two would write to the same file, and remove what only half of it holds."""
    write(tmp_path)
    no_spark: Any = None
    with (tmp_path / "compaction.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compact(no_spark, tmp_path, NOW) == 0
    assert files(tmp_path) == [5, 5, 5, 5]


def test_files_around_an_open_segment_are_not_merged(tmp_path: Path) -> None:
    """Readers would take what is open for a part of the merged file."""
    before = write(tmp_path)
    folder = min((tmp_path / "commit").iterdir())
    middle = find_sealed(folder)[2]
    table = parquet.read_table(middle.path, partitioning=None)
    with pa.ipc.new_stream(folder / f"_{middle.first:019d}.arrow", table.schema) as stream:
        stream.write_table(table)
    middle.path.unlink()
    assert [merge(group) for group in group_by_size(segments_in(folder))] == [2, 2]
    assert list(entries(tmp_path, unreadable=fail)) == before


def test_merged_files_stay_below_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    here = find_sealed(min((tmp_path / "commit").iterdir()))
    monkeypatch.setattr(compaction, "MERGED_BYTES", here[0].path.stat().st_size * 2 + 100)
    assert [len(group) for group in group_by_size(here)] == [2, 2]
    monkeypatch.setattr(compaction, "MERGED_BYTES", 10)
    assert list(group_by_size(here)) == []


def test_retention_is_left_to_a_running_agent(tmp_path: Path) -> None:
    write(tmp_path)
    with closing(Journal(tmp_path)):
        assert not apply_retention(tmp_path, 1, NOW)
    assert len(files(tmp_path)) == 4
    assert apply_retention(tmp_path, 1, NOW)
    assert {segment.day for segment in find(tmp_path)} == {NOW // DAY_MS - 1, NOW // DAY_MS}


def test_only_the_dates_asked_for_are_opened(tmp_path: Path) -> None:
    write(tmp_path)
    for path in min((tmp_path / "commit").iterdir()).iterdir():
        path.write_bytes(b"no Parquet")
    later = find_pieces(tmp_path, "commit", NOON + DAY_MS, NOON + 2 * DAY_MS, fail)
    assert {Path(entry.path).parent.name for entry in later} == {"date=2026-11-19"}
    skipped: list[Path] = []
    find_pieces(tmp_path, "commit", NOON, NOON + DAY_MS, lambda path, _: skipped.append(path))
    assert len(skipped) == 5
    journal = Journal(tmp_path)
    with closing(journal):
        journal.append([Tick(at=NOW)])
        journal.flush()
        (last,) = (piece for piece in find_pieces(tmp_path, "tick", NOW, NOW + 1, fail) if piece.last is None)
        assert read(last, ["at", "position"])["at"].to_pylist() == [NOW]
