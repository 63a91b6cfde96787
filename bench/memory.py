"""What the facts need per key: groups that make progress in all partitions, and commit every 5 s in each.

Run as `python -m bench.memory [--keys N] [--minutes N] [--every SECONDS]`, with the shipped rules and without a broker.
A key is a group and a partition. After some minutes histories no longer grow.
"""

import argparse
import sys
import time

import psutil

from agent.model.observations.kafka import Commit
from bench.watch import BATCH, STARTED, new_engine

_PARTITIONS = 100


def main() -> int:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--every", type=int, default=5, help="seconds between two commits of a key")
    arguments = parser.parse_args()
    every, sweeps = 1_000 * arguments.every, 60 // arguments.every
    engine, process = new_engine(), psutil.Process()
    before = process.memory_info().rss
    print("| minutes | bytes a key | CPU, us a commit |\n|---|---|---|")
    for minute in range(arguments.minutes):
        begin = time.process_time()
        for number in range(sweeps * minute, sweeps * (minute + 1)):
            for start in range(0, arguments.keys, BATCH):
                at = STARTED + number * every + start * every // arguments.keys
                engine.take(_commits(range(start, min(start + BATCH, arguments.keys)), at, 100_000 + 500 * number))
        used = (time.process_time() - begin) / sweeps / arguments.keys * 1e6
        print(
            f"| {minute + 1} | {(process.memory_info().rss - before) / arguments.keys:,.0f} | {used:.1f} |", flush=True
        )
    return 0


def _commits(keys: range, at: int, offset: int) -> list[Commit]:
    return [
        Commit(
            at=at,
            seen_at=at + 3,
            cluster="main",
            group=f"group-{key // _PARTITIONS}",
            topic="orders",
            partition=key % _PARTITIONS,
            offset=offset,
        )
        for key in keys
    ]


if __name__ == "__main__":
    sys.exit(main())
