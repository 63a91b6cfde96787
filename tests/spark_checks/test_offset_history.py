"""offset_history on generated journals: it finds what the generator put there, and what DuckDB finds."""

from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pytest
from pyspark.sql import SparkSession

from agent.model.findings import Severity
from agent.model.observations.base import Observation
from agent.storage.journal.writer import Journal
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


class Observed(Protocol):
    """What an agent observed."""

    def observations(self) -> list[Observation]:
        """Return the observations in order of arrival."""


def write(directory: Path, history: Observed) -> None:
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
            finding.subject["group"],
            finding.subject["topic"],
            finding.subject["partition"],
            finding.previous["offset"],
            finding.current["offset"],
            frozenset(finding.labels),
        )
        for finding in report.findings
        if "gap" not in finding.labels
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
    """Return the findings of the check."""
    return offset_history.run(spark, options(journal), lambda _: None)


def test_findings_are_exactly_what_happened(report: Report, history: History) -> None:
    moves = found(report)
    assert (set(moves) - set(history.expected), set(history.expected) - set(moves)) == (set(), set())
    assert len(moves) == len(history.expected)


def test_duckdb_finds_the_same_rewinds(report: Report, journal: Path) -> None:
    with duckdb.connect() as oracle:
        rows = oracle.execute(LAG.format(journal=journal, least=LEAST)).fetchall()
    theirs = [row for row in rows if not (row[1].startswith("recreated") and row[3] - row[4] > 20_000)]
    ours = [entry[:5] for entry in found(report) if "rewind" in entry.labels]
    assert sorted(ours) == sorted(theirs)


def test_gaps_in_the_journal_are_reported(report: Report, history: History) -> None:
    gaps = [finding for finding in report.findings if "gap" in finding.labels]
    assert sorted(entry.subject.get("group", "") for entry in gaps) == sorted(["", *history.hidden])
    (hole,) = (entry for entry in gaps if "group" not in entry.subject)
    assert (hole.since, hole.at) == (DOWN[0] - 1_000, DOWN[1])
    assert (
        "the journal has no observations between 2026-11-20 23:19:59.0 and 23:31:00.0 UTC (11 min 1 s)" in hole.detail
    )
    assert {entry.severity for entry in gaps} == {Severity.INFO}


def test_rewind_has_its_past_and_context(report: Report) -> None:
    finding = next(finding for finding in report.findings if "after_session_loss" in finding.labels)
    broker = finding.detail.partition("broker ")[2].partition(" ")[0]
    assert "only rewind in" in finding.detail
    assert "it usually advances" in finding.detail
    assert f"; broker {broker} session expired" in finding.detail
    assert f"leader changed {broker} -> " in finding.detail
    assert ", log truncated " in finding.detail
    assert report.plot is not None
    assert report.plot.startswith(b"\x89PNG")
    assert len(report.plot) < 200_000
