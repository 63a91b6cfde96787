"""offset_history reads an archive on an S3-compatible server as it reads the local journals, also those of a fleet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from spark_checks import offset_history
from spark_checks.options import Options
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
