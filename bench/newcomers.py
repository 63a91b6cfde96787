"""Whether the agent grows with every group that was ever there: thousands of console consumers that come and go.

Run as `python -m bench.newcomers [--minutes N] [--hourly N] [--commits tail,poll] [--version V]`: consumers with a new
group name each join, read a record, commit and leave. Kafka forgets the offsets of such a group RETENTION_MIN later. A
line a minute shows what the agent holds; at the end, by how much its resident memory grew in an hour, as a line through
the second half shows. The exit status is 1 if anything was posted or the agent ended.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer

from bench.family import needs
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Traffic, Worker, fill

RETENTION_MIN = 2
PARTITIONS = 3
_WORKERS = 12
_JOIN_S = 60
_MIB = 1 << 20


class Newcomers(Worker):
    """Console consumers, so many an hour. left: how many have come, committed and left."""

    def __init__(self, bootstrap_servers: str, hourly: int) -> None:
        super().__init__("newcomers")
        self.left = 0
        self._bootstrap_servers = bootstrap_servers
        self._every = 3600 / hourly
        self._begin = time.monotonic()
        self._started = 0
        self._pool = ThreadPoolExecutor(_WORKERS)
        self._running: list[Future[None]] = []

    def _step(self) -> None:
        while self._started * self._every < time.monotonic() - self._begin and len(self._running) < _WORKERS:
            self._running.append(self._pool.submit(self._visit, f"console-consumer-{10_000 + self._started}"))
            self._started += 1
        for done in [visit for visit in self._running if visit.done()]:
            done.result()
            self._running.remove(done)
        self._stopped.wait(0.05)

    def _visit(self, group: str) -> None:
        properties = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self._bootstrap_servers, **properties})
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + _JOIN_S
        while (message := consumer.poll(1)) is None or message.error() is not None:
            if time.monotonic() > deadline:
                msg = f"{group} read nothing for {_JOIN_S} s"
                raise TimeoutError(msg)
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
        self.left += 1

    def _finish(self) -> None:
        self._pool.shutdown()


def size_of(paths: Iterable[Path]) -> float:
    """Return the size of all these files, MiB; those that vanish meanwhile do not count."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total / _MIB


def measure(cluster: Cluster, directory: Path, commits: str, minutes: int, hourly: int) -> list[str]:
    """Print what the agent holds every minute; return what was wrong."""
    clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": commits}}
    held: list[float] = []
    with (
        Slack() as slack,
        Traffic(cluster.bootstrap_servers, [("orders", partition) for partition in range(PARTITIONS)], rate=5),
        Agent(directory / commits, clusters, slack) as agent,
        Newcomers(cluster.bootstrap_servers, hourly) as newcomers,
    ):
        agent.wait_until_watching()
        begin = time.monotonic()
        for minute in range(1, minutes + 1):
            while time.monotonic() < begin + 60 * minute:
                newcomers.raise_failure()
                time.sleep(1)
            if agent.pid is None or not agent.running:
                return [f"the agent ended with status {agent.exit_status}; see {agent.log}"]
            by_process = needs(agent.pid)
            held.append(by_process.pop(agent.pid).memory)
            child = sum(need.memory for need in by_process.values())
            journal, state = (size_of(agent.state.glob(name)) for name in ("journal/**/*", "state.sqlite3*"))
            print(
                f"| {commits} | {minute} | {newcomers.left:,} | {held[-1]:.1f} | {child:.1f} "
                f"| {journal:.1f} | {state:.2f} |",
                flush=True,
            )
        half = held[len(held) // 2 :]
        slope = np.polyfit(np.arange(len(half)), half, 1)[0] * 60 if len(half) > 1 else float("nan")
        print(f"{commits}: resident memory grows by {slope:+.1f} MiB an hour in the second half", flush=True)
        return [message.words for message in slack.messages()]


def main() -> int:
    """Parse the arguments, measure, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--hourly", type=int, default=10_000)
    parser.add_argument("--commits", default="tail", help="how commits are read. Default: tail.")
    parser.add_argument("--version", default="4.1.1", help="of Kafka")
    arguments = parser.parse_args()
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.retention.minutes": RETENTION_MIN,
        "offsets.retention.check.interval.ms": 10_000,
    }
    problems: list[str] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(arguments.version, (1,), workdir=Path(temporary) / "k", config=config) as cluster,
    ):
        cluster.create_topic("orders", PARTITIONS)
        fill(cluster.bootstrap_servers, [("orders", partition) for partition in range(PARTITIONS)], 100)
        print("| commits | minutes | groups that have left | agent, MiB | child, MiB | journal, MiB | state, MiB |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for mode in arguments.commits.split(","):
            problems += measure(cluster, Path(temporary), mode, arguments.minutes, arguments.hourly)
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
