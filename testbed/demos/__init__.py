"""The scenarios of `backflow demo`, one file each.

A scenario breaks a real cluster, shows what Backflow reports and checks it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from testbed.demos import divergence, flink_reset, reset, resurrection, streams

SCENARIOS: Mapping[str, Callable[[Path, int | None], int]] = {
    "reset": reset.run,
    "log-divergence": divergence.run,
    "flink-reset": flink_reset.run,
    "job-resurrected": resurrection.run,
    "streams-state": streams.run,
}
"""By name: called with the directory that keeps the run and a seed, they return the exit status."""
