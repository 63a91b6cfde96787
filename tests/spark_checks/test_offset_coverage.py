"""offset_history: what an unavailable source hides."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.model.observations.base import Available, Tick, Unavailable
from agent.model.times import millis
from agent.storage.journal import archiver
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.places import open_journals
from agent.storage.journal.writer import Journal
from spark_checks.journal.files import DamagedFiles, JournalWindow
from spark_checks.offsets.coverage import Clock, Gap, read_coverage, source_gaps
from spark_checks.offsets.findings import gap_finding


def gap(**names: Any) -> Gap:
    """Return the gap of a source that could not read a subject from 1 s to 101 s."""
    begin = Unavailable(at=1_000, cluster="main", reason="refused", **names)
    (found,) = source_gaps([begin, Available(at=101_000, cluster="main", **names)], until=200_000)
    return found


@pytest.mark.parametrize(
    ("names", "group", "hidden"),
    [
        ({"source": "kafka"}, "billing", True),
        ({"source": "kafka", "group": "billing"}, "billing", True),
        ({"source": "kafka", "group": "billing"}, "audit", False),
        ({"source": "kafka", "topic": "orders", "partition": 0}, "billing", False),
        ({"source": "zookeeper"}, "billing", False),
    ],
)
def test_only_what_reads_commits_hides_them(names: dict[str, Any], group: str, *, hidden: bool) -> None:
    assert gap(**names).may_hide(group, 50_000, 60_000) is hidden


def test_a_gap_of_zookeeper_says_that_causes_may_be_missing() -> None:
    detail = gap_finding(gap(source="zookeeper"), "main").detail
    assert detail.startswith("Causes may be missing: zookeeper could not be read between")
    assert gap_finding(gap(source="kafka"), "main").detail.startswith("Not compared: the journal has no observations")


NOON = millis("2026-11-20T12:00:00.000Z")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a journal is written; ids of journals are numbers."""
    monkeypatch.setattr(archiver, "_new_id", iter("123").__next__)
    return tmp_path / "journal"


def write_ticks(local: Path, begin: int, end: int) -> None:
    """Write a tick for each second from begin to below end, and archive the journal."""
    with closing(Journal(local)) as journal:
        first = journal.position
        journal.append([Tick(at=NOON + second * 1_000) for second in range(begin, end)])
    Archiver(local, Archive(f"file://{local.parent}/archive"), "a", first).ship()


class Undamaged(DamagedFiles):
    """No file is expected to be damaged."""

    def __call__(self, path: Path, reason: str) -> None:
        """Fail."""
        pytest.fail(f"{path}: {reason}")


def covered(local: Path, damaged: DamagedFiles | None = None) -> tuple[Clock, list[Gap]]:
    (journal,) = open_journals(f"file://{local.parent}/archive")
    spark: Any = None  # neither ticks nor availability need it
    files = Undamaged() if damaged is None else damaged
    return read_coverage(JournalWindow(spark, journal, "main", NOON, NOON + 3_600_000, files))


def test_positions_of_two_journals_are_not_mixed(local: Path) -> None:
    """An agent whose state was lost counts from 0 again."""
    write_ticks(local, 0, 300)
    shutil.rmtree(local)
    write_ticks(local, 400, 700)
    clock, gaps = covered(local)
    assert clock.steps == ()
    assert [(found.begin - NOON, found.end - NOON) for found in gaps] == [(299_000, 400_000)]


def test_a_restored_journal_is_no_clock_that_was_set_back(local: Path) -> None:
    write_ticks(local, 0, 300)
    shutil.copytree(local, local.parent / "backup")
    write_ticks(local, 300, 600)
    shutil.rmtree(local)
    (local.parent / "backup").rename(local)
    write_ticks(local, 620, 900)
    clock, gaps = covered(local)
    assert (clock.steps, gaps) == ((), [])


def test_damaged_ticks_neither_are_a_gap_nor_hide_one(local: Path) -> None:
    for begin, end in ((0, 600), (600, 1_200), (1_260, 1_800)):
        write_ticks(local, begin, end)
    _, gaps = covered(local)
    ticks = sorted((local.parent / "archive" / "tick").rglob("*.parquet"))
    content = bytearray(ticks[1].read_bytes())
    content[10:30] = bytes(20)  # of the first page
    ticks[1].write_bytes(content)
    damaged = DamagedFiles()
    assert covered(local, damaged)[1] == gaps
    assert [path.name for path in damaged] == [ticks[1].name]
    assert [(gap.begin, gap.end) for gap in gaps] == [(NOON + 1_199_000, NOON + 1_260_000)]
