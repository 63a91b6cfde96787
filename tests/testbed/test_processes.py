"""Ports of the testbed are free, and stay those of one process."""

import random
import subprocess
import sys

from testbed.processes import free_port

SEED = 7


def test_a_port_is_returned_once_while_its_process_runs() -> None:
    """Servers of two test workers must not have the same port, also while one of them is down."""
    code = f"import random, testbed.processes as p; random.seed({SEED}); print(p.free_port())"
    state = random.getstate()
    try:
        random.seed(SEED)
        mine = free_port()
        of_another = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        random.seed(SEED)
        again = free_port()
    finally:
        random.setstate(state)
    assert mine not in {of_another, again}
