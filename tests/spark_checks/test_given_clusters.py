"""Which clusters options select, and that no more of the journals is read for that than necessary."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.model.observations.base import Tick
from agent.model.observations.kafka import Commit
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.segments import DAY_MS
from agent.storage.journal.writer import Journal
from spark_checks.journal.files import clusters
from spark_checks.journal.given import check_names, describe_none, given_clusters, given_journals
from spark_checks.options import Options
from tests.spark_checks.test_unreadable_files import refuse
from tests.storage.journals import NOON


def write(directory: Path, *named: str) -> None:
    """Write a journal with a date of commits for each text: of the clusters that it names."""
    for number, names in enumerate(named):
        at = NOON + number * DAY_MS
        with closing(Journal(directory)) as journal:
            journal.append([Tick(at=at)])
            journal.append([
                Commit(at=at, cluster=name, group="g", topic="t", partition=0, offset=1) for name in names.split()
            ])  # fmt: skip


def options(journal: Path | str, cluster: str, first: int | None = None, last: int | None = None) -> Options:
    """Return options with a window of whole days, counted from the first of the journal."""
    midnight = NOON // DAY_MS * DAY_MS
    since, until = (None if day is None else midnight + day * DAY_MS for day in (first, last))
    own: dict[str, Any] = {"journal": str(journal), "archive": None, "agents": (), "store": None}
    return Options(cluster=cluster, since=since, until=until, own=own)


def names(given: Options, before: int = 0) -> list[str]:
    return [cluster.label for cluster in given_clusters(given, before)]


def of_day(journal: Path, day: int) -> Path:
    return sorted(journal.glob("commit/*/*.parquet"))[day]


def test_a_pattern_selects_among_the_clusters_of_the_window(tmp_path: Path) -> None:
    write(tmp_path, "old prod-1", "prod-1 prod-2", "prod-3")
    assert names(options(tmp_path, "prod-*")) == ["prod-1", "prod-2", "prod-3"]
    refuse(of_day(tmp_path, 2))
    assert names(options(tmp_path, "*", 0, 2)) == ["old", "prod-1", "prod-2"]
    refuse(of_day(tmp_path, 0))
    assert names(options(tmp_path, "*", 1, 2)) == ["prod-1", "prod-2"]
    assert names(options(tmp_path, "old", 1, 2)) == ["old"]


def test_what_lies_before_the_window_counts_if_the_check_reads_it(tmp_path: Path) -> None:
    write(tmp_path, "main", "backup")
    assert names(options(tmp_path, "*", 1, 2)) == ["backup"]
    assert names(options(tmp_path, "*", 1, 2), DAY_MS) == ["backup", "main"]


def test_of_a_file_with_one_cluster_only_the_footer_is_read(tmp_path: Path) -> None:
    write(tmp_path, "main")
    content = bytearray(of_day(tmp_path, 0).read_bytes())
    content[4:60] = bytes(56)
    of_day(tmp_path, 0).write_bytes(content)
    assert set(clusters(tmp_path, ["commit"])) == {"main"}


def test_a_name_is_looked_for_in_the_newest_date_first(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    for agent, named in (("a", ["main", "main"]), ("b", ["main", "backup"])):
        write(tmp_path / agent, *named)
        Archiver(tmp_path / agent, Archive(url), agent, 1 << 40).ship()
    assert names(options(url, "main")) == ["main@a", "main@b"]
    assert names(options(url, "backup")) == ["backup"]
    assert names(options(url, "main", 1, 2)) == ["main"]
    missing = options(url, "elsewhere", 1, 2)
    assert (names(missing), describe_none(missing)) == ([], "No cluster matches elsewhere in this time.")
    journals = given_journals(missing)
    for old in (tmp_path / "archive").rglob("commit/date=2026-11-20/**/*.parquet"):
        old.write_bytes(b"")
    assert check_names(missing, journals, [("--cluster", "backup")]) == []


def test_a_name_outside_of_the_window_is_no_mistake(tmp_path: Path) -> None:
    write(tmp_path, "main", "backup")
    given = options(tmp_path, "main", 1, 2)
    assert check_names(given, given_journals(given), [("--cluster", "main")]) == []
    assert check_names(given, given_journals(given), [("--cluster", "mian")]) == [
        f"--cluster mian: not in the journal {tmp_path}. Clusters in it: backup, main."
    ]


@pytest.mark.parametrize("cluster", ["main", "*"])
def test_an_empty_journal_has_no_mistakes(tmp_path: Path, cluster: str) -> None:
    write(tmp_path, "")
    given = options(tmp_path, cluster)
    assert check_names(given, given_journals(given), [("--cluster", cluster)]) == []
