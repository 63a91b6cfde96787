"""Shared fixtures: the Slack stand-in, a broker for Kafka Streams, a state file; Hypothesis settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from agent.storage.incidents import IncidentStore
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.streams.app import streams_broker

# No deadline per example: a busy machine makes an example slow, not wrong.
settings.register_profile("backflow", deadline=None, print_blob=True)
settings.load_profile("backflow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Java, and run integration tests last.

    Quick tests fail first, and the clusters' ZooKeeper clients, whose threads use the global `random`, do not run yet
    while Hypothesis draws from it. `make test` has pytest-xdist keep this order.
    """
    for item in items:
        if item.path.parent.name in ("checks", "spark_checks"):  # `make test-fast` does without Java
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: item.get_closest_marker("integration") is not None)


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset proxies: slack-sdk would use them even on loopback."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _own_log_settings() -> Iterator[None]:
    """Undo how a command has set up the log: that is for the whole process, which has other tests to run."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def slack() -> Iterator[Slack]:
    """A strict Slack stand-in with the channels alerts and payments; its bot is a member of both."""
    with Slack("alerts", "payments") as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker of 3.9.1 for all Kafka Streams applications of a file."""
    with streams_broker(tmp_path_factory.mktemp("broker")) as cluster:
        yield cluster


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    """The path of the agent's state file."""
    return tmp_path / "state.sqlite3"


@pytest.fixture
def store(state_file: Path) -> Iterator[IncidentStore]:
    """An empty store with one receiver, slack."""
    with IncidentStore(state_file, ["slack"]) as opened:
        yield opened
