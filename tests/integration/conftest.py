"""Real clusters for integration tests, each started once a session on first use."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.kafka import Cluster
from testbed.slack import Slack

_RUNNING = pytest.StashKey[list[Cluster]]()
_KEPT = pytest.StashKey[list[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUNNING] = []
    config.stash[_KEPT] = []


def _cluster(version: str, request: pytest.FixtureRequest, **options: Any) -> Iterator[Cluster]:
    """Three brokers of a version. Their logs and disks are kept if a test of the session failed.

    options: of Cluster.
    """
    # Not in pytest's folder, where later runs remove all but three.
    workdir = Path(tempfile.mkdtemp(prefix=f"backflow-kafka-{version}-"))
    kept = request.config.stash[_KEPT]
    kept.append(workdir)
    with Cluster(version, workdir=workdir, **options) as cluster:
        request.config.stash[_RUNNING].append(cluster)
        yield cluster
        request.config.stash[_RUNNING].remove(cluster)
    if not request.session.testsfailed:
        kept.remove(workdir)
        shutil.rmtree(workdir)


@pytest.fixture(scope="session")
def kafka_0_11(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 0.11.0.0 with ZooKeeper; brokers 2005, 2011 and 2024, __consumer_offsets on 2024."""
    yield from _cluster("0.11.0.0", request)


@pytest.fixture(scope="session")
def kafka_3_9(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 3.9.1 with ZooKeeper; brokers 2005, 2011 and 2024, __consumer_offsets on 2024."""
    yield from _cluster("3.9.1", request)


@pytest.fixture(scope="session")
def kafka_4_1(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 4.1.1 under KRaft; brokers 2005, 2011 and 2024, __consumer_offsets on 2024."""
    yield from _cluster("4.1.1", request)


@pytest.fixture(scope="module", params=["3.9.1", "4.1.1"])
def replicated_offsets(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 3.9.1, then 4.1.1, with __consumer_offsets on all brokers; cleaner and retention run every second."""
    config = {
        "log.retention.check.interval.ms": 1_000,
        "log.cleaner.backoff.ms": 1_000,
        "log.segment.delete.delay.ms": 0,
    }
    yield from _cluster(request.param, request, offsets_on=(2005, 2011, 2024), config=config, unclean=False)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Return the cluster whose fixture the test's parameter names."""
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, Cluster)
    return cluster


@pytest.fixture
def slack(tmp_path: Path) -> Iterator[Slack]:
    """Slack, whose requests are kept beside the agent's log."""
    with Slack() as slack:
        yield slack
        slack.dump(tmp_path / "slack.jsonl")


@pytest.fixture(autouse=True)
def _repaired(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo the faults of a test before the next one starts."""
    yield
    for cluster in request.config.stash[_RUNNING]:
        cluster.repair()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for workdir in config.stash[_KEPT]:
        terminalreporter.write_line(f"Logs and disks of the cluster: {workdir}")
