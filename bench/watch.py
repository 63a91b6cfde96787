"""The cost of the core: CPU time per commit through rules, correlation and incidents, and its ratio to a bare loop.

Run as `python -m bench.watch [COMMITS] [--profile]`, with the shipped rules. The bare loop keeps the last offset of
each series in a dict. There are three streams: groups that only read; the same after all leaders changed; and 200
partitions rewound after a session expired, with all consequences.
"""

import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agent.config.loading import load
from agent.engine.engine import Engine
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState

STARTED = 1_795_176_000_000
SERIES = 10_000
BATCH = 1_000
EVERY_MS = 5_000
SHIPPED = load(Path(__file__).parents[1] / "rules.toml", need_clusters=False)


def cpu(work: Callable[[], Any]) -> float:
    """Return the CPU time of the work, s."""
    before = time.process_time()
    work()
    return time.process_time() - before


def commits(count: int, advance: int) -> list[Commit]:
    """Return `count` commits of 10,000 series, 100 groups on 100 partitions, every series each 5 s."""
    return [
        Commit(
            at=STARTED + number // SERIES * EVERY_MS + number % SERIES * EVERY_MS // SERIES,
            cluster="main",
            group=f"group-{number % 100}",
            topic="orders",
            partition=number % SERIES // 100,
            offset=100_000 + number // SERIES * advance,
        )
        for number in range(count)
    ]


def states(at: int, leader: int) -> list[PartitionState]:
    """Return the states of 100 partitions with this leader."""
    return [
        PartitionState(
            at=at, cluster="main", topic="orders", partition=number, leader=leader, replicas=(1, 2, 3), isr=(1, 2, 3)
        )
        for number in range(100)
    ]  # fmt: skip


def burst() -> Iterator[list[Observation]]:
    """Yield 300 s of 200 partitions of a group: their broker goes down, all are rewound and reprocess."""
    yield [BrokerRegistration(at=STARTED, cluster="main", broker=1, session="0x1", epoch=1)]
    for second in range(300):
        at = STARTED + second * 1_000
        batch: list[Observation] = []
        if second == 100:
            batch.append(BrokerRegistration(at=at, cluster="main", broker=1, session=None, epoch=None))
        for partition in range(200):
            if second in (0, 101):
                isr = (1, 2) if second == 0 else (2,)
                batch.append(
                    PartitionState(
                        at=at,
                        cluster="main",
                        topic="orders",
                        partition=partition,
                        leader=isr[0],
                        replicas=(1, 2),
                        isr=isr,
                    )
                )
            offset = min(10_000 + 100 * second, 500 * (second - 103)) if second >= 103 else 10_000 + 100 * second
            batch.append(Commit(at=at, cluster="main", group="g", topic="orders", partition=partition, offset=offset))
            if second % 5 == 0:
                end = 20_000 + 100 * second
                batch.append(
                    LogOffsets(at=at, cluster="main", topic="orders", partition=partition, log_start=0, log_end=end)
                )
        yield batch


def through(engine: Engine, observations: Sequence[Observation]) -> None:
    """Pass all observations through the engine, in batches."""
    waiting = iter(observations)
    while batch := list(islice(waiting, BATCH)):
        engine.take(batch)


def bare(observations: Sequence[Commit]) -> int:
    """Keep the last offset of each series and count rewinds: the least that any monitor does."""
    last: dict[tuple[str, str, str, int], int] = {}
    rewinds = 0
    for commit in observations:
        key = commit.cluster, commit.group, commit.topic, commit.partition
        offset = commit.offset or 0
        rewinds += last.get(key, 0) > offset
        last[key] = offset
    return rewinds


def new_engine() -> Engine:
    """Return an engine with the shipped rules."""
    return Engine(SHIPPED.rules, SHIPPED.correlations)


def main(count: int) -> None:
    """Print the cost of each stream."""
    for advance in (100, 5_000):
        stream = commits(count, advance)
        base, quiet = cpu(partial(bare, stream)), cpu(partial(through, new_engine(), stream))
        after_change = new_engine()
        after_change.take([*states(STARTED, 1), *states(STARTED + 1, 2)])
        changed = cpu(partial(through, after_change, stream))
        for name, took in (("bare loop", base), ("core", quiet), ("core, leaders changed", changed)):
            print(
                f"{advance:>5,} records a commit  {name:<26} {took / count * 1e6:7.2f} us/commit  {took / base:6.1f}x"
            )
    seconds = list(burst())
    slowest = 0.0
    total = 0.0
    core = new_engine()
    for batch in seconds:
        took = cpu(partial(core.take, batch))
        slowest, total = max(slowest, took), total + took
    count = sum(map(len, seconds))
    cost = total / count * 1e6
    print(f"burst of 200 partitions: {cost:.2f} us/observation, the slowest second {slowest * 1000:.0f} ms")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--profile"]
    number = int(arguments[0]) if arguments else 200_000
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        profile.runcall(main, number)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    else:
        main(number)
