"""Until when an archive says what happened on each cluster: no longer than all kinds that are compared are in it."""

from contextlib import closing
from pathlib import Path

import pytest

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.places import JournalFiles, open_journals
from agent.storage.journal.writer import Journal
from spark_checks.failovers.observed import Observed, find_observed

MINUTE = 60_000
BEGIN = 1_795_000_000_000
LAST = BEGIN + 300 * MINUTE


def observed(place: str, last: int = LAST) -> dict[str, Observed]:
    journals: dict[JournalFiles, int] = dict.fromkeys(open_journals(place), last)
    return find_observed(journals, lambda *found: pytest.fail(str(found)))


def write(directory: Path, *ends: int, cluster: str = "main") -> None:
    """Write a journal. ends: when the last commit, log end and state of a group were observed, ms."""
    commit, log_end, state = ends
    seen: list[Observation] = [Tick(at=LAST)]
    for at in range(BEGIN, LAST, MINUTE):
        seen.append(Tick(at=at))
        if at <= commit:
            seen.append(Commit(at=at, cluster=cluster, group="g", topic="t", partition=0, offset=1))
        if at <= log_end:
            seen.append(LogOffsets(at=at, cluster=cluster, topic="t", partition=0, log_start=0, log_end=1))
        if at <= state and (state - at) % (10 * MINUTE) == 0:
            seen.append(GroupState(at=at, cluster=cluster, group="g", state="Empty"))
    with closing(Journal(directory)) as journal:
        journal.append(seen)


def archive(directory: Path, url: str) -> None:
    Archiver(directory, Archive(url), directory.name, 1 << 40).ship()


def test_each_cluster_is_observed_until_its_own_archive_ends(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    whole, early = LAST - MINUTE, LAST - 40 * MINUTE
    write(tmp_path / "a", whole, early, whole - 9 * MINUTE)
    write(tmp_path / "b", whole, whole, early, cluster="backup")
    for agent in "ab":
        archive(tmp_path / agent, url)
    assert observed(url) == {"main": Observed(early, whole - 9 * MINUTE), "backup": Observed(early, early)}


def test_a_kind_that_is_silent_for_longer_than_segments_are_open_lacks_nothing_before(tmp_path: Path) -> None:
    write(tmp_path / "a", BEGIN, LAST - MINUTE, LAST - MINUTE)
    archive(tmp_path / "a", f"file://{tmp_path}/archive")
    assert observed(f"file://{tmp_path}/archive") == {"main": Observed(LAST - 65 * MINUTE, LAST - MINUTE)}


def test_a_local_journal_is_observed_until_its_last_tick(tmp_path: Path) -> None:
    write(tmp_path / "a", LAST - 40 * MINUTE, LAST - 40 * MINUTE, LAST - 40 * MINUTE)
    assert observed(str(tmp_path / "a")) == {"main": Observed(LAST, LAST)}


def test_a_cluster_that_was_not_read_for_long_is_not_among_them(tmp_path: Path) -> None:
    write(tmp_path / "a", LAST - 100 * MINUTE, LAST - 100 * MINUTE, LAST - 100 * MINUTE)
    assert observed(str(tmp_path / "a")) == {}
    assert observed(str(tmp_path / "a"), LAST - 90 * MINUTE).keys() == {"main"}
