"""`python -m spark_checks`: output, exit status, and wrong use without starting Spark."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.model.findings import finding_from_json
from spark_checks.__main__ import main
from spark_checks.command import load_check, parse
from spark_checks.options import Options, WrongUseError, common_options
from spark_checks.session import settings
from testbed.waiting import wait_until
from tests.spark_checks import disks

COMMAND = [sys.executable, "-m", "spark_checks"]
CORE = ["--master", "local[1]"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command and capture its output."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=200)


def test_findings_are_json_lines_and_summary_is_a_sentence(broker: Path, tmp_path: Path) -> None:
    done = run("log_segments", "--path", f"2005={broker}", "--cluster", "eu", "--report", str(tmp_path / "r"), *CORE)
    assert done.returncode == 1, done.stderr
    (found,) = map(finding_from_json, done.stdout.splitlines())
    assert (found.rule, found.kind, found.subject["cluster"]) == ("log_segments", "log_segments", "eu")
    assert (tmp_path / "r" / "summary.txt").read_text().endswith("on broker 2005: 1 fault in 1 file.\n")
    assert "progress: starting Spark\n" in done.stderr


def test_no_findings_is_status_0(broker: Path) -> None:
    done = run("log_segments", "--path", f"2005={broker}", "--topic", "none-such", *CORE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_failure_ends_the_log_with_a_sentence_and_status_3(broker: Path) -> None:
    done = run("log_segments", "--path", f"2005={broker}", "--conf", "spark.driver.memory=none", *CORE)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1].startswith("The check log_segments failed unexpectedly: ")


def test_unreadable_file_is_named_and_others_are_checked(broker: Path) -> None:
    disks.write(broker, "unread", 0, {0: b"".join(disks.log(2, "none", 30))})
    index = broker / "unread-0" / f"{0:020d}.index"
    index.symlink_to("/proc/self/mem")  # reading its first byte is an input/output error, whoever reads
    done = run("log_segments", "--path", f"2005={broker}", *CORE)
    assert done.returncode == 3
    assert [finding_from_json(line).subject["topic"] for line in done.stdout.splitlines()] == ["t"]
    assert done.stderr.splitlines()[-1] == (
        f"The check log_segments failed: cannot read 1 file; all others were checked: {index}: Input/output error"
    )
    assert "Traceback" not in done.stderr
    divergence = run("replica_divergence", "--path", f"2005={broker}", "--path", f"2011={_replica(broker)}", *CORE)
    assert divergence.returncode == 3
    last = divergence.stderr.splitlines()[-1]
    assert last.startswith(f"The check replica_divergence failed: {index}: cannot be read: ")


def _replica(broker: Path) -> Path:
    """Write another broker's intact log directory, and high watermarks on both."""
    other = broker.parent / "other"
    disks.write(other, "unread", 0, {0: b"".join(disks.log(2, "none", 30))}, high_watermark=30)
    (broker / "replication-offset-checkpoint").write_text("0\n1\nunread 0 30\n")
    return other


def test_all_mistakes_are_listed_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(
        *("log_segments", "--path", "2005", "--path", f"1={tmp_path / 'missing'}", "--path", f"2={tmp_path}"),
        *("--from", "yesterday", "--to", "2026-01-01T00:00:00", "--conf", "memory=1g", "--conf", "spark.x"),
        *("--report", str(tmp_path / "file"), "--group", "g"),
    )
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    for number, start in enumerate(
        (
            "--from: ",
            "--to: ",
            "--conf memory=1g: ",
            "--conf spark.x: ",
            "--report ",
            "--group: a broker's log has no consumer groups",
            "--path 2005: ",
            "--path 1=",
            "--path 2=",
        )
    ):
        assert lines[number].startswith(start), lines
    assert len(lines) == 9
    assert "no such directory" in lines[7]
    assert "no partitions; give" in lines[8]


@pytest.mark.parametrize("name", ["log_segments", "replica_divergence"])
def test_unsupported_option_is_refused_and_not_in_help(name: str) -> None:
    chosen = load_check(name)
    moment, groups = "2026-11-20T00:00:00Z", ["--group", "a", "--group", "b"]
    with pytest.raises(WrongUseError) as wrong:
        parse(name, chosen, ["--from", moment, "--to", moment, *groups, "--path", "x"])
    begins = [line.partition(":")[0] for line in wrong.value.mistakes]
    assert begins == ["--group", "--from", "--to", "--path x"]
    shown = [option.opts[0] for option in common_options(chosen) if not option.hidden]
    assert shown == ["--cluster", "--topic", "--master", "--remote", "--conf", "--report"]
    assert not any(option.hidden for option in common_options(load_check("offset_history")))


