"""What a commit costs the core when commits are read late, and after a leader change: CPU time and memory.

Run as `python -m bench.disturbed [--groups N]`, with the shipped rules and without a broker. The groups commit every
five seconds in 100 partitions of a log that grows. In each stream something happens after two minutes; what a commit
costs is measured before and after that.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import psutil

from agent.engine.engine import Engine
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, LogOffsets
from bench.watch import STARTED, new_engine, states

_PARTITIONS, _EVERY_S, _RATE = 100, 5, 20
_SECONDS = 300
_HAPPENS = 120
_WARM = 60


def commits(second: int, groups: int, seen_at: int) -> list[Commit]:
    """Return what a fifth of the groups commits in a second: all that was written until then."""
    return [
        Commit(
            at=STARTED + second * 1_000 + group * 1_000 // groups,
            seen_at=seen_at,
            cluster="main",
            group=f"group-{group}",
            topic="orders",
            partition=partition,
            offset=100_000 + _RATE * second,
        )
        for group in range(second % _EVERY_S, groups, _EVERY_S)
        for partition in range(_PARTITIONS)
    ]


def stream(groups: int, late: int, silence: int | None) -> Iterator[tuple[list[Observation], int]]:
    """Yield what is observed each second, and how many commits that is.

    late: by how many seconds commits are read late from then on. silence: for how long no group commits, s, before the
    leaders change; None: they do not.
    """
    yield [*states(STARTED, 1)], 0
    for second in range(_SECONDS):
        at = STARTED + second * 1_000
        read: list[Observation] = [
            LogOffsets(
                at=at, cluster="main", topic="orders", partition=number, log_start=0, log_end=100_000 + _RATE * second
            )
            for number in range(_PARTITIONS)
        ]  # fmt: skip
        if silence is not None and second == _HAPPENS:
            read += states(at, 2)
        made: list[Commit] = []
        if second < _HAPPENS - (silence or 0) or second >= _HAPPENS + late:
            made = commits(second - (late if second >= _HAPPENS else 0), groups, at + 999)
        yield [*read, *made, Tick(at=at + 999)], len(made)


def measure(engine: Engine, batches: Iterator[tuple[list[Observation], int]]) -> tuple[float, float, float]:
    """Return the CPU time of a commit before and after something happens, us, and the longest second after it, s."""
    cost = {False: [0.0, 0], True: [0.0, 0]}
    longest = 0.0
    for second, (batch, count) in enumerate(batches, -1):
        begin = time.process_time()
        engine.take(batch)
        took = time.process_time() - begin
        has_happened = second >= _HAPPENS
        if second >= _WARM:
            cost[has_happened][0] += took
            cost[has_happened][1] += count
        if has_happened:
            longest = max(longest, took)
    before, after = (seconds / count * 1e6 for seconds, count in cost.values())
    return before, after, longest


def main() -> int:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    arguments = parser.parse_args()
    print("| from then on | before, us a commit | after | longest second, s | MiB more |\n|---|---|---|---|---|")
    streams = {
        "nothing changes": (0, None),
        "commits are read 3 s late": (3, None),
        "commits are read 20 s late": (20, None),
        "other leaders": (0, 0),
        "other leaders, after 17 s without commits": (0, 17),
    }
    for name, (late, silence) in streams.items():
        engine, process = new_engine(), psutil.Process()
        begin = process.memory_info().rss
        before, after, longest = measure(engine, stream(arguments.groups, late, silence))
        more = (process.memory_info().rss - begin) / (1 << 20)
        print(f"| {name} | {before:.1f} | {after:.1f} | {longest:.1f} | {more:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
