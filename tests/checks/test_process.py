"""The process of a check: output, limits, and that no process of it is left."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from agent.checks.process import (
    MOST_FINDINGS,
    Limits,
    Outcome,
    kill_session,
    run_check,
    session_memory,
    session_processes,
)
from agent.model.findings import finding_from_json
from testbed.waiting import wait_until
from tests.checks.conftest import Scripted, written

NONE = Limits()


def run(limits: Limits = NONE, stop: threading.Event | None = None) -> Outcome:
    return run_check(["NAME"], limits, stop or threading.Event())


def test_check_without_findings_is_clean(scripted: Scripted) -> None:
    scripted("log('WARN something of Spark'); assert sys.argv[1:] == ['NAME']")
    assert run() == Outcome("clean", log=("WARN something of Spark",), status=0)


def test_findings_and_progress_are_passed_on(scripted: Scripted) -> None:
    scripted("log('progress: 1/2 segments'); say(finding(0)); say(finding(1)); say(finding(1)); sys.exit(1)")
    progress: list[str] = []
    lines: list[str] = []
    outcome = run_check(
        [], NONE, threading.Event(), on_progress=progress.append, on_finding=lambda _, line: lines.append(line)
    )
    assert (outcome.outcome, outcome.reason, outcome.status) == ("found", "", 1)
    assert [finding.subject["partition"] for finding in outcome.findings] == [0, 1]
    assert [finding_from_json(line) for line in lines] == list(outcome.findings)
    assert progress == ["1/2 segments"]


def test_faults_of_a_file_are_findings_of_their_own(scripted: Scripted) -> None:
    """Records without a timestamp have the time of their file."""
    scripted("[say(finding(position=byte)) for byte in (0, 100, 100)]; sys.exit(1)")
    assert [finding.position for finding in run().findings] == [0, 100]


def test_surplus_findings_are_only_counted(scripted: Scripted) -> None:
    scripted(f"[print(finding(run)) for run in range({MOST_FINDINGS + 7})]; sys.exit(1)")
    found: list[str] = []
    outcome = run_check([], NONE, threading.Event(), on_finding=lambda _, line: found.append(line))
    assert (outcome.outcome, len(outcome.findings), outcome.left_out) == ("found", MOST_FINDINGS, 7)
    assert len(found) == MOST_FINDINGS + 7


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("log('a'); log('The check failed: no master'); sys.exit(3)", "it ended with status 3: The check failed: no m"),
        ("log('--to: no time'); sys.exit(2)", "it ended with status 2: --to: no time"),
        ("import nonsense_that_is_not_there", "it ended with status 1: ModuleNotFoundError"),
        ("sys.exit(1)", "it ended with status 1"),
        ("say(finding()); sys.exit(0)", "it ended with status 0"),
        ("os.kill(os.getpid(), 9)", "it was killed (SIGKILL)"),
        ("say('25/11/20 WARN a library that prints'); sys.exit(1)", "it printed a line that is not a finding ("),
        ("say('x' * 5_000_000); sys.exit(1)", "it printed a line that is not a finding ("),
    ],
)
def test_failed_check_has_a_reason(scripted: Scripted, script: str, reason: str) -> None:
    scripted(script)
    outcome = run()
    assert outcome.outcome == "failed"
    assert outcome.reason.startswith(reason)
    assert len(outcome.failure) < 5_000


def test_only_the_end_of_the_log_is_kept(scripted: Scripted) -> None:
    scripted("[log(f'line {run} ' + 'x' * 10_000 + '\\n\\tat Java.java') for run in range(1000)]; sys.exit(3)")
    outcome = run()
    assert len(outcome.log) == 60
    lines = outcome.failure.splitlines()[1:]
    assert [line.split()[1] for line in lines] == [str(run) for run in range(985, 1000)]
    assert max(map(len, lines)) == 300


FAMILY = """
    # A worker in a process group of its own, as PySpark's are, and an orphan.
    code = "import os, time; os.setpgid(0, 0); open('worker', 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    code = "import os, time\\nif os.fork() == 0: open('orphan', 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code]).wait()
    while not all(Path(name).exists() and Path(name).read_text() for name in ("worker", "orphan")):
        time.sleep(0.01)
    Path("session").write_text(str(os.getsid(0)))
