"""Checks read an archive on an S3-compatible server as they read the local journals, also those of a fleet."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agent.model.observations.kafka import Commit, LogOffsets, TopicSettings
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.writer import Journal
from spark_checks import offset_history, review
from spark_checks.options import Options
from tests.spark_checks import test_review_page
from tests.spark_checks.histories import CLUSTER, drawn
from tests.spark_checks.places import reachable_store
from tests.spark_checks.test_offset_history import found, options, write

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bucket(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket for all tests."""
    with reachable_store(spark, tmp_path_factory.mktemp("server"), "journals") as server:
        yield server.bucket


@pytest.fixture
def url(bucket: str, tmp_path: Path) -> str:
    """An empty archive."""
    return f"s3://{bucket}/{tmp_path.name}"


def archive(directory: Path, url: str, agent: str) -> None:
    Archiver(directory, Archive(url), agent, 1 << 40).ship()


def given(place: str, cluster: str = CLUSTER, **own: Any) -> Options:
    """Options with a path or URL as the journal."""
    made = options(Path("/"), **own)
    return made._replace(cluster=cluster, own={**made.own, "journal": place})


def test_findings_over_an_archive_are_those_over_the_journal(spark: SparkSession, tmp_path: Path, url: str) -> None:
    write(tmp_path / "journal", drawn(1))
    archive(tmp_path / "journal", url, "a")
    local = offset_history.run(spark, given(str(tmp_path / "journal")), lambda _: None)
    assert local.findings
    for place, own in ((url, dict[str, str]()), (str(tmp_path / "journal"), {"archive": url})):
        assert not offset_history.mistakes(given(place, **own))
        report = offset_history.run(spark, given(place, **own), lambda _: None)
        assert report.findings == local.findings
        assert report.summary == local.summary


@pytest.mark.acceptance
def test_a_pattern_selects_clusters_of_a_fleet(spark: SparkSession, tmp_path: Path, url: str) -> None:
    for number, agent in enumerate("ab"):
        write(tmp_path / agent, drawn(number))
        archive(tmp_path / agent, url, agent)
    alone = [offset_history.run(spark, given(str(tmp_path / agent)), lambda _: None) for agent in "ab"]
    fleet = offset_history.run(spark, given(url, f"{CLUSTER[0]}*"), lambda _: None)
    assert sorted(found(fleet), key=repr) == sorted(found(alone[0]) + found(alone[1]), key=repr)
    selected = offset_history.run(spark, given(url, agents=("b",)), lambda _: None)
    assert found(selected) == found(alone[1])


def test_mistakes_in_options_of_an_archive_are_reported(url: str) -> None:
    assert offset_history.mistakes(given(url)) == [f"--journal {url}: there is no journal in this archive."]
    assert offset_history.mistakes(given("s3://no-such-bucket/x", compact=True)) == [
        "--journal s3://no-such-bucket/x: there is no journal in this archive.",
        "--compact: is for a local journal; an archive has `archive_retention` and is never rewritten.",
    ]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of two weeks of the clusters main and other, in the state directory of an agent."""
    directory = tmp_path_factory.mktemp("month") / "journal"
    facts = test_review_page.history()
    others = [replace(fact, cluster="other") for fact in facts if isinstance(fact, Commit | LogOffsets | TopicSettings)]
    with closing(Journal(directory)) as journal:
        for fact in [*facts, *others]:
            journal.append([fact])
        journal.flush()
    return directory


def reviewed(spark: SparkSession, directory: Path, place: str, cluster: str = "main", **own: Any) -> dict[str, str]:
    """Return the summary and the pages of a review, by the names of their files."""
    made = test_review_page.options(directory / "journal", **own)
    made = made._replace(cluster=cluster, own={**made.own, "journal": place})
    assert not review.mistakes(made)
    report = review.run(spark, made, lambda _: None)
    pages = {path.name: path.read_text(encoding="utf-8") for path in (directory / "report").glob("*.html")}
    return {"summary": report.summary, **pages}


@pytest.mark.acceptance
def test_review_of_an_archive_is_that_of_the_journal(
    spark: SparkSession, month: Path, url: str, tmp_path: Path
) -> None:
    archive(month, url, "a")
    local = reviewed(spark, tmp_path / "1", str(month))
    assert "1 group near data loss" in local["summary"]
    assert reviewed(spark, tmp_path / "2", url) == local
    copy = Path(shutil.copytree(month, tmp_path / "state" / "journal"))
    for folder in copy.glob("*/date=2026-11-*"):
        shutil.rmtree(folder)
    assert reviewed(spark, tmp_path / "3", str(copy)) != local
    assert reviewed(spark, tmp_path / "4", str(copy), archive=url) == local


@pytest.mark.acceptance
def test_review_of_a_fleet_has_a_page_for_each_cluster(
    spark: SparkSession, month: Path, url: str, tmp_path: Path
) -> None:
    archive(month, url, "a")
    found = reviewed(spark, tmp_path / "1", url, "*")
    assert set(found) == {"summary", "review-main.html", "review-other.html"}
    assert "<h1>Review of other</h1>" in found["review-other.html"]
    title, main, other, *tasks = found["summary"].splitlines()
    assert title == "Review of 2 clusters, 30 November to 6 December 2026"
    for name, line in (("main", main), ("other", other)):
        assert line.startswith(f"{name}: incidents unknown; 1 group near data loss; 4 tasks; {tmp_path}/1/report/")
    assert tasks[:2] == ["Do now:", tasks[1]]
    assert tasks[1].startswith("1. main: billing nearly lost unread records of orders[0] to retention.")


@pytest.mark.acceptance
def test_clusters_of_the_same_name_are_told_apart(spark: SparkSession, month: Path, url: str, tmp_path: Path) -> None:
    archive(month, url, "a")
    archive(Path(shutil.copytree(month, tmp_path / "b", ignore=shutil.ignore_patterns("archive-*"))), url, "b")
    found = reviewed(spark, tmp_path / "1", url, "main")
    assert set(found) == {"summary", "review-main@a.html", "review-main@b.html"}
    assert reviewed(spark, tmp_path / "2", url, "main", agents=("b",)).keys() == {"summary", "review.html"}


def test_state_file_is_that_of_one_agent(month: Path, url: str, tmp_path: Path) -> None:
    for agent in "ab":
        copy = shutil.copytree(month, tmp_path / agent, ignore=shutil.ignore_patterns("archive-*"))
        archive(Path(copy), url, agent)
    (tmp_path / "store").touch()
    made = test_review_page.options(month, store=str(tmp_path / "store"))
    wrong = review.mistakes(made._replace(own={**made.own, "journal": url}))
    assert wrong == [f"--store {tmp_path}/store: this is the state of one agent; select it with --agent: a, b."]
    assert not review.mistakes(made._replace(own={**made.own, "journal": url, "agents": ("a",)}))
