"""offset_history beside a running agent: open segments, a window with a baseline, live findings."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.observations.base import Tick
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets
from agent.model.times import millis
from agent.storage.database import StorageError
from agent.storage.incidents import IncidentStore
from agent.storage.journal.writer import Journal
from spark_checks import offset_history
from spark_checks.offsets.commits import MOST_MOVES
from spark_checks.offsets.findings import find_live, read_live_findings
from spark_checks.offsets.keys import Key
from spark_checks.options import Options, Report
from tests.spark_checks.test_unreadable_files import damage

EVENING = millis("2026-11-20T22:00:00.000Z")
HOUR = 3_600_000
KEY = Key("job", "t", 3)
REWINDS = (EVENING + HOUR, EVENING + 2 * HOUR + 60_000, EVENING + 3 * HOUR, EVENING + 4 * HOUR)


def rewind(at: int) -> Finding:
    """Return the finding of a live rule about a rewind at that time."""
    return Finding(
        rule="rewind",
        kind="offset_rewind",
        severity=Severity.WARNING,
        at=at,
        subject={"cluster": "main", **KEY._asdict()},
        records=Records(reread=5_000),
        detail="it went back",
    )


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A journal that is being written, over midnight, with four rewinds."""
    directory = tmp_path_factory.mktemp("journal")
    with closing(Journal(directory, segment_bytes=60_000)) as journal:
        offset = 100_000
        for at in range(EVENING, EVENING + 5 * HOUR, 10_000):
            offset += -5_000 if at in REWINDS else 100
            journal.append([Tick(at=at), Commit(at=at, cluster="main", offset=offset, **KEY._asdict())])
            if at % 600_000 == 0:
                journal.flush()
                journal.seal(at)
        journal.flush()
        yield directory


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state file with one incident: the live rules saw the third rewind, and a Flink subtask's, without a group."""
    path = tmp_path_factory.mktemp("state") / "state.sqlite3"
    read = replace(rewind(REWINDS[2]), subject={"cluster": "main", "topic": "t", "partition": 3, "job": "d7"})
    incident = Incident(
        id="INC-1",
        status=Status.OPEN,
        severity=Severity.WARNING,
        title="it went back",
        cluster="main",
        opened_at=REWINDS[2],
        updated_at=REWINDS[2],
        findings=(rewind(REWINDS[2]), read),
    )
    with IncidentStore(path) as store:
        store.save(1, [incident])
    return path


@pytest.fixture(scope="module")
def report(spark: SparkSession, journal: Path, state: Path) -> Report:
    """The check, options about the time from two hours after the beginning on."""
    own = {"journal": str(journal), "store": str(state), "min_records": 1_000, "baseline": "14d"}
    options = Options(
        since=EVENING + 2 * HOUR, until=EVENING + 5 * HOUR, own={**own, "compact": False, "retention": None}
    )
    return offset_history.run(spark, options, lambda _: None)


def test_open_segments_are_searched(report: Report, journal: Path) -> None:
    assert list(journal.glob("commit/date=2026-11-21/_*.arrow"))
    assert [finding.at for finding in report.findings] == list(REWINDS[1:])


def test_moves_not_detected_live_are_warnings(report: Report) -> None:
    assert [(finding.labels[-1], finding.severity) for finding in report.findings] == [
        ("unseen_live", Severity.WARNING),
        ("seen_live", Severity.INFO),
        ("unseen_live", Severity.WARNING),
    ]
    assert "2 not detected live" in report.summary


def test_rewinds_before_the_window_are_counted_only(report: Report) -> None:
    assert "; 1 earlier rewind in 2 h 1 min of journal, the last 1 h 1 min before; " in report.findings[0].detail
    assert "it usually advances 100 records every 10.0 s" in report.findings[0].detail
    assert "3 earlier rewinds" in report.findings[2].detail


def test_damaged_segment_is_reported_and_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([Commit(at=EVENING + n, cluster="main", offset=9_000 - n, **KEY._asdict()) for n in range(500)])
    for number, offset in ((1, 3_000), (2, 1_000)):
        with closing(Journal(tmp_path)) as journal:
            at = EVENING + number * 60_000
            journal.append([Commit(at=at, cluster="main", offset=offset, **KEY._asdict())])
    damaged = min(tmp_path.glob("commit/*/*"))
    content = bytearray(damaged.read_bytes())
    content[10:60] = bytes(50)
    damaged.write_bytes(content)
    own = {"journal": str(tmp_path), "store": None, "min_records": 1_000, "baseline": "14d"}
    options = Options(own={**own, "compact": False, "retention": None})
    report = offset_history.run(spark, options, lambda _: None)
    assert [(finding.previous["offset"], finding.current["offset"]) for finding in report.findings] == [(3_000, 1_000)]
    assert "1 damaged journal file skipped" in report.summary