def test_spark_connect_server_excludes_a_master_and_its_settings(broker: Path) -> None:
    check, path = load_check("log_segments"), ["--path", f"2005={broker}"]
    with pytest.raises(WrongUseError) as wrong:
        parse("log_segments", check, [*path, "--remote", "spark-1", *CORE, "--conf", "spark.driver.memory=1g"])
    assert [line.partition(":")[0] for line in wrong.value.mistakes] == [
        "--remote spark-1",
        "--remote and --master exclude each other",
        "--conf spark.driver.memory",
    ]
    given = ["--remote", "sc://spark-1:15002", "--conf", "spark.sql.x=1"]
    assert parse("log_segments", check, [*path, *given]).remote == "sc://spark-1:15002"
    assert (parse("log_segments", check, path).remote, parse("log_segments", check, path).master) == (None, "local[*]")


def test_spark_options_of_a_submitted_check_belong_to_spark_submit(
    broker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ("log_segments", "--path", f"2005={broker}")
    place = ("--master", "local[1]", "--remote", "sc://host:1", "--conf", "spark.x=1")
    assert main([*paths, *place], submitted=True) == 2
    lines = capsys.readouterr().err.splitlines()
    for option, line in zip(place[::2], lines, strict=False):
        assert line == f"{option}: this belongs to spark-submit; write it before the name of the application's file."
    name, *rest = paths
    assert parse(name, load_check(name), rest, submitted=True).submitted


def test_unknown_check_or_option_lists_valid_ones() -> None:
    done = run("replica_divergance")
    assert done.returncode == 2
    assert "Did you mean replica_divergence?" in done.stderr
    assert "log_segments" in done.stderr
    done = run("log_segments", "--paths", "x")
    assert done.returncode == 2
    assert "--path" in done.stderr


def test_help_lists_checks_and_their_options() -> None:
    done = run("--help")
    assert (done.returncode, "log_segments" in done.stdout) == (0, True)
    done = run("log_segments", "--help")
    assert (done.returncode, "--path" in done.stdout, "--from" in done.stdout) == (0, True, False)


def test_given_setting_overrides_and_loopback_is_local_only() -> None:
    local = settings("local[*]", {"spark.sql.session.timeZone": "Europe/Berlin", "spark.x": "y"})
    assert local["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert (local["spark.x"], local["spark.driver.host"]) == ("y", "127.0.0.1")
    assert "spark.driver.host" not in settings("spark://master:7077", {})


def test_topics_and_groups_are_shell_patterns() -> None:
    options = Options(topics=("orders-*", "x"), groups=())
    assert [options.wants_topic(topic) for topic in ("orders-1", "x", "xy")] == [True, True, False]
    assert options.wants_group("any")


@pytest.fixture
def running(broker: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a check until its JVM is up."""
    command = [*COMMAND, "log_segments", "--path", f"2005={broker}", *CORE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: jvms(process.pid), "the check's JVM to start", every=0.02)
    yield process
    process.kill()
    process.communicate()


def jvms(pid: int) -> list[psutil.Process]:
    """Return the Java processes below a process."""
    return [process for process in psutil.Process(pid).children(recursive=True) if is_java(process)]


def is_java(process: psutil.Process) -> bool:
    """Return whether it runs Java; the scripts that start Java have children that end at once."""
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:
        return False


def test_sigterm_ends_the_check_and_its_jvm(running: "subprocess.Popen[bytes]") -> None:
    family = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == -signal.SIGTERM
    wait_until(lambda: not [process for process in family if alive(process)], "the JVM and its workers to end", 30)


def test_killed_jvm_makes_the_check_fail_at_once(running: "subprocess.Popen[bytes]") -> None:
    for process in jvms(running.pid):
        process.kill()
    _, log = running.communicate(timeout=60)
    assert running.returncode == 3
    assert log.decode().splitlines()[-1].startswith("The check log_segments failed unexpectedly: ")


def alive(process: psutil.Process) -> bool:
    """Return whether it runs and is not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
