"""What it costs that many groups are far behind: CPU of the core a commit, its longest pause, and memory.

Run as `python -m bench.lag [--groups N] [--partitions N] [--minutes N]`, with the shipped rules and without a broker.
All groups begin 17 minutes behind the log end and commit every 5 s in each partition. First they read half as fast
again as is written, as after an outage; then, in another core, four fifths of it, so that each falls further behind.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil

from agent.engine.engine import Engine
from agent.model.batches import UNKNOWN, CommitBatch, CommitKey, LogOffsetsBatch, PartitionKey
from agent.model.observations.base import Tick
from bench.watch import EVERY_MS, STARTED, new_engine

_WRITTEN = 1_000
"""Records a partition gets between two commits."""

_BEHIND = 17 * 12
"""How many commits' worth of records the groups are behind."""

_WARM_UP = 12
"""Sweeps that are not measured: the first commits of a group are looked at one by one."""

_MIB = 1 << 20


def main() -> int:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=300)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--minutes", type=int, default=8)
    arguments = parser.parse_args()
    print("| of what is written is read | CPU, us a commit | longest pause, s | memory, MiB | findings |")
    print("|---|---|---|---|---|")
    for share in (1.5, 0.8):
        _measure(share, arguments.groups, arguments.partitions, 12 * arguments.minutes)
    return 0


def _measure(share: float, groups: int, partitions: int, sweeps: int) -> None:
    """Print what the groups cost that read this share of what is written."""
    engine, used, longest = new_engine(), 0.0, 0.0
    keys = [
        CommitKey(f"group-{group}", "orders", partition) for group in range(groups) for partition in range(partitions)
    ]
    for sweep in range(_BEHIND + sweeps):
        for batch in _sweep(sweep, share, keys, partitions):
            begin = time.process_time()
            engine.take(batch)
            engine.take([Tick(at=batch.latest)])
            took = time.process_time() - begin
            if sweep >= _BEHIND + _WARM_UP:
                used, longest = used + took, max(longest, took)
    cost = used / (sweeps - _WARM_UP) / len(keys) * 1e6
    memory = psutil.Process().memory_info().rss / _MIB
    print(f"| {share:.0%} | {cost:.1f} | {longest:.2f} | {memory:,.0f} | {_findings(engine):,} |", flush=True)


def _sweep(sweep: int, share: float, keys: list[CommitKey], partitions: int) -> Iterator[CommitBatch | LogOffsetsBatch]:
    """Yield the log offsets and then, in five parts, the commits of a sweep."""
    at = np.full(partitions, STARTED + sweep * EVERY_MS)
    unknown, end = np.full(partitions, UNKNOWN), np.full(partitions, _WRITTEN * sweep)
    places = [PartitionKey("orders", partition) for partition in range(partitions)]
    yield LogOffsetsBatch(
        "main", places, np.arange(partitions), at, unknown, unknown, np.zeros(partitions, np.int64), end
    )
    if sweep < _BEHIND:
        return
    offset = int(share * _WRITTEN * (sweep - _BEHIND))
    for rows in np.array_split(np.arange(len(keys)), 5):
        unknown = np.full(len(rows), UNKNOWN)
        moments = STARTED + sweep * EVERY_MS + rows * EVERY_MS // len(keys)
        yield CommitBatch("main", keys, rows, moments, unknown, unknown, np.full(len(rows), offset), unknown)


def _findings(engine: Engine) -> int:
    return sum(len(incident.findings) for incident in engine.incidents)


if __name__ == "__main__":
    sys.exit(main())
