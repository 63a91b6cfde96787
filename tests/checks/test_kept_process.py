"""The process that keeps Spark's session: when it starts, ends and is renewed, with a script in place of Spark."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.checks.kept_process import KeptProcess
from agent.checks.process import Limits, Outcome, session_processes
from agent.config.checks import Spark
from testbed.waiting import wait_until
from tests.checks.conftest import Scripted, written

WHO = "Path('who').open('a').write(f'{os.getppid()}\\n')"
"""A check that writes which server runs it."""


class Clock:
    """Seconds that pass only when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def kept(clock: Clock | None = None, **spark: Any) -> Iterator[KeptProcess]:
    with KeptProcess(Spark(**spark), clock or Clock()) as process:
        yield process


def run(process: KeptProcess, check: str = "offset_history", limits: Limits | None = None) -> Outcome:
    return process.run([check], limits or Limits(), threading.Event())


def servers() -> list[int]:
    """Return the servers that ran a check, one for each check."""
    return [int(line) for line in written(Path("who")).split()]


def test_checks_share_a_process_until_it_is_renewed(scripted: Scripted) -> None:
    scripted(WHO)
    with kept(session_checks=2) as process:
        outcomes = [run(process) for _ in range(3)]
        first, second, third = servers()
        assert first == second != third
        assert [outcome.outcome for outcome in outcomes] == ["clean"] * 3
        assert not session_processes(first)
        assert session_processes(third)
    assert not session_processes(third)


def test_findings_and_log_belong_to_their_check(scripted: Scripted) -> None:
    scripted("""
        number = Path("n").stat().st_size if Path("n").exists() else 0
        Path("n").open("a").write(".")
        log(f"WARN {number}")
        say(finding(number))
        sys.exit(1)
    """)
    with kept() as process:
        outcomes = [run(process) for _ in range(3)]
    assert [outcome.log for outcome in outcomes] == [(f"WARN {number}",) for number in range(3)]
    assert [[finding.subject["partition"] for finding in outcome.findings] for outcome in outcomes] == [[0], [1], [2]]
    assert {outcome.outcome for outcome in outcomes} == {"found"}


def test_idle_process_has_a_lifetime_from_its_last_check(scripted: Scripted) -> None:
    scripted("")
    clock = Clock()
    with kept(clock, session_idle="5m") as process:
        left = [process.seconds_left]
        process.prepare("offset_history")
        left.append(process.seconds_left)
        clock.now = 200
        left.append(process.seconds_left)
        run(process)
        left.append(process.seconds_left)
        process.close("it was idle")
        assert [*left, process.seconds_left] == [None, 300, 100, 300, None]


def test_process_that_is_always_ready_has_no_lifetime(scripted: Scripted) -> None:
    scripted("")
    with kept(always_ready=True) as process:
        process.prepare()
        assert process.seconds_left is None


def test_process_is_started_once_for_a_check(scripted: Scripted) -> None:
    scripted(WHO)
    with kept(master="local[1]") as process:
        process.prepare("offset_history")
        process.prepare("job_history")
        run(process, "job_history")
    (line,) = written(Path("servers")).splitlines()
    assert line.startswith("--master local[1] --conf spark.driver.memory=1g --conf spark.local.dir=")
    assert line.endswith(" offset_history")


def test_check_that_fails_in_a_used_process_runs_in_a_new_one(scripted: Scripted) -> None:
    scripted(WHO + "; sys.exit(3 if len(Path('who').read_text().split()) == 2 else 0)")
    with kept() as process:
        assert [run(process).outcome for _ in range(2)] == ["clean", "clean"]
        first, second, third = servers()
        assert first == second != third
        assert not session_processes(first)


def test_check_that_fails_in_a_new_process_has_failed(scripted: Scripted) -> None:
    scripted(WHO + "; log('The check failed: no master'); sys.exit(3)")
    with kept() as process:
        assert run(process).reason == "it ended with status 3: The check failed: no master"
        (first,) = servers()
        assert not session_processes(first)
        assert process.seconds_left is None


@pytest.mark.parametrize("moment", ["before the check", "during the check"])
def test_killed_process_is_replaced(scripted: Scripted, moment: str) -> None:
    scripted(WHO + "; Path('kill').exists() and (Path('kill').unlink(), os.kill(os.getppid(), 9), time.sleep(600))")
    with kept() as process:
        run(process)
        (first,) = servers()
        if moment == "before the check":
            psutil.Process(first).kill()
        else:
            Path("kill").touch()
        assert run(process).outcome == "clean"
        assert servers()[-1] != first
        assert not session_processes(first)


def test_process_that_ends_at_its_start_has_a_reason(scripted: Scripted) -> None:
    scripted("")
    Path("spark_checks/server.py").write_text("import sys; sys.exit('Starting Spark failed: no master')")
    with kept() as process:
        assert run(process).reason == "it ended with status 1: Starting Spark failed: no master"
        assert process.seconds_left is None


def test_check_beyond_its_time_limit_ends_the_process(scripted: Scripted) -> None:
    scripted(WHO + "; len(Path('who').read_text().split()) == 2 and time.sleep(600)")
    with KeptProcess(Spark()) as process:
        run(process)
        outcome = run(process, limits=Limits(time=1_000))
        assert outcome.reason == "it was stopped: it had not ended after 1s"
        first, second = servers()
        assert first == second
        assert not session_processes(first)


def test_check_beyond_its_memory_limit_runs_in_a_new_process(scripted: Scripted) -> None:
    """What earlier checks left may be the cause."""
    scripted(WHO + "; b = bytearray(200_000_000 if len(Path('who').read_text().split()) == 2 else 1)"
             "; len(b) > 1 and time.sleep(600)")  # fmt: skip
    with kept() as process:
        run(process)
        assert run(process, limits=Limits(time=60_000, memory=150 << 20)).outcome == "clean"
        assert len(set(servers())) == 2


def test_idle_process_ends_when_its_parent_is_killed(scripted: Scripted, tmp_path: Path) -> None:
    scripted(WHO)
    code = (
        "import threading, time; from agent.checks.kept_process import *; from agent.config.checks import Spark;"
        "process = KeptProcess(Spark()); process.run(['x'], Limits(), threading.Event()); open('idle', 'w').write('.');"
        "time.sleep(600)"
    )
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    runner = psutil.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    wait_until(lambda: written(Path("idle")), "an idle process")
    (server,) = servers()
    assert session_processes(server)
    runner.kill()
    runner.wait()
    wait_until(lambda: not session_processes(server), "its end", 10)
