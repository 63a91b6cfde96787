"""`backflow check` and `backflow digest`: options, output and exit statuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from agent.checks.process import session_processes
from agent.cli.main import main
from agent.rules import CHECKS
from spark_checks.command import check_names
from testbed.waiting import wait_until
from tests.checks.conftest import Scripted, written

TOML = """
[agent]
state_directory = "state"
[clusters.main]
bootstrap_servers = "k:9092"
log_directories = { 1 = "/a", 2 = "/b" }
[spark]
master = "local[2]"
"""
TWO = TOML + '[clusters.other]\nbootstrap_servers = "k:9092"\nlog_directories = { 3 = "/c" }\n'
STORES = (
    TOML
    + """
[rules.state]
kind = "state_not_restored"
stores = [
  { application = "shop", store = "counts" },
  { application = "shop", store = "seen", value = "json:a.b" },
]
"""
)
ARCHIVED = TOML.replace("[clusters", 'name = "host-1"\n[journal]\narchive = "file:///a"\n[clusters')
SPARK = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], prog_name="backflow")


def test_help_lists_all_checks() -> None:
    assert sorted(CHECKS) == check_names()
    result = run()
    assert result.exit_code == 0
    assert result.output == run("--help").output
    assert all(f"\n  {name} " in result.output for name in CHECKS)


def test_unknown_check_exits_with_2() -> None:
    result = run("replica_divergense")
    assert (result.exit_code, result.stderr) == (
        2,
        "unknown check `replica_divergense`; did you mean `replica_divergence`?\n",
    )


@pytest.mark.parametrize(
    ("toml", "given", "passed"),
    [
        (TOML, ["log_segments"], [*SPARK, "--cluster", "main", "--path", "1=/a", "--path", "2=/b"]),
        (TOML, ["log_segments", "--topic", "t"],
         [*SPARK, "--cluster", "main", "--path", "1=/a", "--path", "2=/b", "--topic", "t"]),
        (TOML, ["log_segments", "--path", "9=/x", "--master", "yarn"], [*SPARK, "--path", "9=/x", "--master", "yarn"]),
        (TOML, ["log_segments", "--path", "9=/x", "--remote", "sc://s:1"], ["--path", "9=/x", "--remote", "sc://s:1"]),
        ('[spark]\nremote = "sc://s:15002"\nconf = { "spark.sql.x" = 1 }', ["log_segments"],
         ["--remote", "sc://s:15002", "--conf", "spark.sql.x=1"]),
        (TOML, ["log_segments", "--path=9=/x"], [*SPARK, "--path=9=/x"]),
        (TOML, ["offset_history"], [*SPARK, "--cluster", "main", "--journal", "state/journal"]),
        (TOML, ["offset_history", "--journal", "/j"], [*SPARK, "--journal", "/j"]),
        (TWO, ["log_segments", "--cluster", "other"], [*SPARK, "--path", "3=/c", "--cluster", "other"]),
        ("", ["log_segments"], ["--master", "local[*]", *SPARK[2:]]),
        (STORES, ["changelog_restore"],
         [*SPARK, "--cluster", "main", "--bootstrap-servers", "k:9092", "--journal", "state/journal",
          "--store", "shop/counts=long", "--store", "shop/seen=json:a.b"]),
        (STORES, ["changelog_restore", "--store", "x/y=int"],
         [*SPARK, "--cluster", "main", "--bootstrap-servers", "k:9092", "--journal", "state/journal",
          "--store", "x/y=int"]),
        (STORES, ["changelog_restore", "--bootstrap-servers", "b:1"], [*SPARK, "--bootstrap-servers", "b:1"]),
        (ARCHIVED, ["offset_history"],
         [*SPARK, "--cluster", "main", "--journal", "state/journal", "--archive", "file:///a", "--agent", "host-1"]),
        (ARCHIVED, ["review"],
         [*SPARK, "--cluster", "main", "--journal", "state/journal", "--archive", "file:///a", "--agent", "host-1"]),
    ],
)  # fmt: skip
def test_options_from_the_configuration_come_first(
    scripted: Scripted, toml: str, given: list[str], passed: list[str]
) -> None:
    scripted("Path('arguments').write_text(json.dumps(sys.argv[1:]))")
    Path("rules.toml").write_text(toml)
    Path("state/journal").mkdir(parents=True)
    assert run(*given).exit_code == 0
    arguments = msgspec.json.decode(Path("arguments").read_bytes())
    assert [argument for argument in arguments if not argument.startswith("spark.local.dir=")] == [given[0], *passed]


def test_one_of_several_clusters_must_be_selected(scripted: Scripted) -> None:
    scripted("Path('ran').touch()")
    Path("rules.toml").write_text(TWO)
    result = run("offset_history")
    assert (result.exit_code, result.stderr) == (
        2,
        "several clusters are configured; select one with --cluster: main, other\n",
    )
    assert not Path("ran").exists()


def test_findings_are_printed_as_text(scripted: Scripted) -> None:
    scripted("""
        log("progress: 1/2 segments")
        say(finding(3))
        say(json.dumps({"rule": "log_segments", "kind": "log_segments", "severity": "warning",
            "at": "2026-11-20T23:25:13.900Z", "subject": {"cluster": "main", "broker": 5, "topic": "t", "partition": 0,
            "file": "0.log"}, "labels": ["torn_tail"], "position": 81920, "detail": "the log is cut short"}))
        log("progress: done: 2 files read, 2 findings.")
        sys.exit(1)
    """)
    result = run("log_segments")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "CRITICAL  t[3] on brokers 1, 2: replicas differ",
        "          2026-11-20T23:25:13.900Z",
        "WARNING   t[0] on broker 5: the log is cut short",
        "          2026-11-20T23:25:13.900Z · 0.log at byte 81,920 · torn_tail",
        "2 files read, 2 findings.",
    ]
    assert result.stderr.splitlines() == ["log_segments: 1/2 segments"]


def test_file_in_the_detail_is_not_repeated(scripted: Scripted) -> None:
    scripted("""
        say(json.dumps({"rule": "log_segments", "kind": "log_segments", "severity": "warning",
            "at": "2026-11-20T23:25:13.900Z", "subject": {"cluster": "main", "broker": 5, "topic": "t", "partition": 0,
            "file": "0.log"}, "labels": ["torn_tail"], "position": 7, "detail": "Broker 5, 0.log, byte 7: cut short"}))
        sys.exit(1)
    """)
    assert run("log_segments").stdout.count("0.log") == 1


def test_help_of_a_check_lists_all_its_options() -> None:
    for name in CHECKS:
        result = run(name, "--help")
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: backflow check {name} [OPTIONS]\n")
        assert "python -m" not in result.output
        options = {line.split()[0].rstrip(",") for line in result.output.splitlines() if line.startswith("  -")}
        assert "Default: main" not in " ".join(result.output.split())  # the command uses the configured cluster
        assert {"--cluster", "--master", "--conf", "--report", "--help", "-c", "--json"} <= options
        assert "[required]" not in result.output  # the configuration knows it
        assert options & {"--journal", "--path"}


def test_json_output_is_the_lines_of_the_check(scripted: Scripted) -> None:
    scripted("say(finding(3)); log('progress: done: 1 finding.'); sys.exit(1)")
    result = run("log_segments", "--json")
    assert result.exit_code == 1
    assert result.stderr == "1 finding.\n"
    (line,) = result.stdout.splitlines()
    assert msgspec.json.decode(line)["subject"]["partition"] == 3


def test_progress_is_one_changing_line_on_a_terminal(scripted: Scripted, tmp_path: Path) -> None:
    scripted(
        "log('progress: 1/2 segments'); time.sleep(1); say(finding(3)); log('progress: done: 1 finding'); sys.exit(1)"
    )
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", "from agent.cli.main import main; main()", "check", "log_segments", "--json"]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{Path(__file__).parents[2]}", "TERM": "xterm"}
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        ended = subprocess.run(command, env=environment, stdout=stdout, stderr=terminal, check=False, timeout=60)
    assert ended.returncode == 1
    assert "log_segments: 1/2 segments" in os.read(ours, 1 << 16).decode()
    assert msgspec.json.decode(out.read_bytes())["subject"]["partition"] == 3
    os.close(ours)
    os.close(terminal)


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_summary_is_printed_once_on_a_terminal(scripted: Scripted, kind: str) -> None:
    scripted("log('progress: 1/2 segments'); log('progress: done: 2 segments, nothing wrong.')")
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", "from agent.cli.main import main; main()", "check", "log_segments"]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{Path(__file__).parents[2]}", "TERM": kind}
    ended = subprocess.run(command, env=environment, stdout=terminal, stderr=terminal, check=False, timeout=60)
    assert ended.returncode == 0
    assert os.read(ours, 1 << 16).decode().count("nothing wrong.") == 1
    os.close(ours)
    os.close(terminal)


@pytest.mark.parametrize(
    ("script", "status", "stderr"),
    [
        ("", 0, ""),
        ("log('--to: no time'); log('--path is missing'); sys.exit(2)", 2, "--to: no time\n--path is missing\n"),
        (
            "log('26/11/21 ERROR Executor:'); log('The check log_segments failed: /logs: I/O error'); sys.exit(3)",
            3,
            "The check log_segments failed: /logs: I/O error\n",
        ),
        ("log('a'); log('b'); sys.exit(3)", 3, "a\nlog_segments failed: it ended with status 3: b\n"),
        ("sys.exit(3)", 3, "log_segments failed: it ended with status 3\n"),
        ("log('a'); log('b'); os.kill(os.getpid(), 9)", 3, "a\nb\nlog_segments failed: it was killed (SIGKILL)\n"),
        ("sys.exit(1)", 3, "log_segments failed: it ended with status 1\n"),
        ("os.kill(os.getpid(), 9)", 3, "log_segments failed: it was killed (SIGKILL)\n"),
    ],
)
def test_exit_status_is_that_of_the_check(scripted: Scripted, script: str, status: int, stderr: str) -> None:
    scripted(script)
    result = run("log_segments")
    assert (result.exit_code, result.stderr) == (status, stderr)


def test_ctrl_c_ends_all_processes_of_a_check(scripted: Scripted) -> None:
    scripted("subprocess.Popen(['sleep', '600']); Path('pid').write_text(str(os.getpid())); time.sleep(600)")
    path = f"{Path.cwd()}:{Path(__file__).parents[2]}"
    # Started in the background, a suite ignores Ctrl-C, and so does what it starts.
    attentive = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{attentive}; from agent.cli.main import main; main()", "check", "log_segments"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    ) as backflow:
        pid = int(wait_until(lambda: written(Path("pid")), "the check to run"))
        assert len(session_processes(pid)) == 2
        backflow.send_signal(signal.SIGINT)
        _, stderr = backflow.communicate(timeout=10)
    assert backflow.returncode == 3
    assert stderr == "log_segments was interrupted\n"
    assert not session_processes(pid)
    assert not psutil.pid_exists(pid)


def test_digest_is_written_for_a_log_directory(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "t-0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").touch()
    made = tmp_path / "1.parquet"
    runner = CliRunner()
    arguments = ["digest", "--broker", "1", "--out", str(made), "--bandwidth", "50MB", "--path"]
    result = runner.invoke(main, [*arguments, str(directory.parent)])
    assert (result.exit_code, result.output.split(" partition,")[0]) == (0, f"{made}: 1")
    assert pq.read_table(made).num_rows == 0
    missing = runner.invoke(main, [*arguments, str(tmp_path / "nowhere")])
    assert missing.exit_code == 3
    assert missing.stderr == f"{tmp_path}/nowhere: no such directory; give one of the broker's log.dirs\n"
    assert "once per log directory" in " ".join(runner.invoke(main, ["digest", "--help"]).output.split())
    wrong = runner.invoke(main, [*arguments, "/x", "--bandwidth", "fast"])
    assert wrong.exit_code == 2
    assert "expected a size" in wrong.stderr
