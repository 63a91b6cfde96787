"""`python -m spark_checks`: what it prints, what it exits with, and that wrong use starts no Spark."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.model.findings import finding_from_json
from spark_checks.__main__ import check, parse
from spark_checks.options import Options, WrongUseError, common
from spark_checks.session import settings
from testbed.waiting import wait_until
from tests.spark_checks import disks

COMMAND = [sys.executable, "-m", "spark_checks"]
CORE = ["--master", "local[1]"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with all that it says."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A log directory whose offsets go back once."""
    entries = [*disks.log(2, "none", 30), *disks.log(2, "none", 40, start=20)]
    disks.write(tmp_path / "logs", "t", 0, {0: b"".join(entries)})
    return tmp_path / "logs"


def test_findings_are_lines_of_json_and_the_report_is_a_sentence(broker: Path, tmp_path: Path) -> None:
    """Status 1; nothing but findings on standard output, progress on the other."""
    done = run("log_segments", "--path", f"2005={broker}", "--cluster", "eu", "--report", str(tmp_path / "r"), *CORE)
    assert done.returncode == 1, done.stderr
    (found,) = map(finding_from_json, done.stdout.splitlines())
    assert (found.rule, found.kind, found.subject["cluster"]) == ("log_segments", "log_segments", "eu")
    assert (tmp_path / "r" / "summary.txt").read_text().endswith("on broker 2005: 1 fault in 1 file.\n")
    assert "progress: starting Spark\n" in done.stderr


def test_clean_is_status_0(broker: Path) -> None:
    """A pattern that no topic matches leaves nothing to find."""
    done = run("log_segments", "--path", f"2005={broker}", "--topic", "none-such", *CORE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_failure_is_a_sentence_at_the_end_of_the_log_and_status_3(broker: Path) -> None:
    """Here a JVM that cannot start."""
    done = run("log_segments", "--path", f"2005={broker}", "--conf", "spark.driver.memory=none", *CORE)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1].startswith("The check log_segments failed unexpectedly: ")


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_examined(broker: Path) -> None:
    """Status 3, for nobody knows what it holds; what the others hold is found; no traceback, the path once."""
    disks.write(broker, "unread", 0, {0: b"".join(disks.log(2, "none", 30))})
    index = broker / "unread-0" / f"{0:020d}.index"
    index.symlink_to("/proc/self/mem")  # reading its first byte is an input/output error, whoever reads
    done = run("log_segments", "--path", f"2005={broker}", *CORE)
    assert done.returncode == 3
    assert [finding_from_json(line).subject["topic"] for line in done.stdout.splitlines()] == ["t"]
    assert done.stderr.splitlines()[-1] == (
        f"The check log_segments failed: 1 file could not be read, all others were: {index}: Input/output error"
    )
    assert "Traceback" not in done.stderr
    divergence = run("replica_divergence", "--path", f"2005={broker}", "--path", f"2011={_replica(broker)}", *CORE)
    assert divergence.returncode == 3
    told = divergence.stderr.splitlines()[-1]
    assert told.startswith(f"The check replica_divergence failed: {index}: cannot be read: ")


def _replica(broker: Path) -> Path:
    """Another broker's log directory, whole, with high watermarks on both sides."""
    other = broker.parent / "other"
    disks.write(other, "unread", 0, {0: b"".join(disks.log(2, "none", 30))}, high_watermark=30)
    (broker / "replication-offset-checkpoint").write_text("0\n1\nunread 0 30\n")
    return other


def test_all_mistakes_are_listed_and_no_spark_is_started(tmp_path: Path) -> None:
    """Status 2, a line for each."""
    (tmp_path / "file").touch()
    done = run(
        *("log_segments", "--path", "2005", "--path", f"1={tmp_path / 'missing'}", "--path", f"2={tmp_path}"),
        *("--from", "yesterday", "--to", "2026-01-01T00:00:00", "--conf", "memory=1g", "--conf", "spark.x"),
        *("--report", str(tmp_path / "file"), "--group", "g"),
    )
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.splitlines()
    for number, start in enumerate(
        (
            "--from: ",
            "--to: ",
            "--conf memory=1g: ",
            "--conf spark.x: ",
            "--report ",
            "--group: a broker's log knows no consumer groups",
            "--path 2005: ",
            "--path 1=",
            "--path 2=",
        )
    ):
        assert told[number].startswith(start), told
    assert len(told) == 9
    assert "there is no such directory" in told[7]
    assert "holds no partitions" in told[8]