def test_damaged_ticks_and_log_ends_are_reported_and_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        for at in range(0, 600_000, 10_000):
            offset = 9_000 - at // 100 if at == 300_000 else 10_000 + at // 100
            where: Any = {"cluster": "main", "topic": KEY.topic, "partition": KEY.partition}
            journal.append([
                Tick(at=EVENING + at),
                Commit(at=EVENING + at, group=KEY.group, offset=offset, **where),
                LogOffsets(at=EVENING + at, log_start=0, log_end=20_000, **where),
            ])  # fmt: skip
    own = {"journal": str(tmp_path), "store": None, "min_records": 1_000, "baseline": "14d"}
    options = Options(own={**own, "compact": False, "retention": None})
    whole = offset_history.run(spark, options, lambda _: None)
    for kind in ("tick", "log_offsets"):
        (path,) = tmp_path.glob(f"{kind}/*/*.parquet")
        damage(path)
    report = offset_history.run(spark, options, lambda _: None)
    moves = [(finding.at, finding.current) for finding in whole.findings]
    assert [(finding.at, finding.current) for finding in report.findings] == moves
    assert len(moves) == 1
    assert "2 damaged journal files skipped" in report.summary


def test_empty_journal_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    own = {"journal": str(tmp_path), "store": None, "min_records": 1, "baseline": "14d"}
    options = Options(own={**own, "compact": True, "retention": "30d"})
    report = offset_history.run(spark, options, lambda _: None)
    assert report.findings == []
    assert report.plot is None
    with closing(Journal(tmp_path)) as journal:
        journal.append([Commit(at=EVENING + n, cluster="other", offset=9 - n, **KEY._asdict()) for n in range(5)])
    assert offset_history.run(spark, options, lambda _: None).findings == []


def test_directory_without_journal_is_wrong_use(journal: Path, tmp_path: Path) -> None:
    reason = f"--journal {tmp_path}: this directory is not a journal; "
    assert mistakes(tmp_path) == [f"{reason}it is `journal` in the agent's state directory."]
    (tmp_path / "journal").symlink_to(journal)
    assert mistakes(tmp_path) == [f"{reason}did you mean {tmp_path / 'journal'}?"]


def test_cluster_not_in_journal_is_wrong_use(journal: Path, tmp_path: Path) -> None:
    assert mistakes(journal) == []
    assert mistakes(journal, "mian") == [f"--cluster mian: not in the journal {journal}. Clusters in it: main."]
    with closing(Journal(tmp_path)) as small:
        small.append([Tick(at=EVENING)])
        small.flush()
        assert mistakes(tmp_path) == []  # nothing is known yet, which is no mistake
        small.append([Commit(at=EVENING, cluster="eu", offset=1, **KEY._asdict())])
        small.append([BrokerRegistration(at=EVENING, cluster="us", broker=1, session=None, epoch=None)])
        small.flush()
        assert mistakes(tmp_path, "us") == []
        assert mistakes(tmp_path)[0].endswith("Clusters in it: eu, us.")


def mistakes(directory: Path, cluster: str = "main") -> list[str]:
    """What the check says of its options before Spark is started."""
    own = {"journal": str(directory), "store": None, "baseline": "14d", "retention": None}
    return offset_history.mistakes(Options(cluster=cluster, own=own))


def test_live_findings_match_by_interval_and_key(state: Path) -> None:
    live = read_live_findings(state, "main")
    at = REWINDS[2]
    assert find_live(live, KEY, at - 60_000, at - 4_000)
    assert not find_live(live, KEY, at - 60_000, at - 6_000)
    assert not find_live(live, KEY._replace(partition=4), at, at)
    assert read_live_findings(state, "other") == {}
    with pytest.raises(StorageError, match="cannot read the agent"):
        read_live_findings(Path(__file__), "main")


def test_all_mistakes_are_listed(tmp_path: Path) -> None:
    own = {"journal": str(tmp_path / "none"), "store": str(tmp_path / "no.sqlite3"), "baseline": "14", "retention": "x"}
    found = offset_history.mistakes(Options(own=own))
    assert [line.partition(":")[0].split()[0] for line in found] == [
        "--journal",
        "--store",
        "--baseline",
        "--retention",
    ]


def searched(spark: SparkSession, directory: Path, commits: Iterable[Commit]) -> Report:
    """Return the report about a journal of these commits alone."""
    with closing(Journal(directory)) as journal:
        journal.append(list(commits))
    own = {"journal": str(directory), "store": None, "min_records": 1_000, "baseline": "14d"}
    options = Options(own={**own, "compact": False, "retention": None})
    return offset_history.run(spark, options, lambda _: None)


def test_group_with_an_empty_name_is_searched(spark: SparkSession, tmp_path: Path) -> None:
    key = KEY._replace(group="")
    moves = ((EVENING, 9_000), (EVENING + 60_000, 1_000))
    report = searched(spark, tmp_path, [Commit(at=at, cluster="main", offset=to, **key._asdict()) for at, to in moves])
    assert [finding.subject["group"] for finding in report.findings] == [""]


def test_of_a_reader_that_always_moves_the_last_moves_count(spark: SparkSession, tmp_path: Path) -> None:
    """Two processes commit for one group: what they do must not keep the check from other groups."""
    offsets = [10_000 * (1 + number % 2) + number for number in range(2 * MOST_MOVES + 21)]
    commits = [
        Commit(at=EVENING + number * 10_000, cluster="main", offset=offset, **KEY._asdict())
        for number, offset in enumerate(offsets)
    ]
    report = searched(spark, tmp_path, commits)
    assert len(report.findings) == MOST_MOVES
    assert [finding.at for finding in report.findings] == [
        commit.at for commit in commits[-1 : -1 - 2 * MOST_MOVES : -2]
    ][::-1]
    assert "209 earlier rewinds" in report.findings[-1].detail
    assert "of 1 reader only the last 200 moves examined" in report.summary
