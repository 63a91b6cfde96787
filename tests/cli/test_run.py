"""What the daemon's process loads."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from agent.config.shipped import shipped

LOADED = """
import sys
from pathlib import Path
{before}
import pyarrow
pyarrow.array([1])
print("pandas" in sys.modules)
"""


def is_pandas_loaded(before: str) -> bool:
    """Return whether pyarrow loads pandas in a process that has run these lines."""
    command = [sys.executable, "-c", LOADED.format(before=before)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "True\n"


def test_pyarrow_does_not_load_pandas_in_the_daemon() -> None:
    assert is_pandas_loaded("")
    assert not is_pandas_loaded("from agent.cli.run import leave_pandas_out\nleave_pandas_out()")


PROGRAM = "from agent.cli.main import main; main()"

STEPPED = """
import sys
from pathlib import Path
from agent.cli.main import main
from agent.daemon.clock_watch import ClockWatch
ClockWatch.step = lambda _: -5_000 if Path({marker!r}).exists() else 0
sys.argv = ["backflow", *sys.argv[1:]]
main()
"""
"""An agent whose clock is set back again and again while a file exists."""


@contextmanager
def running(
    tmp_path: Path, program: str = "from agent.cli.main import main; main()"
) -> Iterator[subprocess.Popen[str]]:
    """Run an agent of a cluster that does not answer; it is ended by SIGTERM."""
    config = tmp_path / "rules.toml"
    agent = f'[agent]\nstate_directory = "{tmp_path}/state"\nlog_format = "json"\n[spark]\nenabled = false\n'
    config.write_text(f"{agent}[clusters.main]\nbootstrap_servers = '127.0.0.1:1'\n", encoding="utf-8")
    command = [sys.executable, "-c", program, "run", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as daemon:
        try:
            yield daemon
        finally:
            daemon.terminate()


def lines_until(event: str, daemon: subprocess.Popen[str]) -> list[str]:
    """Return the lines of the log before the event's."""
    return list(takewhile(lambda line: event not in line, daemon.stdout or ()))


def test_missing_rules_are_logged_at_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        lines = lines_until("daemon_ready", daemon)
    assert [json.loads(line)["reason"] for line in lines if "rules_missing" in line] == [
        f"no rules, so nothing is detected; add [rules.NAME] as in {shipped()}"
    ]


def test_a_reload_during_a_reload_follows_it(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        lines_until("daemon_ready", daemon)
        daemon.send_signal(signal.SIGHUP)
        lines_until("rules_missing", daemon)  # of the new image
        daemon.send_signal(signal.SIGHUP)
        started_again = lines_until("configuration_reloading", daemon)
        assert any("daemon_ready" in line for line in started_again)
        assert daemon.poll() is None


def test_an_agent_that_is_stopped_while_it_reloads_ends(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        lines_until("daemon_ready", daemon)
        daemon.send_signal(signal.SIGHUP)
        lines_until("daemon_stopping", daemon)
        daemon.terminate()
        assert daemon.wait(30) == 0


def test_a_clock_step_does_not_end_an_agent_whose_file_has_a_mistake(tmp_path: Path) -> None:
    marker, config = tmp_path / "stepped", tmp_path / "rules.toml"
    with running(tmp_path, STEPPED.format(marker=str(marker))) as daemon:
        lines_until("daemon_ready", daemon)
        valid = config.read_text(encoding="utf-8")
        config.write_text(f"{valid}[nonsense]\n", encoding="utf-8")
        marker.touch()
        lines_until("configuration_refused", daemon)
        config.write_text(valid, encoding="utf-8")
        assert any("restarting_after_clock_step" in line for line in lines_until("daemon_ready", daemon))
