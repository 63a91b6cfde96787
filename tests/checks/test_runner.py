"""The daemon's queue of checks: requests, results, and what a stop leaves."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from agent.checks.process import session_memory, session_processes
from agent.checks.runner import Checks
from agent.config.loading import loads
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.times import millis
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


def request(check: str = "replica_divergence", **more: Any) -> CheckRequest:
    fields: dict[str, Any] = {"id": "7", "check": check, "cluster": "main", "finding": ("lost", "{}", AT)}
    return CheckRequest(**fields | {"since": AT - 1_000, "until": AT} | more)


@contextmanager
def running(directory: Path, toml: str = TOML) -> Iterator[tuple[Checks, SimpleQueue[CheckResult]]]:
    settings = loads(f'agent.state_directory = "{directory}"\n{toml}', "rules.toml", need_clusters=True)
    results: SimpleQueue[CheckResult] = SimpleQueue()
    checks = Checks(settings, results.put)
    checks.start()
    try:
        yield checks, results
    finally:
        checks.close()


def test_configuration_and_request_become_options(scripted: Scripted, tmp_path: Path) -> None:
    scripted("Path('arguments').write_text(json.dumps(sys.argv[1:]))")
    with running(tmp_path) as (checks, results):
        checks.request(request(topics=("t", "u[1]")))
        assert results.get(timeout=30).request == request(topics=("t", "u[1]"))
        arguments = json.loads(Path("arguments").read_text())
        report = arguments[arguments.index("--report") + 1]
        folder = next(text for text in arguments if text.startswith("spark.local.dir=")).partition("=")[2]
        spark = [
            "--master", "local[*]", "--conf", "spark.driver.memory=1g",
            "--conf", f"spark.local.dir={folder}", "--conf", "spark.jars.packages=a:b:1", "--conf", "spark.ui.port=1",
        ]  # fmt: skip
        assert arguments == [
            "replica_divergence", "--cluster", "main", "--path", "1=/a", "--path", "2=/b", "--path", "2=hdfs://c",
            "--topic", "t", "--topic", "u[[]1]", "--report", report, *spark,
        ]  # fmt: skip
        assert not Path(report).parent.exists()
        checks.request(request("offset_history", groups=("g",)))
        results.get(timeout=30)
        assert json.loads(Path("arguments").read_text())[:11] == [
            "offset_history", "--cluster", "main", "--journal", f"{tmp_path}/journal",
            "--from", "2026-11-20T23:25:12.900Z", "--to", "2026-11-20T23:25:13.900Z", "--group", "g",
        ]  # fmt: skip
    assert written(Path("servers")) == " ".join([*spark, "replica_divergence"]) + "\n"
    assert not Path(folder).exists()


def test_findings_become_observations_and_summary_lines(scripted: Scripted, tmp_path: Path) -> None:
    scripted("""
        [say(finding(number, "critical" if number == 6 else "warning", f"partition {number}")) for number in range(8)]
        Path(option("--report")).mkdir()
        (Path(option("--report")) / "plot.png").write_bytes(b"PNG")
        sys.exit(1)
    """)
    with running(tmp_path) as (checks, results):
        checks.request(request())
        result = results.get(timeout=30)
    *found, run = result.observations
    assert isinstance(run, CheckRun)
    assert (run.check, run.outcome, run.complete, run.reason) == ("replica_divergence", "found", True, "")
    assert 0 < run.at - run.started_at < 30_000
    assert len(found) == 8
    for number, fact in enumerate(found):
        assert isinstance(fact, CheckFinding)
        assert (fact.at, fact.cluster, fact.check) == (run.at, "main", "replica_divergence")
        assert (fact.topic, fact.partition, fact.broker) == ("t", number, None)
    assert result.lines == (*(f"partition {number}" for number in (6, 0, 1, 2, 3)), "and 3 more")
    assert result.plot == b"PNG"


def test_clean_run_reports_its_summary(scripted: Scripted, tmp_path: Path) -> None:
    scripted("""
        Path(option("--report")).mkdir()
        (Path(option("--report")) / "summary.txt").write_text("3 replicas of 12 partitions are the same.\\n")
    """)
    with running(tmp_path) as (checks, results):
        checks.request(request())
        result = results.get(timeout=30)
    assert result.lines == ("3 replicas of 12 partitions are the same.",)
    assert [type(fact) for fact in result.observations] == [CheckRun]
    assert result.plot is None


def test_failed_run_has_a_result_and_the_next_one_runs(scripted: Scripted, tmp_path: Path) -> None:
    with running(tmp_path) as (checks, results):
        scripted("say(finding()); log('Py4JError: the JVM is gone'); sys.exit(3)")
        checks.request(request())
        result = results.get(timeout=30)
        found, run = result.observations
        assert isinstance(found, CheckFinding)
        assert isinstance(run, CheckRun)
        assert run.outcome == "failed"
        assert run.reason == "it ended with status 3: Py4JError: the JVM is gone"
        assert result.lines[0] == "replica_divergence failed: it ended with status 3: Py4JError: the JVM is gone"
        scripted("")
        checks.request(request(id="8"))
        assert results.get(timeout=30).lines == ("replica_divergence found nothing",)


def test_run_without_a_temporary_directory_fails_and_the_next_one_runs(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    scripted("")
    with running(tmp_path) as (checks, results):
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
            checks.request(request())
            assert results.get(timeout=30).lines[0].startswith("replica_divergence failed: internal error: FileNotFou")
        checks.request(request())
        assert results.get(timeout=30).lines == ("replica_divergence found nothing",)


@pytest.mark.parametrize(
    ("requested", "complete"),
    [(request(), True), (request(topics=("t",)), False), (request("offset_history"), False), (None, False)],
)
def test_run_is_complete_without_filter_and_window(
    scripted: Scripted, tmp_path: Path, requested: CheckRequest | None, *, complete: bool
) -> None:
    scripted("")
    with running(tmp_path) as (checks, results):
        if requested is None:
            checks.run_on_schedule("offset_history")
        else:
            checks.request(requested)
        (run,) = results.get(timeout=30).observations
        assert isinstance(run, CheckRun)
        assert run.complete == complete


def test_window_of_a_check_of_whole_logs_leaves_its_runs_complete(scripted: Scripted, tmp_path: Path) -> None:
    """It has no effect there: else what such a run no longer finds would never recover."""
    scripted("sys.exit(3 if '--from' in sys.argv else 0)")
    toml = TOML.replace('replica_divergence = { settle = "0s" }', 'replica_divergence = { window = "7d" }')
    with running(tmp_path, toml) as (checks, results):
        checks.run_on_schedule("replica_divergence")
        (run,) = results.get(timeout=30).observations
    assert isinstance(run, CheckRun)
    assert (run.outcome, run.complete) == ("clean", True)


def test_schedule_runs_a_check_for_each_cluster_with_input(scripted: Scripted, tmp_path: Path) -> None:
    scripted("")
    with running(tmp_path) as (checks, results):
        checks.run_on_schedule("offset_history")
        ran = [results.get(timeout=30).observations[-1] for _ in range(2)]
        assert [run.cluster for run in ran if isinstance(run, CheckRun)] == ["main", "other"]
        checks.run_on_schedule("replica_divergence")
        checks.run_on_schedule("offset_history")
        ran = [results.get(timeout=30).observations[-1] for _ in range(3)]
        assert [run.subject for run in ran] == [
            ("check_run", "main", "replica_divergence"),
            ("check_run", "main", "offset_history"),
            ("check_run", "other", "offset_history"),
        ]


@pytest.mark.parametrize(
    "requested", [request("log_segments"), request(cluster="other"), request(cluster="gone"), request("no_such_check")]
)
def test_check_without_input_has_an_empty_result_at_once(tmp_path: Path, requested: CheckRequest) -> None:
    with running(tmp_path) as (checks, results):
        checks.request(requested)
        assert results.get(timeout=30) == CheckResult(requested, [])


def test_repeated_request_runs_once_with_the_latest_content(scripted: Scripted, tmp_path: Path) -> None:
    scripted("Path('runs').touch(); Path('go').exists() or time.sleep(1); Path('ran').open('a').write('1')")
    with running(tmp_path, TOML.replace('settle = "0s"', 'settle = "1s"')) as (checks, results):
        checks.request(request(topics=("t",)))
        checks.request(request(topics=("t", "u")))
        wait_until(Path("runs").exists, "the check to run")
        checks.request(request(topics=("t", "u", "v")))
        assert results.get(timeout=30).request == request(topics=("t", "u"))
        checks.request(request(id="8"))
        assert results.get(timeout=30).request == request(id="8")
        assert Path("ran").read_text() == "11"


def test_spark_starts_while_a_check_settles(scripted: Scripted, tmp_path: Path) -> None:
    scripted("")
    with running(tmp_path, TOML.replace('settle = "0s"', 'settle = "50s"')) as (checks, results):
        checks.request(request())
        wait_until(lambda: written(Path("servers")), "the process")
        assert checks.load == (0, 1)
        assert results.empty()


def test_spark_does_not_start_long_before_a_check(scripted: Scripted, tmp_path: Path) -> None:
    scripted("")
    toml = TOML.replace('replica_divergence = { settle = "0s"', 'replica_divergence = { settle = "2h"')
    with running(tmp_path, toml) as (checks, results):
        checks.request(request())
        checks.request(request("offset_history", id="8"))
        assert results.get(timeout=30).request == request("offset_history", id="8")
        assert written(Path("servers")).split()[-1] == "offset_history"
        assert checks.load == (0, 1)


@pytest.mark.parametrize("spark", ['session_idle = "0s"', 'session_idle = "1s"'])
def test_idle_spark_ends(scripted: Scripted, tmp_path: Path, spark: str) -> None:
    scripted("Path('session').write_text(str(os.getsid(0)))")
    with running(tmp_path, f"{TOML}{spark}") as (checks, results):
        checks.request(request())
        results.get(timeout=30)
        session = int(written(Path("session")))
        wait_until(lambda: not session_processes(session), "its end", 20)


def test_spark_that_is_always_ready_starts_and_is_replaced(scripted: Scripted, tmp_path: Path) -> None:
    scripted("")
    with running(tmp_path, f"{TOML}always_ready = true\nsession_checks = 1") as (checks, results):
        wait_until(lambda: written(Path("servers")), "the first process")
        checks.request(request())
        results.get(timeout=30)
        wait_until(lambda: written(Path("servers")).count("\n") == 2, "the second process")


def test_stop_ends_the_check_without_a_result(scripted: Scripted, tmp_path: Path) -> None:
    scripted("Path('pid').write_text(str(os.getpid())); time.sleep(600)")
    with running(tmp_path) as (checks, results):
        checks.request(request())
        checks.request(request(id="8"))
        pid = int(wait_until(lambda: written(Path("pid")), "the check to run"))
        session = os.getsid(pid)
        assert session_memory(session, 0) > 1 << 20
        checks.close()
        assert not session_processes(session)
        assert results.empty()
