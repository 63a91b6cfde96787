"""The journal's files in Spark's hands: pieces, merged files, retention."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.model.observations import Commit, Observation, Tick, millis
from agent.storage.journal import Journal, entries
from agent.storage.journal.segments import DAY_MS, find
from spark_checks.history import compaction
from spark_checks.history.compaction import clear, compact, groups, merge, retain, sealed
from spark_checks.history.files import pieces, read

NOON = millis("2026-11-18T12:00:00.000Z")
NOW = NOON + 3 * DAY_MS


def quiet(path: Path, reason: str) -> None:
    """Nothing may be left out."""
    pytest.fail(f"{path}: {reason}")


def taken(number: int) -> Observation:
    """A commit or a tick, of three dates in turn, a hundred of each."""
    at = NOON + number // 100 % 4 * DAY_MS + number
    key: dict[str, Any] = {"cluster": "main", "group": f"g{number % 3}", "topic": "t", "partition": number % 5}
    return Tick(at=at) if number % 10 == 0 else Commit(at=at, offset=None if number % 50 == 7 else number, **key)


def write(directory: Path, rounds: int = 5, size: int = 400) -> list[tuple[int, Observation]]:
    """A journal of `rounds` small files a kind and date. Returns what is in it."""
    for number in range(rounds):
        with closing(Journal(directory)) as journal:
            journal.append([taken(number * size + one) for one in range(size)])
    return list(entries(directory, unreadable=quiet))


def files(directory: Path, kind: str = "commit") -> list[int]:
    """How many files there are of each date."""
    return [len(list(folder.iterdir())) for folder in sorted((directory / kind).iterdir())]


def test_merged_files_hold_the_same_observations(spark: SparkSession, tmp_path: Path) -> None:
    """Dates before yesterday become one file each; the agent reads the same positions and observations."""
    before = write(tmp_path)
    assert files(tmp_path) == [5, 5, 5, 5]
    assert compact(spark, tmp_path, NOW) == 2 * 2 * 5
    assert files(tmp_path) == [1, 1, 5, 5]
    assert list(entries(tmp_path, unreadable=quiet)) == before
    assert compact(spark, tmp_path, NOW) == 0
    with closing(Journal(tmp_path)) as journal:
        assert journal.position == before[-1][0] + 1


def test_a_crash_while_merging_changes_nothing_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any step every row is in the pieces once; what the crash left is cleared by the next run."""
    write(tmp_path)
    folder = min((tmp_path / "commit").iterdir())
    group = sealed(folder)
    whole = [one.path.read_bytes() for one in group]
    positions = rows(tmp_path)
    monkeypatch.setattr(Path, "unlink", lambda _, **_more: None)
    merge(group)
    monkeypatch.undo()
    for one in group:
        assert rows(tmp_path) == positions
        assert [position for position, _ in entries(tmp_path, kinds=["commit"])] == sorted(positions)
        os.unlink(one.path)  # noqa: PTH108 - `unlink` is what merging uses
    assert rows(tmp_path) == positions
    for one, content in zip(group[1:], whole[1:], strict=True):
        one.path.write_bytes(content)
    clear(folder)
    assert [(one.first, one.last) for one in sealed(folder)] == [(group[0].first, group[-1].last)]


def rows(directory: Path) -> list[int]:
    """The positions of all commits in the pieces."""
    every = pieces(directory, "commit", 0, NOW + DAY_MS, quiet)
    return [position for one in every for position in read(one, ["position"])["position"].to_pylist()]


def test_a_damaged_file_stays_and_so_do_its_neighbours(tmp_path: Path) -> None:
    """What cannot be read is not merged away."""
    write(tmp_path)
    group = sealed(min((tmp_path / "commit").iterdir()))
    content = bytearray(group[2].path.read_bytes())
    content[40:80] = bytes(40)
    group[2].path.write_bytes(content)
    assert merge(group) == 0
    assert sealed(group[0].path.parent) == group
    assert not list(group[0].path.parent.glob("_*"))


def test_only_what_fits_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files grow to the size wanted and no further, and one alone is left as it is."""
    write(tmp_path)
    here = sealed(min((tmp_path / "commit").iterdir()))
    monkeypatch.setattr(compaction, "MERGED_BYTES", here[0].path.stat().st_size * 2 + 100)
    assert [len(group) for group in groups(here)] == [2, 2]
    monkeypatch.setattr(compaction, "MERGED_BYTES", 10)
    assert list(groups(here)) == []


def test_retention_is_left_to_a_running_agent(tmp_path: Path) -> None:
    """Without one, dates past it are removed."""
    write(tmp_path)
    with closing(Journal(tmp_path)):
        assert not retain(tmp_path, 1, NOW)
    assert len(files(tmp_path)) == 4
    assert retain(tmp_path, 1, NOW)
    assert {segment.day for segment in find(tmp_path)} == {NOW // DAY_MS - 1, NOW // DAY_MS}


def test_only_the_dates_asked_for_are_opened(tmp_path: Path) -> None:
    """Of other dates not even a damaged file is noticed; open segments are read too."""
    write(tmp_path)
    for path in min((tmp_path / "commit").iterdir()).iterdir():
        path.write_bytes(b"no Parquet")
    later = pieces(tmp_path, "commit", NOON + DAY_MS, NOON + 2 * DAY_MS, quiet)
    assert {Path(one.path).parent.name for one in later} == {"date=2026-11-19"}
    left_out: list[Path] = []
    pieces(tmp_path, "commit", NOON, NOON + DAY_MS, lambda path, _: left_out.append(path))
    assert len(left_out) == 5
    journal = Journal(tmp_path)
    with closing(journal):
        journal.append([Tick(at=NOW)])
        journal.flush()
        (last,) = (one for one in pieces(tmp_path, "tick", NOW, NOW + 1, quiet) if one.last is None)
        assert read(last, ["at", "position"])["at"].to_pylist() == [NOW]
