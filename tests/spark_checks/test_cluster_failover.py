"""cluster_failover on simulated fleets: what it says of each move is true of every record."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from spark_checks import cluster_failover
from spark_checks.options import Options, Report
from tests.parameters import SEEDS
from tests.spark_checks.fleets import BACK, BACKUP, END, MAIN, MAYBE, Fleet, drawn
from tests.spark_checks.test_offset_history import write


def options(journal: Path | str, cluster: str = "*", **own: Any) -> Options:
    """Options as the command line makes them."""
    defaults = {
        "journal": str(journal),
        "prefixes": (),
        "min_records": 1_000,
        "tolerance": "5m",
        "delay": "10s",
        "baseline": "3d",
    }
    return Options(cluster=cluster, own=defaults | own)


@pytest.fixture(scope="module", params=SEEDS)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """A fleet per seed."""
    return drawn(request.param)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory, fleet: Fleet) -> Path:
    """Its journal, of one agent that observes both clusters."""
    directory = tmp_path_factory.mktemp("journal")
    write(directory, fleet)
    return directory


class Part(NamedTuple):
    """What one of several agents observed."""

    taken: list[Observation]

    def observations(self) -> list[Observation]:
        """Return it by time."""
        return self.taken


@pytest.fixture(scope="module")
def report(spark: SparkSession, journal: Path) -> Report:
    """Return the findings of the check."""
    return cluster_failover.run(spark, options(journal), lambda _: None)


def test_agents_of_a_fleet_are_read_as_one(spark: SparkSession, report: Report, fleet: Fleet, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    for cluster in (MAIN, BACKUP):
        own = [seen for seen in fleet.observations() if getattr(seen, "cluster", cluster) == cluster]
        write(tmp_path / cluster, Part(own))
        Archiver(tmp_path / cluster, Archive(url), cluster, 1 << 40).ship()
    assert cluster_failover.mistakes(options(url)) == []
    merged = cluster_failover.run(spark, options(url), lambda _: None)
    assert merged.findings == report.findings
    target = cluster_failover.run(spark, options(url, MAIN), lambda _: None)
    assert target.findings == [finding for finding in report.findings if finding.subject["cluster"] == MAIN]
    alone = cluster_failover.run(spark, options(url, agents=(BACKUP,)), lambda _: None)
    assert alone.findings == []


def test_projected_moves_are_found_if_an_agent_archives_later_than_another(
    spark: SparkSession, report: Report, fleet: Fleet, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/archive"
    for cluster, end in ((MAIN, END - 2_700_000), (BACKUP, END)):
        own = [seen for seen in fleet.observations() if getattr(seen, "cluster", cluster) == cluster and seen.at < end]
        write(tmp_path / cluster, Part(own))
        Archiver(tmp_path / cluster, Archive(url), cluster, 1 << 40).ship()
    late = cluster_failover.run(spark, options(url), lambda _: None)
    # 45 minutes before the end the offsets of g-stale were still translated.
    ahead = [subject(finding) for finding in report.findings if finding.labels == ("skipped", "projected")]
    assert [subject(finding) for finding in late.findings if "projected" in finding.labels] == ahead
    assert "observed until backup 2026-11-20 08:59, main 2026-11-20 08:14 UTC" in late.summary
    assert "08:14:59.0 UTC" in next(finding.detail for finding in late.findings if "projected" in finding.labels)


def subject(finding: Finding) -> tuple[Any, ...]:
    return tuple(finding.subject[name] for name in ("group", "cluster", "topic", "partition"))


def test_findings_are_those_of_the_moves(report: Report, fleet: Fleet) -> None:
    undecided = {truth[:4] for truth in fleet.truth if MAYBE in truth.labels}
    found = {
        (*subject(finding), frozenset(finding.labels))
        for finding in report.findings
        if subject(finding) not in undecided
    }
    expected = {(*truth[:4], truth.labels) for truth in fleet.truth if truth.labels and truth[:4] not in undecided}
    assert (found - expected, expected - found) == (set(), set())


def test_figures_bound_the_truth(report: Report, fleet: Fleet) -> None:
    truths = {truth[:4]: truth for truth in fleet.truth if truth.labels}
    for finding in report.findings:
        truth = truths[subject(finding)]
        assert ("skipped" in finding.labels) == (truth.skipped > 0)
        assert finding.current["at_least"] <= abs(truth.skipped), finding
        assert abs(truth.skipped) <= finding.current.get("at_most", abs(truth.skipped)), finding
        assert finding.current.get("resume_at", 0) <= truth.continued, finding


def test_severity_says_how_certain_and_how_bad(report: Report) -> None:
    by_labels = {finding.labels: finding.severity for finding in report.findings}
    assert by_labels == {
        ("skipped",): Severity.CRITICAL,
        ("skipped", "no_offset"): Severity.WARNING,
        ("skipped", "no_offset", "origin_unseen"): Severity.WARNING,
        ("skipped", "projected"): Severity.WARNING,
        ("reprocessed",): Severity.WARNING,
        ("reprocessed", "projected"): Severity.INFO,
    }


def test_a_journal_of_groups_on_one_cluster_says_nothing(spark: SparkSession, tmp_path: Path, fleet: Fleet) -> None:
    write(tmp_path / "journal", Part([seen for seen in fleet.observations() if getattr(seen, "cluster", MAIN) == MAIN]))
    report = cluster_failover.run(spark, options(tmp_path / "journal"), lambda _: None)
    assert report.findings == []
    assert report.summary.startswith("0 moves of groups between clusters; 0 groups without members")


def test_all_mistakes_are_listed(journal: Path) -> None:
    wrong = options(journal, prefixes=("main", "main=a", "main=b"), tolerance="5", baseline="x")
    assert [mistake.partition(":")[0] for mistake in cluster_failover.mistakes(wrong)] == [
        "--tolerance",
        "--baseline",
        "--prefix main",
        "--prefix main=PREFIX",
    ]
    unknown = options(journal, "mian", prefixes=("elsewhere=e.",))
    assert cluster_failover.mistakes(unknown) == [
        f"--cluster mian: not in the journal {journal}. Clusters in it: backup, main.",
        f"--prefix elsewhere: not in the journal {journal}. Clusters in it: backup, main.",
    ]


def test_only_moves_of_the_window_and_of_selected_groups_are_reported(
    spark: SparkSession, journal: Path, report: Report
) -> None:
    window = options(journal)._replace(since=BACK, until=END, groups=("g-*",))
    found = cluster_failover.run(spark, window, lambda _: None).findings
    later = [finding for finding in report.findings if finding.at >= BACK or "projected" in finding.labels]
    assert [finding.key for finding in found] == [finding.key for finding in later]
    topic = options(journal)._replace(topics=("prefixed",))
    found = cluster_failover.run(spark, topic, lambda _: None).findings
    assert {finding.subject["topic"] for finding in found} == {"main.prefixed"}
