"""`python -m spark_checks.server`: checks one after the other, in a session that suits them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.model.findings import finding_from_json
from spark_checks.kept_session import sql_settings, suits
from spark_checks.session import QUICK_START

SPARK = ["--master", "local[1]", "--conf", "spark.driver.memory=512m"]
CONNECTOR = {"spark.jars.packages": "a:b:1"}


class Ended(NamedTuple):
    """A check that has run. lines: its findings."""

    status: int
    lines: list[str]


class Server:
    """A server of checks. log: what it wrote, once it has ended."""

    log = ""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def run(self, *arguments: str) -> Ended:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([*arguments, *SPARK]) + "\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith("ended: "):
                return Ended(int(line.removeprefix("ended: ")), lines)
            lines.append(line)
        pytest.fail(f"the server has ended: {self.process.stderr and self.process.stderr.read()}")


@contextmanager
def serving(log: Path, *arguments: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "spark_checks.server", *SPARK, *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        with process:
            server = Server(process)
            yield server
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
    server.log = log.read_text(encoding="utf-8")


def test_checks_run_one_after_the_other_until_the_input_ends(broker: Path, tmp_path: Path) -> None:
    check = ("log_segments", "--path", f"2005={broker}", "--report")
    with serving(tmp_path / "log", "log_segments") as server:
        found = [server.run(*check, str(tmp_path / str(number))) for number in range(2)]
        clean = server.run(*check, str(tmp_path / "none"), "--topic", "none-such")
        wrong = server.run("log_segments", "--group", "g")
        divergent = server.run("replica_divergence", "--path", f"1={broker}", "--path", f"2={broker}")
    assert [ended.status for ended in (*found, clean, wrong)] == [1, 1, 0, 2]
    for number, ended in enumerate(found):
        (finding,) = map(finding_from_json, ended.lines)
        assert finding.subject["broker"] == 2005
        assert (tmp_path / str(number) / "summary.txt").exists()
    assert clean.lines == wrong.lines == []
    assert divergent.status == 3
    assert server.log.count("progress: starting Spark") == 1
    assert (
        "The check replica_divergence failed: the session that is kept lacks settings of replica_divergence"
        in server.log
    )
    assert server.log.count("\nended: ") == 5


def test_session_for_any_check_suits_most(broker: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        assert server.run("replica_divergence", "--path", f"1={broker}", "--path", f"2={broker}").status in (0, 1)
        assert server.run("log_segments", "--path", f"2005={broker}").status == 1


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["--master", "local[1]", "no_check"], 2, "No check named no_check."),
        (["--remote", "nowhere"], 2, "--remote nowhere: expected sc://HOST:PORT"),
        (["--master", "yarn"], 3, "Starting Spark failed"),
    ],
)
def test_server_that_cannot_serve_states_why(arguments: list[str], status: int, line: str) -> None:
    command = [sys.executable, "-m", "spark_checks.server", *arguments]
    ended = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.splitlines()[-1].startswith(line)


@pytest.mark.parametrize(
    ("conf", "needed", "suited"),
    [
        ({}, {}, True),
        (QUICK_START, QUICK_START, True),
        ({}, QUICK_START, True),
        (QUICK_START, {}, False),
        (CONNECTOR, QUICK_START, True),
        (CONNECTOR, CONNECTOR, True),
        ({}, CONNECTOR, False),
        ({"spark.jars.packages": "c:d:1,a:b:1"}, CONNECTOR, True),
    ],
)
def test_session_suits_checks(conf: dict[str, str], needed: dict[str, str], *, suited: bool) -> None:
    assert suits(conf, needed) == suited


def test_settings_of_sql_are_a_checks_own_unless_given() -> None:
    conf = {"spark.sql.shuffle.partitions": "8", "spark.sql.ansi.enabled": "true", "spark.driver.memory": "1g"}
    given = {"spark.sql.ansi.enabled": "true"}
    assert sql_settings(conf, given) == {"spark.sql.shuffle.partitions": "8"}
