"""The demos' journals, archived by the agent while it runs and the server fails now and then.

Nothing is missing in the archive, nothing is there twice, and the checks that read the journal find the same in both.
"""

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.model.findings import Finding
from agent.model.times import rfc3339
from agent.storage.journal.archive import Archive
from agent.storage.journal.places import JournalFiles
from agent.storage.journal.reader import entries
from spark_checks.command import load_check, parse
from testbed.agent import Agent
from testbed.demos import SCENARIOS
from testbed.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore
from testbed.proxy import Proxy
from testbed.slack import Slack
from testbed.waiting import wait_until
from tests.spark_checks.places import reachable_store
from tests.storage.archives import fail

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(1500)]

AGENT, BUCKET = "agent-1", "demos"
KAFKA, FLINK = ("--cluster", "demo"), ("--flink", "jobs")
CHECKS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "reset": {"offset_history": KAFKA},
    "log-divergence": {"offset_history": KAFKA},
    "flink-reset": {"offset_history": KAFKA, "job_history": FLINK},
    "job-resurrected": {"job_history": FLINK},
    "streams-state": {"offset_history": KAFKA},
}
"""The checks that read nothing but the journal, by demo, and the options that select what they examine."""

FOUND = frozenset({("reset", "offset_history"), ("flink-reset", "offset_history"), ("job-resurrected", "job_history")})
"""Where something must be found."""

_PAUSE_S = 3.0


def failures(agents: Sequence[Agent]) -> int:
    """Return how often an agent has logged that the archive fails."""
    return sum(agent.log.read_text(encoding="utf-8").count("archive_failed") for agent in agents if agent.log.exists())


@contextmanager
def failing(server: ObjectStore, link: Proxy, agents: Sequence[Agent]) -> Iterator[None]:
    """While an agent runs, cut the link to the server until the agent notices, then freeze the server, and so on."""
    ended = threading.Event()

    def is_over() -> bool:
        return ended.is_set() or not any(agent.running for agent in agents)

    def cut_until_noticed() -> None:
        before = failures(agents)
        link.cut()
        wait_until(lambda: is_over() or failures(agents) > before, "the agent to notice", 200)
        link.heal()

    def fail_now_and_then() -> None:
        while not ended.wait(_PAUSE_S):
            if not is_over():
                cut_until_noticed()
                ended.wait(_PAUSE_S)
                server.freeze()
                ended.wait(_PAUSE_S)
                server.thaw()

    thread = threading.Thread(target=fail_now_and_then, name="faults")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A server for all demos."""
    with reachable_store(spark, tmp_path_factory.mktemp("server"), BUCKET) as store:
        yield store


def archiving_agents(link: Proxy, secrets: Path, url: str) -> tuple[type[Agent], list[Agent]]:
    """Return the agent that a demo is to start in place of its own, one that archives; and those that are made."""
    for name, secret in (("access", ACCESS_KEY), ("secret", SECRET_KEY)):
        (secrets / name).write_text(secret)
    archive = (
        f'[journal]\narchive = "{url}"\n'
        f'[journal.s3]\nendpoint = "http://{link.address}"\nregion = "{REGION}"\n'
        f'access_key = {{ file = "{secrets}/access" }}\nsecret_key = {{ file = "{secrets}/secret" }}\n'
    )
    made: list[Agent] = []

    class Archiving(Agent):
        def __init__(
            self,
            directory: Path,
            clusters: Mapping[str, Mapping[str, Any]],
            slack: Slack | None = None,
            tables: str = "",
            **options: Any,
        ) -> None:
            tables = f'name = "{AGENT}"\n{tables}\n{archive}'
            super().__init__(directory, clusters, slack, tables, program="testbed.short_segments", **options)
            made.append(self)

    return Archiving, made


def findings(spark: SparkSession, name: str, *options: str) -> list[Finding]:
    check = load_check(name)
    report = check.run(spark, parse(name, check, options), lambda _: None)
    assert not report.unread
    return list(report.findings)


@pytest.mark.parametrize("demo", SCENARIOS)
def test_the_archive_of_a_demo_is_its_journal(
    demo: str, spark: SparkSession, server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/{demo}"
    with Proxy("127.0.0.1", server.port) as link:
        archiving, made = archiving_agents(link, tmp_path, url)
        monkeypatch.setattr(f"{SCENARIOS[demo].__module__}.Agent", archiving)
        with failing(server, link, made):
            assert SCENARIOS[demo](tmp_path / "demo", 7) == 0
        (agent,) = made
        assert failures(made) > 1
        local = agent.state / "journal"
        expected = list(entries(local, unreadable=fail))
        end, until = expected[-1][0], max(observation.at for _, observation in expected) + 1
        shutil.copytree(local, tmp_path / "journal")
        archived = JournalFiles(AGENT, None, Archive(url))
        before = len(list(entries(archived, unreadable=fail)))
        assert before > len(expected) // 2  # while the agent ran
        with agent:  # what was sealed last is archived after the next start
            wait_until(lambda: _count_until(archived, end) == len(expected), "the rest of the journal", 120, every=1)
            agent.stop()
    assert [entry for entry in entries(archived, unreadable=fail) if entry[0] <= end] == expected
    for name, options in CHECKS[demo].items():
        window = (*options, "--to", rfc3339(until))
        found = findings(spark, name, "--journal", str(tmp_path / "journal"), *window)
        assert findings(spark, name, "--journal", url, *window) == found
        assert found or (demo, name) not in FOUND


def _count_until(place: JournalFiles, end: int) -> int:
    return sum(position <= end for position, _ in entries(place, unreadable=fail))