@pytest.mark.parametrize("name", ["log_segments", "replica_divergence"])
def test_what_a_check_has_no_use_for_is_refused_and_not_in_its_help(name: str) -> None:
    """Whoever narrows a log down to an hour would believe that it was done."""
    chosen = check(name)
    moment, groups = "2026-11-20T00:00:00Z", ["--group", "a", "--group", "b"]
    with pytest.raises(WrongUseError) as told:
        parse(name, chosen, ["--from", moment, "--to", moment, *groups, "--path", "x"])
    begins = [one.partition(":")[0] for one in told.value.mistakes]
    assert begins == ["--group", "--from", "--to", "--path x"]
    shown = [one.opts[0] for one in common(chosen) if not one.hidden]
    assert shown == ["--cluster", "--topic", "--master", "--conf", "--report"]
    assert not any(one.hidden for one in common(check("offset_history")))


def test_an_unknown_check_or_option_says_what_there_is() -> None:
    """A slip of the pen is put right."""
    done = run("replica_divergance")
    assert done.returncode == 2
    assert "Did you mean replica_divergence?" in done.stderr
    assert "log_segments" in done.stderr
    done = run("log_segments", "--paths", "x")
    assert done.returncode == 2
    assert "--path" in done.stderr


def test_help_lists_the_checks_and_the_options_of_each() -> None:
    """Status 0."""
    done = run("--help")
    assert (done.returncode, "log_segments" in done.stdout) == (0, True)
    done = run("log_segments", "--help")
    assert (done.returncode, "--path" in done.stdout, "--from" in done.stdout) == (0, True, False)


def test_any_setting_of_sparks_wins_over_ours_and_a_remote_master_is_not_bound_to_loopback() -> None:
    """What --conf says is what Spark gets."""
    local = settings("local[*]", {"spark.sql.session.timeZone": "Europe/Berlin", "spark.x": "y"})
    assert local["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert (local["spark.x"], local["spark.driver.host"]) == ("y", "127.0.0.1")
    assert "spark.driver.host" not in settings("spark://master:7077", {})


def test_topics_and_groups_are_shell_patterns() -> None:
    """None given means all."""
    options = Options(topics=("orders-*", "x"), groups=())
    assert [options.wants_topic(one) for one in ("orders-1", "x", "xy")] == [True, True, False]
    assert options.wants_group("any")


@pytest.fixture
def running(broker: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A check whose JVM is up."""
    command = [*COMMAND, "log_segments", "--path", f"2005={broker}", *CORE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: jvms(process.pid), "the check's JVM to start", every=0.02)
    yield process
    process.kill()
    process.communicate()


def jvms(pid: int) -> list[psutil.Process]:
    """The Java processes below a process."""
    return [one for one in psutil.Process(pid).children(recursive=True) if one.name() == "java"]


def test_sigterm_ends_the_check_and_its_jvm(running: "subprocess.Popen[bytes]") -> None:
    """Nothing is left of it."""
    family = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == -signal.SIGTERM
    wait_until(lambda: not [one for one in family if alive(one)], "the JVM and its workers to end", 30)


def test_a_jvm_that_is_killed_makes_the_check_fail_at_once(running: "subprocess.Popen[bytes]") -> None:
    """Status 3 and a last line that says so."""
    for one in jvms(running.pid):
        one.kill()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 3
    assert told.decode().splitlines()[-1].startswith("The check log_segments failed unexpectedly: ")


def alive(process: psutil.Process) -> bool:
    """Whether it runs, or is at least no zombie."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