"""


def no_process_is_left() -> bool:
    family = [int(Path(name).read_text()) for name in ("worker", "orphan", "session")]
    ours = psutil.Process().children()
    return not session_processes(family[2]) and not any(child.pid in family for child in ours)


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_no_process_of_a_check_is_left(scripted: Scripted, end: str) -> None:
    scripted(FAMILY + "\n    " + end)
    outcome = run(Limits(time=3_000))
    assert (outcome.outcome == "clean") == (end == "sys.exit(0)")
    assert no_process_is_left()


def test_check_beyond_its_time_limit_is_stopped(scripted: Scripted) -> None:
    scripted("log('still at it'); time.sleep(600)")
    assert run(Limits(time=1_000)).failure == "it was stopped: it had not ended after 1s\nstill at it"


def test_memory_of_all_processes_counts(scripted: Scripted) -> None:
    scripted("[subprocess.Popen([sys.executable, '-c', 'b = bytearray(100_000_000); import time; time.sleep(600)'])"
             " for _ in range(3)]; time.sleep(600)")  # fmt: skip
    outcome = run(Limits(time=60_000, memory=200 << 20))
    assert outcome.outcome == "failed"
    assert outcome.reason.startswith("it was stopped: it used ")
    assert outcome.reason.endswith(" MiB, more than its limit of 200 MiB")


@pytest.fixture
def forked() -> Iterator[int]:
    """A session of five processes that share 120 MB."""
    script = """if True:
        import os, signal
        held = bytearray(120_000_000)
        for _ in range(4):
            if os.fork() == 0:
                signal.pause()
        print(flush=True)
        signal.pause()
    """
    with psutil.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        yield process.pid
        kill_session(process.pid)


def test_memory_that_forked_processes_share_counts_once(forked: int) -> None:
    assert 120_000_000 < session_memory(forked, 300_000_000) < 300_000_000


def test_memory_is_the_resident_one_if_what_is_shared_is_unknown(forked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    assert session_memory(forked, 300_000_000) > 600_000_000


def test_process_that_cannot_be_killed_keeps_nothing_waiting(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs in the kernel, on a disk that does not answer."""
    scripted("Path('session').write_text(str(os.getsid(0))); time.sleep(600)")
    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(psutil.Process, "kill", lambda _: None)
        for wait in ("_KILL_S", "_DRAIN_S"):
            patch.setattr(f"agent.checks.process.{wait}", 0.3)
        outcome = run(Limits(time=2_000))
    session = int(Path("session").read_text())
    assert outcome.reason == "it was stopped: it had not ended after 2s"
    assert {(line["event"], *line["pids"]) for line in logged} == {("check_processes_not_killed", session)}
    kill_session(session)


def test_check_is_stopped_on_request(scripted: Scripted) -> None:
    scripted("Path('runs').touch(); time.sleep(600)")
    stop = threading.Event()
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(NONE, stop)))
    thread.start()
    wait_until(Path("runs").exists, "the check to run")
    stop.set()
    thread.join(5)
    assert [outcome.reason for outcome in outcomes] == ["it was stopped"]


def test_check_runs_at_lower_priority(scripted: Scripted) -> None:
    scripted("""
        time.sleep(1)
        import ctypes
        sys.exit(0 if os.nice(0) >= 10 and ctypes.CDLL(None).syscall(252, 1, 0) >> 13 == 3
                 and Path("/proc/self/oom_score_adj").read_text() == "500\\n" else 3)
    """)  # 252: ioprio_get on x86-64
    assert os.nice(0) < 10
    assert run().outcome == "clean"


def test_check_ends_when_its_parent_is_killed(scripted: Scripted, tmp_path: Path) -> None:
    scripted("Path('check').write_text(str(os.getpid())); time.sleep(600)")
    code = "import threading; from agent.checks.process import *; run_check([], Limits(), threading.Event())"
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    runner = psutil.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    pid = int(wait_until(lambda: written(Path("check")), "the check to run"))
    runner.kill()
    runner.wait()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "its end", 10)


def test_check_gets_no_secrets_and_what_is_named(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_TOKEN", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    scripted("Path('seen').write_text(' '.join(sorted(os.environ)))")
    outcome = run_check([], NONE, threading.Event(), variables=("AWS_SESSION_TOKEN",))
    assert outcome.outcome == "clean"
    seen = set(written(Path("seen")).split())
    assert not seen & {"SLACK_TOKEN", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"}
    assert seen >= {"AWS_SESSION_TOKEN", "HOME", "PATH", "SPARK_LOCAL_IP", "TZ"}


def test_no_module_in_the_working_directory_runs(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the check nor in a Python process that it starts, as Spark starts its workers."""
    scripted("""
        try:
            import planted
        except ModuleNotFoundError:
            sys.exit(subprocess.run([sys.executable, '-m', 'planted'], stderr=subprocess.DEVNULL).returncode - 1)
    """)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "planted.py").write_text("")
    monkeypatch.chdir(elsewhere)
    assert run().outcome == "clean"
