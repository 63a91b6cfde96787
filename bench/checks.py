"""From an incident's request for `offset_history` to its result: with Spark's start, and in a session that is kept.

Run as `python -m bench.checks [COMMITS] [--times N] [--settle S]`. The daemon's queue of checks runs them on a journal
of its own: one million commits by default, which Spark reads whole, as a request reads 14 days before its window.
Printed are seconds from the moment a request is due, and CPU time from then on, which other load changes little.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import psutil

from agent.checks.process import session_memory
from agent.checks.runner import Checks
from agent.config.loading import loads
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.observations.checks import CheckRun
from bench.family import needs
from bench.history import STARTED, write

_WORKERS_S = 75  # Spark ends its Python workers after a minute
_IDLE_S = 60
_TOML = """
agent.state_directory = "{directory}"
[clusters.main]
bootstrap_servers = "127.0.0.1:9092"
[checks.offset_history]
settle = "{settle}s"
"""


class Cost(NamedTuple):
    """What a request needed. passed: until its result, cpu: of all processes of the check; s."""

    passed: float
    cpu: float


class Queue:
    """The daemon's checks, asked one request at a time."""

    def __init__(self, directory: Path, settle: float) -> None:
        toml = _TOML.format(directory=directory, settle=settle)
        self._settle = settle
        self._results: SimpleQueue[CheckResult] = SimpleQueue()
        self.checks = Checks(loads(toml, "rules.toml", need_clusters=True), self._results.put)

    def ask(self, number: int) -> Cost:
        """Make a request and return its cost from when it is due. Raises RuntimeError if the check fails."""
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
        self.checks.request(request)
        time.sleep(self._settle)
        began, used = time.monotonic(), _cpu()
        result = self._results.get()
        cost = Cost(time.monotonic() - began, _cpu() - used)
        run = result.observations[-1]
        if not isinstance(run, CheckRun) or run.outcome == "failed":
            raise RuntimeError("\n".join(result.lines))
        return cost


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
    first, kept, ahead = list[Cost](), list[Cost](), list[Cost]()
    for number in range(times):
        with opened(directory) as queue:
            first.append(queue.ask(number))
            kept += [queue.ask(number + again) for again in range(1, 4)]
        with opened(directory, settle) as queue:
            ahead.append(queue.ask(number))
            held, used = _idle() if number == times - 1 else (0, 0.0)
    print(f"{commits:,} commits; median and longest of {times} sessions, CPU time (median), ratio of times and of CPU")
    for what, costs in (
        ("Spark starts with the request", first),
        (f"Spark starts {settle:g} s ahead", ahead),
        ("Spark was kept", kept),
    ):
        passed, cpu = _medians(costs)
        ratios = (value / whole for value, whole in zip((passed, cpu), _medians(first), strict=True))
        longest = max(cost.passed for cost in costs)
        print(f"{what:<32} {passed:6.1f} s {longest:6.1f} s {cpu:6.1f} s ", *(f" {ratio:.2f}" for ratio in ratios))
    print(f"an idle session holds {held >> 20:,} MiB and uses {used:.1%} of a core")


def _medians(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def _cpu() -> float:
    """Return the CPU time that the process of the checks and all below it have used; 0 if there is none."""
    return sum(need.cpu for child in psutil.Process().children() for need in needs(child.pid).values())


def _idle() -> tuple[int, float]:
    """Return the memory of an idle session, bytes, and how much of a core it uses."""
    (server,) = psutil.Process().children()
    time.sleep(_WORKERS_S)
    before = needs(server.pid)
    time.sleep(_IDLE_S)
    after = needs(server.pid)
    return session_memory(server.pid, limit=0), sum(after[pid].cpu - before[pid].cpu for pid in after) / _IDLE_S


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--settle", type=float, default=30)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as made:
        main(chosen.commits, chosen.times, chosen.settle, Path(made))
