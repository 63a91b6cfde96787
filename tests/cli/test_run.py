"""What the daemon's process loads."""

import subprocess
import sys

LOADED = """
import sys
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
