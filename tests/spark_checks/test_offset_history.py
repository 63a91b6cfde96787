"""offset_history over generated journals: what it finds is what the generator put there, and what DuckDB finds."""

from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from agent.model.findings import Severity
from agent.storage.journal import Journal
from spark_checks import offset_history
from spark_checks.options import Options, Report
from tests.spark_checks.histories import CLUSTER, DOWN, LEAST, Expected, History, drawn

SEGMENT_BYTES = 400_000

LAG = """
WITH ticks AS (
    SELECT position, epoch_ms("at") AS "at", lag(epoch_ms("at")) OVER (ORDER BY position) AS previous
    FROM read_parquet('{journal}/tick/*/*.parquet')
), steps AS (
    SELECT position AS first, sum(greatest(previous - "at", 0)) OVER (ORDER BY position) AS shift FROM ticks
), commits AS (
    SELECT commit.*, epoch_ms(commit."at") + coalesce(shift, 0) AS time
    FROM read_parquet('{journal}/commit/*/*.parquet') AS commit
    ASOF LEFT JOIN steps ON commit.position >= steps.first
)
SELECT "group", topic, partition, previous, "offset" FROM (
    SELECT *, lag("offset" IGNORE NULLS) OVER (
        PARTITION BY cluster, "group", topic, partition ORDER BY time, position
    ) AS previous FROM commits
) WHERE previous - "offset" >= {least}
"""


def write(directory: Path, history: History) -> None:
    """A journal of several segments of each kind and date."""
    journal = Journal(directory, segment_bytes=SEGMENT_BYTES)
    taken = history.observations()
    with closing(journal):
        for begin in range(0, len(taken), 5_000):
            journal.append(taken[begin : begin + 5_000])
            journal.flush()
            journal.seal(taken[begin].at)


def options(journal: Path, **own: Any) -> Options:
    """Options as the command line makes them."""
    return Options(
        cluster=CLUSTER,
        own={
            "journal": str(journal),
            "store": None,
            "min_records": LEAST,
            "baseline": "14d",
            "compact": False,
            "retention": None,
        }
        | own,
    )


def found(report: Report) -> list[Expected]:
    """Its rewinds and jumps."""
    return [
        Expected(
            one.subject["group"],
            one.subject["topic"],
            one.subject["partition"],
            one.previous["offset"],
            one.current["offset"],
            frozenset(one.labels),
        )
        for one in report.findings
        if "gap" not in one.labels
    ]


@pytest.fixture(scope="module", params=[1, 2, 3])
def history(request: pytest.FixtureRequest) -> History:
    """A history per seed."""
    return drawn(request.param)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory, history: History) -> Path:
    """Its journal."""
    directory = tmp_path_factory.mktemp("journal")
    write(directory, history)
    return directory


@pytest.fixture(scope="module")
def report(spark: SparkSession, journal: Path) -> Report:
    """What the check says of it."""
    return offset_history.run(spark, options(journal), lambda _: None)


def test_what_is_found_is_what_happened(report: Report, history: History) -> None:
    """Recall and precision are 1.0, labels and offsets included."""
    told = found(report)
    assert (set(told) - set(history.expected), set(history.expected) - set(told)) == (set(), set())
    assert len(told) == len(history.expected)


def test_duckdb_finds_the_same_rewinds(report: Report, journal: Path) -> None:
    """But for those across a topic's re-creation, about which offsets alone tell nothing."""
    with duckdb.connect() as oracle:
        rows = oracle.execute(LAG.format(journal=journal, least=LEAST)).fetchall()
    theirs = [row for row in rows if not (row[1].startswith("recreated") and row[3] - row[4] > 20_000)]
    ours = [one[:5] for one in found(report) if "rewind" in one.labels]
    assert sorted(ours) == sorted(theirs)


def test_what_the_journal_does_not_tell_is_said(report: Report, history: History) -> None:
    """The hole while the agent was down, and each group that was out of sight."""
    gaps = [one for one in report.findings if "gap" in one.labels]
    assert sorted(one.subject.get("group", "") for one in gaps) == sorted(["", *history.hidden])
    (hole,) = (one for one in gaps if "group" not in one.subject)
    assert (hole.since, hole.at) == (DOWN[0] - 1_000, DOWN[1])
    assert "the journal holds nothing between 2026-11-20 23:19:59.0 and 23:31:00.0 UTC, 11 min 1 s" in hole.detail
    assert {one.severity for one in gaps} == {Severity.INFO}


def test_a_rewind_is_told_with_its_past_and_causes(report: Report) -> None:
    """How unusual it is, how the group usually moves, and what happened around it."""
    one = next(one for one in report.findings if "after_session_loss" in one.labels)
    broker = one.detail.partition("broker ")[2].partition(" ")[0]
    assert "the only rewind in" in one.detail
    assert "it usually advances" in one.detail
    assert f"; broker {broker} lost its session" in one.detail
    assert f"changed leader {broker} -> " in one.detail
    assert "its log was cut off" in one.detail
    assert report.plot is not None
    assert report.plot.startswith(b"\x89PNG")
    assert len(report.plot) < 200_000
