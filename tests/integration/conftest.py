"""Real clusters for integration tests: each is started once a session, when the first test asks for it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kafka import Cluster

_RUNNING = pytest.StashKey[list[Cluster]]()
_KEPT = pytest.StashKey[list[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    """No cluster runs yet."""
    config.stash[_RUNNING] = []
    config.stash[_KEPT] = []


def _cluster(version: str, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers of a version. Their logs and disks are kept when a test of the session has failed."""
    # Not in pytest's own folder, of which the next runs remove all but three.
    workdir = Path(tempfile.mkdtemp(prefix=f"backflow-kafka-{version}-"))
    kept = request.config.stash[_KEPT]
    kept.append(workdir)
    with Cluster(version, workdir=workdir) as cluster:
        request.config.stash[_RUNNING].append(cluster)
        yield cluster
        request.config.stash[_RUNNING].remove(cluster)
    if not request.session.testsfailed:
        kept.remove(workdir)
        shutil.rmtree(workdir)


@pytest.fixture(scope="session")
def kafka_0_11(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 0.11.0.0 with ZooKeeper, brokers 2005, 2011 and 2024; __consumer_offsets lives on 2024."""
    yield from _cluster("0.11.0.0", request)


@pytest.fixture(scope="session")
def kafka_3_9(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 3.9.1 with ZooKeeper, brokers 2005, 2011 and 2024; __consumer_offsets lives on 2024."""
    yield from _cluster("3.9.1", request)


@pytest.fixture(scope="session")
def kafka_4_1(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Kafka 4.1.1 under KRaft, brokers 2005, 2011 and 2024; __consumer_offsets lives on 2024."""
    yield from _cluster("4.1.1", request)


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has frozen, cut or killed is well again before the next one begins."""
    yield
    for cluster in request.config.stash[_RUNNING]:
        cluster.settle()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell where the logs are."""
    for workdir in config.stash[_KEPT]:
        terminalreporter.write_line(f"Logs and disks of the cluster are kept in {workdir}")
