"""The daemon's queue of checks: what is asked of a check, what is answered, and what a stop leaves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from agent.checks.runner import Checks
from agent.checks.sessions import memory
from agent.config.settings import Settings, loads
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.observations import CheckFinding, CheckRun, millis
from testbed.waiting import wait_until
from tests.checks.conftest import Scripted, written

AT = millis("2026-11-20T23:25:13.900Z")
TOML = """
[clusters.main]
bootstrap_servers = "k:9092"
log_directories = { 1 = "/a", 2 = ["/b", "hdfs://c"] }
[clusters.other]
bootstrap_servers = "k:9092"
[checks]
replica_divergence = { settle = "0s" }
log_segments = { enabled = false }
offset_history = { settle = "0s", window = "25h" }
[spark]
conf = { "spark.ui.port" = 1 }
packages = ["a:b:1"]
"""


def ask(check: str = "replica_divergence", **more: Any) -> CheckRequest:
    """What an incident asks."""
    fields: dict[str, Any] = {"id": "7", "check": check, "cluster": "main", "finding": ("lost", "{}", AT)}
    return CheckRequest(**fields | {"since": AT - 1_000, "until": AT} | more)


@contextmanager
def running(directory: Path, toml: str = TOML) -> Iterator[tuple[Checks, SimpleQueue[CheckResult]]]:
    """Checks at work, and what they answer."""
    settings: Settings = loads(f'agent.state_directory = "{directory}"\n{toml}', "rules.toml", need_clusters=True)
    answers: SimpleQueue[CheckResult] = SimpleQueue()
    checks = Checks(settings, answers.put)
    checks.start()
    try:
        yield checks, answers
    finally:
        checks.close()


def test_what_is_configured_and_asked_becomes_its_options(scripted: Scripted, tmp_path: Path) -> None:
    """Directories, Spark's settings, topics as patterns that mean nothing but them; a log has no window."""
    scripted("Path('arguments').write_text(json.dumps(sys.argv[1:]))")
    with running(tmp_path) as (checks, answers):
        checks.ask(ask(topics=("t", "u[1]")))
        assert answers.get(timeout=30).ask == ask(topics=("t", "u[1]"))
        arguments = json.loads(Path("arguments").read_text())
        scratch = str(Path(arguments[-1]).parent)
        assert arguments[:-1] == [
            "replica_divergence", "--cluster", "main", "--path", "1=/a", "--path", "2=/b", "--path", "2=hdfs://c",
            "--topic", "t", "--topic", "u[[]1]", "--master", "local[*]", "--conf", "spark.driver.memory=1g",
            "--conf", f"spark.local.dir={scratch}", "--conf", "spark.jars.packages=a:b:1", "--conf", "spark.ui.port=1",
            "--report",
        ]  # fmt: skip
        assert not Path(scratch).exists()
        checks.ask(ask("offset_history", groups=("g",)))
        answers.get(timeout=30)
        assert json.loads(Path("arguments").read_text())[:11] == [
            "offset_history", "--cluster", "main", "--journal", f"{tmp_path}/journal",
            "--from", "2026-11-20T23:25:12.900Z", "--to", "2026-11-20T23:25:13.900Z", "--group", "g",
        ]  # fmt: skip


def test_what_was_found_is_observed_and_said(scripted: Scripted, tmp_path: Path) -> None:
    """Findings, then the run, at one moment; the gravest first in the thread, five of them; the plot with them."""
    scripted("""
        [say(finding(one, "critical" if one == 6 else "warning", f"partition {one}")) for one in range(8)]
        Path(option("--report")).mkdir()
        (Path(option("--report")) / "plot.png").write_bytes(b"PNG")
        sys.exit(1)
    """)
    with running(tmp_path) as (checks, answers):
        checks.ask(ask())
        answered = answers.get(timeout=30)
    *found, run = answered.observations
    assert isinstance(run, CheckRun)
    assert (run.check, run.outcome, run.complete, run.reason) == ("replica_divergence", "found", True, "")
    assert 0 < run.at - run.started_at < 30_000
    assert len(found) == 8
    for number, one in enumerate(found):
        assert isinstance(one, CheckFinding)
        assert (one.at, one.cluster, one.check) == (run.at, "main", "replica_divergence")
        assert (one.topic, one.partition, one.broker) == ("t", number, None)
    assert answered.lines == (*(f"partition {one}" for one in (6, 0, 1, 2, 3)), "and 3 more")
    assert answered.plot == b"PNG"


