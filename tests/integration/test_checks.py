"""Spark checks of the running daemon: real Spark in processes of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.checks.process import session_processes
from agent.model.observations.base import Observation
from agent.model.observations.checks import CheckFinding, CheckRun
from testbed.agent import Agent
from testbed.processes import free_port
from testbed.waiting import wait_until
from tests.integration.scenes import findings, has, now

pytestmark = pytest.mark.integration

SPARK = '[spark]\nmaster = "local[1]"\ndriver_memory = "512m"\n'
UNKEPT = f'{SPARK}session_idle = "0s"\n'


def watching(directory: Path, table: str, spark: str = SPARK) -> Agent:
    (directory / "disk" / "t-0").mkdir(parents=True)
    segment(directory).touch()
    cluster = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "log_directories.5": str(directory / "disk")}
    agent = Agent(directory / "agent", {"main": cluster}, tables=spark, checks=True)
    config = agent.config.read_text(encoding="utf-8")
    config, replaced = re.subn(r"(\[checks\.log_segments\].*\n)schedule = .*", rf"\1{table}", config)
    assert replaced == 1
    agent.config.write_text(config, encoding="utf-8")
    return agent


def segment(directory: Path) -> Path:
    return directory / "disk" / "t-0" / "00000000000000000000.log"


def ran(outcome: str, since: int = 0) -> Callable[[Observation], bool]:
    return lambda run: isinstance(run, CheckRun) and run.outcome == outcome and run.started_at >= since


def check(agent: Agent) -> psutil.Process | None:
    """Return the process that runs checks."""
    with suppress(psutil.Error):  # it may just have ended
        children = psutil.Process(agent.pid).children()
        return next((process for process in children if "spark_checks.server" in process.cmdline()), None)
    return None


def java(agent: Agent) -> psutil.Process | None:
    running = check(agent)
    with suppress(psutil.Error):
        below = [] if running is None else running.children(recursive=True)
        return next(
            (process for process in below if process.name() == "java" and process.memory_info().rss > 100 << 20), None
        )
    return None


def failed(incident: dict[str, Any]) -> bool:
    return has(incident, "check_failed", source="log_segments")


def test_running_check_does_not_grow_the_daemon(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "15s"', UNKEPT) as agent:
        agent.wait_until_watching()
        agent.wait_until_evaluated(now() + 5_000)
        daemon = psutil.Process(agent.pid)
        before = daemon.memory_info().rss
        during: list[int] = []

        def ended() -> bool:
            during.append(daemon.memory_info().rss)
            return check(agent) is None

        wait_until(lambda: java(agent), "a JVM")
        wait_until(ended, "the check's end", every=0.2)
        run = agent.wait_for(ran("clean"), "its run")
        assert isinstance(run, CheckRun)
        assert run.complete
        agent.wait_until_evaluated(run.at)
        assert len(during) > 5
        assert max(*during, daemon.memory_info().rss) - before < 12 << 20
        mapped = [region.path for region in daemon.memory_maps()]
        assert any("pyarrow" in path for path in mapped)
        assert not any(foreign in path for path in mapped for foreign in ("libjvm", "pyspark", "matplotlib", "duckdb"))


def test_daemon_imports_nothing_of_spark() -> None:
    code = "import agent.daemon.daemon, sys; print({module.partition('.')[0] for module in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'pyarrow'" in loaded
    assert not [
        module for module in ("pyspark", "py4j", "matplotlib", "pandas", "spark_checks") if f"'{module}'" in loaded
    ]


def test_check_fails_if_its_jvm_is_killed_and_runs_again(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "3s"') as agent:
        agent.wait_until_watching()
        wait_until(lambda: java(agent), "a JVM").kill()
        run = agent.wait_for(ran("failed"), "the failure")
        assert isinstance(run, CheckRun)
        assert run.reason.startswith("it ended with status 3: ")
        incident = agent.wait_for_incident(failed, "the failure as an incident")
        (finding,) = findings([incident], "check_failed")
        assert finding["severity"] == "warning"
        assert "check log_segments failed: " in finding["detail"]
        assert "its log ends with:" in finding["detail"]
        agent.wait_for(ran("clean", run.at), "the next run")
        agent.wait_for_incident(
            lambda candidate: failed(candidate) and candidate["status"] == "recovered", "the recovery"
        )


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ('time_limit = "4s"', "it was stopped: it had not ended after 4s"),
        ('memory_limit = "128m"', "it was stopped: it used "),
    ],
)
def test_check_beyond_a_limit_is_ended_with_its_processes(tmp_path: Path, limit: str, reason: str) -> None:
    with watching(tmp_path, f'schedule = "5s"\n{limit}') as agent:
        agent.wait_until_watching()
        started = wait_until(lambda: check(agent), "the check to start")
        run = agent.wait_for(ran("failed"), "its end")
        assert isinstance(run, CheckRun)
        assert run.reason.startswith(reason)
        assert not session_processes(started.pid)
        assert not psutil.pid_exists(started.pid)
        agent.wait_for_incident(failed, "the incident")


def test_check_that_cannot_start_has_a_reason(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "3s"', '[spark]\nmaster = "yarn"\n') as agent:
        agent.wait_until_watching()
        incident = agent.wait_for_incident(failed, "the failure")
        (finding,) = findings([incident], "check_failed")
        assert "either HADOOP_CONF_DIR or YARN_CONF_DIR must be set" in finding["detail"]


def test_finding_of_a_check_is_an_incident_until_it_is_gone(tmp_path: Path) -> None:
    agent = watching(tmp_path, 'schedule = "3s"')
    segment(tmp_path).write_bytes(b"\x01" * 500)
    with agent:
        found = agent.wait_for(lambda fact: isinstance(fact, CheckFinding), "the finding")
        incident = agent.wait_for_incident(lambda candidate: has(candidate, "log_segments"), "the incident")
        (finding,) = findings([incident], "log_segments")
        assert (finding["rule"], finding["subject"]["broker"]) == ("segments", 5)
        assert incident["status"] == "open"
        segment(tmp_path).write_bytes(b"")
        agent.wait_for(ran("clean", found.at), "a clean run", 90)
        agent.wait_for_incident(
            lambda candidate: candidate["id"] == incident["id"] and candidate["status"] != "open", "the recovery"
        )


def test_stop_does_not_wait_for_a_check(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "3s"') as agent:
        agent.wait_until_watching()
        wait_until(lambda: java(agent), "a JVM")
        started = wait_until(lambda: check(agent), "its check")
        begun = time.monotonic()
        agent.stop(seconds=10)
        assert time.monotonic() - begun < 10
        assert agent.exit_status == 0
        assert not session_processes(started.pid)


def test_checks_share_a_session_until_its_jvm_is_killed(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "3s"') as agent:
        agent.wait_until_watching()
        first = agent.wait_for(ran("clean"), "a run")
        kept = wait_until(lambda: java(agent), "the JVM of the session")
        agent.wait_for(ran("clean", first.at), "the next run")
        assert java(agent) == kept
        kept.kill()
        agent.wait_for(ran("clean", now()), "a run in a new session")
        assert wait_until(lambda: java(agent), "another JVM") != kept
        assert not [fact for fact in agent.observations() if ran("failed")(fact)]


def test_idle_session_ends_with_its_daemon(tmp_path: Path) -> None:
    with watching(tmp_path, 'schedule = "3s"') as agent:
        agent.wait_until_watching()
        agent.wait_for(ran("clean"), "a run")
        kept = wait_until(lambda: check(agent), "the process of the session")
        agent.kill()
        wait_until(lambda: not session_processes(kept.pid), "its end", 30)
