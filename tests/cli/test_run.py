"""What the daemon's process loads."""

import json
import subprocess
import sys
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


def test_missing_rules_are_logged_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    agent = f'[agent]\nstate_directory = "{tmp_path}/state"\nlog_format = "json"\n[spark]\nenabled = false\n'
    config.write_text(f"{agent}[clusters.main]\nbootstrap_servers = '127.0.0.1:1'\n", encoding="utf-8")
    command = [sys.executable, "-m", "agent", "run", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as daemon:
        lines = list(takewhile(lambda line: "daemon_ready" not in line, daemon.stdout or ()))
        daemon.terminate()
    assert [json.loads(line)["reason"] for line in lines if "rules_missing" in line] == [
        f"no rules, so nothing is detected; add [rules.NAME] as in {shipped()}"
    ]