def test_a_clean_run_says_what_it_compared(scripted: Scripted, tmp_path: Path) -> None:
    """In the words of its summary."""
    scripted("""
        Path(option("--report")).mkdir()
        (Path(option("--report")) / "summary.txt").write_text("3 replicas of 12 partitions are the same.\\n")
    """)
    with running(tmp_path) as (checks, answers):
        checks.ask(ask())
        answered = answers.get(timeout=30)
    assert answered.lines == ("3 replicas of 12 partitions are the same.",)
    assert [type(one) for one in answered.observations] == [CheckRun]
    assert answered.plot is None


def test_a_failed_run_is_answered_too_and_the_next_one_runs(scripted: Scripted, tmp_path: Path) -> None:
    """With what it had found until then."""
    with running(tmp_path) as (checks, answers):
        scripted("say(finding()); log('Py4JError: the JVM is gone'); sys.exit(3)")
        checks.ask(ask())
        answered = answers.get(timeout=30)
        found, run = answered.observations
        assert isinstance(found, CheckFinding)
        assert isinstance(run, CheckRun)
        assert run.outcome == "failed"
        assert run.reason == "it ended with status 3: Py4JError: the JVM is gone"
        assert answered.lines[0] == "replica_divergence failed: it ended with status 3: Py4JError: the JVM is gone"
        scripted("")
        checks.ask(ask(id="8"))
        assert answers.get(timeout=30).lines == ("replica_divergence found nothing",)


@pytest.mark.parametrize(
    ("asked", "complete"),
    [(ask(), True), (ask(topics=("t",)), False), (ask("offset_history"), False), (None, False)],
)
def test_a_run_is_complete_that_looks_at_everything(
    scripted: Scripted, tmp_path: Path, asked: CheckRequest | None, *, complete: bool
) -> None:
    """Not at some topics, nor at the time around an incident, nor at a schedule's window."""
    scripted("")
    with running(tmp_path) as (checks, answers):
        if asked is None:
            checks.run_on_schedule("offset_history")
        else:
            checks.ask(asked)
        (run,) = answers.get(timeout=30).observations
        assert isinstance(run, CheckRun)
        assert run.complete == complete


def test_a_schedule_runs_a_check_for_each_cluster_that_has_something_for_it(scripted: Scripted, tmp_path: Path) -> None:
    """The journal is there for all; log directories are not."""
    scripted("")
    with running(tmp_path) as (checks, answers):
        checks.run_on_schedule("offset_history")
        ran = [answers.get(timeout=30).observations[-1] for _ in range(2)]
        assert [one.cluster for one in ran if isinstance(one, CheckRun)] == ["main", "other"]
        checks.run_on_schedule("replica_divergence")
        checks.run_on_schedule("offset_history")
        ran = [answers.get(timeout=30).observations[-1] for _ in range(3)]
        assert [one.subject for one in ran] == [
            ("check_run", "main", "replica_divergence"),
            ("check_run", "main", "offset_history"),
            ("check_run", "other", "offset_history"),
        ]


@pytest.mark.parametrize(
    "asked", [ask("log_segments"), ask(cluster="other"), ask(cluster="gone"), ask("no_such_check")]
)
def test_a_check_that_cannot_look_at_anything_is_answered_at_once(tmp_path: Path, asked: CheckRequest) -> None:
    """Not enabled, no directories, a cluster or a check that is no longer configured: nothing to say."""
    with running(tmp_path) as (checks, answers):
        checks.ask(asked)
        assert answers.get(timeout=30) == CheckResult(asked, [])


def test_what_is_asked_twice_runs_once_for_what_was_asked_last(scripted: Scripted, tmp_path: Path) -> None:
    """An incident that grows asks for more under the same id; while it runs nothing is added."""
    scripted("Path('runs').touch(); Path('go').exists() or time.sleep(1); Path('ran').open('a').write('1')")
    with running(tmp_path, TOML.replace('settle = "0s"', 'settle = "1s"')) as (checks, answers):
        checks.ask(ask(topics=("t",)))
        checks.ask(ask(topics=("t", "u")))
        wait_until(Path("runs").exists, "the check to run")
        checks.ask(ask(topics=("t", "u", "v")))
        assert answers.get(timeout=30).ask == ask(topics=("t", "u"))
        checks.ask(ask(id="8"))
        assert answers.get(timeout=30).ask == ask(id="8")
        assert Path("ran").read_text() == "11"


def test_a_stop_ends_the_check_and_answers_nothing(scripted: Scripted, tmp_path: Path) -> None:
    """What was asked stays asked, for the next start."""
    scripted("Path('pid').write_text(str(os.getpid())); time.sleep(600)")
    with running(tmp_path) as (checks, answers):
        checks.ask(ask())
        checks.ask(ask(id="8"))
        pid = int(wait_until(lambda: written(Path("pid")), "the check to run"))
        assert memory(pid) > 1 << 20
        checks.close()
        assert not psutil.pid_exists(pid)
        assert answers.empty()
