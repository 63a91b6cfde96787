"""From an incident's request for `offset_history` to its result: with Spark's start, and in a session that is kept.

Run as `python -m bench.checks [COMMITS] [--times N] [--settle S]`. The daemon's queue of checks runs them on a journal
of its own: one million commits by default, which Spark reads whole, as a request reads 14 days before its window.
Printed are seconds from the moment a request is due, and what the idle session holds and uses.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import psutil

from agent.checks.process import session_memory
from agent.checks.runner import Checks
from agent.config.settings import loads
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.observations.checks import CheckRun
from bench.family import needs
from bench.history import STARTED, write

_IDLE_S = 90
_TOML = """
agent.state_directory = "{directory}"
[clusters.main]
bootstrap_servers = "127.0.0.1:9092"
[checks.offset_history]
settle = "{settle}s"
"""


class Queue:
    """The daemon's checks, asked one request at a time."""

    def __init__(self, directory: Path, settle: float) -> None:
        toml = _TOML.format(directory=directory, settle=settle)
        self._settle = settle
        self._results: SimpleQueue[CheckResult] = SimpleQueue()
        self.checks = Checks(loads(toml, "rules.toml", need_clusters=True), self._results.put)

    def ask(self, number: int) -> float:
        """Return the seconds from when a request is due until its result. Raises RuntimeError if the check fails."""
        group = f"group-{number}"
        request = CheckRequest(
            id=str(number),
            check="offset_history",
            cluster="main",
            finding=("rewind", group, STARTED),
            since=STARTED,
            until=STARTED + 60_000,
            groups=(group,),
        )
        asked = time.monotonic()
        self.checks.request(request)
        result = self._results.get()
        took = time.monotonic() - asked - self._settle
        run = result.observations[-1]
        if not isinstance(run, CheckRun) or run.outcome == "failed":
            raise RuntimeError("\n".join(result.lines))
        return took


@contextmanager
def opened(directory: Path, settle: float = 0) -> Iterator[Queue]:
    """Provide a queue in whose sessions no check has run."""
    queue = Queue(directory, settle)
    queue.checks.start()
    try:
        yield queue
    finally:
        queue.checks.close()


def main(commits: int, times: int, settle: float, directory: Path) -> None:
    """Measure and print."""
    write(directory / "journal", commits)
    first, warm = [], []
    for number in range(times):
        with opened(directory) as queue:
            first.append(queue.ask(number))
            warm += [queue.ask(number + again) for again in range(1, 4)]
    with opened(directory, settle) as queue:
        ahead = queue.ask(0)
        (server,) = psutil.Process().children()
        before = sum(need.cpu for need in needs(server.pid).values())
        time.sleep(_IDLE_S)
        idle = (sum(need.cpu for need in needs(server.pid).values()) - before) / _IDLE_S
        held = session_memory(server.pid) >> 20
    print(f"{commits:,} commits; seconds, medians and worst of {times} sessions")
    for what, seconds in (("Spark starts with the request", first), ("Spark was kept", warm)):
        ratio = statistics.median(seconds) / statistics.median(first)
        print(f"{what:<40} {statistics.median(seconds):6.1f} {max(seconds):6.1f}  {ratio:.2f} of a first check")
    print(f"{f'Spark started during settle ({settle:g} s)':<40} {ahead:6.1f}")
    print(f"an idle session holds {held:,} MiB and uses {idle:.1%} of a core")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--settle", type=float, default=30)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as made:
        main(chosen.commits, chosen.times, chosen.settle, Path(made))
