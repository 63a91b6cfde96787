"""Resident memory with many keys, all of which commit every few seconds. A key is a group and a partition.

Run as `python -m bench.keys [--groups N] [--partitions N] [--every S] [--minutes N] [--freeze N]`: each group commits
first by itself. Then the records of its commits are written to the offsets topic by a producer, as its coordinator
would write them, in batches of 64 KiB at most: that takes a tenth of the CPU. Old records are deleted rather than
compacted: the cleaner would take half of a core, of which the agent needs more. With `--freeze` there are two brokers,
one of which stands still from the beginning of that minute until its session expires: half of the partitions get
another leader. In the end one group moves back, and the message about it is awaited. Other messages are printed; the
exit status is 1 if there were any without `--freeze`.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient

from agent.model.batches import CommitKey
from agent.model.group_partition import partition_of
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.sources.kafka.tail.records import encode_key
from bench.family import needs
from bench.latency import Rewind, commit, wait_for_post
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.offsets_topic import encode_commit, offsets_producer
from testbed.slack import Slack
from testbed.traffic import Worker, fill
from testbed.waiting import wait_until

_STEP = 5
_OFFSETS_PARTITIONS = 50
_DELETED = {"cleanup.policy": "delete", "segment.bytes": str(32 << 20), "retention.bytes": str(128 << 20)}
"""Settings of the offsets topic: of each partition the last five minutes or more are kept."""
_PARTS = 50
"""Of a sweep: so many times the producer waits for the time of the next part."""


class Commits(Worker):
    """All groups commit in all partitions, again and again. sweeps: how often they have. behind: by how much, s."""

    def __init__(
        self, bootstrap_servers: str, groups: Sequence[str], partitions: int, first: int, every: float
    ) -> None:
        """first: the offset that they have committed. every: how long a sweep takes, s."""
        super().__init__("commits")
        self.sweeps, self.behind = 0, 0.0
        self._first = first
        self._producer = offsets_producer(
            bootstrap_servers, acks=1, linger_ms=20, batch_size=1 << 16,
            queue_buffering_max_messages=5_000_000, queue_buffering_max_kbytes=1 << 20,
        )  # fmt: skip
        records = [
            (encode_key(CommitKey(group, "orders", number)), partition_of(group, _OFFSETS_PARTITIONS))
            for group in groups
            for number in range(partitions)
        ]
        size = -(-len(records) // _PARTS)
        self._parts = [records[begin : begin + size] for begin in range(0, len(records), size)]
        self._every, self._begin = every, time.monotonic()

    def _step(self) -> None:
        for number, part in enumerate(self._parts):
            due = self._begin + self._every * (self.sweeps + number / len(self._parts))
            self.behind = max(time.monotonic() - due, 0)
            if self._stopped.wait(max(due - time.monotonic(), 0)):
                return
            value = encode_commit(self._first + _STEP * (self.sweeps + 1), time.time_ns() // 1_000_000)
            for key, partition in part:
                self._producer.produce(OFFSETS_TOPIC, value, key, partition)
            self._producer.poll(0)
        self.sweeps += 1

    def _finish(self) -> None:
        self._producer.flush()


def measure(agent: Agent, commits: Commits, count: int, minutes: int, on_minute: Callable[[int], None]) -> list[float]:
    """Print what the agent holds and uses every minute; return its memory, MiB. on_minute: called as each begins."""
    print("| minutes | sweeps | agent, MiB | child, MiB | of a core | us of CPU a commit | producer behind, s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    begin = time.monotonic()
    held: list[float] = []
    if agent.pid is None:
        return held
    before, swept = needs(agent.pid), commits.sweeps
    for minute in range(1, minutes + 1):
        on_minute(minute)
        time.sleep(max(begin + 60 * minute - time.monotonic(), 0))
        commits.raise_failure()
        now, sweeps = needs(agent.pid), commits.sweeps
        used = sum(now[member].cpu - before[member].cpu for member in now.keys() & before.keys())
        held.append(now[agent.pid].memory)
        child = sum(need.memory for member, need in now.items() if member != agent.pid)
        print(
            f"| {minute} | {sweeps} | {held[-1]:.0f} | {child:.0f} | {used / 60:.0%} "
            f"| {used / max(count * (sweeps - swept), 1) * 1e6:.1f} | {commits.behind:.1f} |",
            flush=True,
        )
        before, swept = now, sweeps
    return held


def main() -> int:
    """Parse the arguments and measure; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--every", type=float, default=5, help="seconds from one commit of a key to the next")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--freeze", type=int, help="as which minute begins a broker stands still")
    parser.add_argument("--version", default="4.1.1", help="of Kafka")
    arguments = parser.parse_args()
    groups = [f"reader-{number:05d}" for number in range(arguments.groups)]
    places = [("orders", number) for number in range(arguments.partitions)]
    first = _STEP * round(60 * (arguments.minutes + 5) / arguments.every)  # not near the log start, which is dangerous
    brokers = (1, 2) if arguments.freeze else (1,)
    config = {"offsets.topic.num.partitions": _OFFSETS_PARTITIONS}
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(arguments.version, brokers, workdir=Path(temporary) / "k", config=config, heap_mb=2_048) as cluster,
        Slack() as slack,
    ):
        cluster.create_topic("orders", arguments.partitions, replication=len(brokers))
        fill(cluster.bootstrap_servers, places, 2 * first)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        commit(admin, dict.fromkeys(groups, first), arguments.partitions)
        cluster.alter_topic(OFFSETS_TOPIC, _DELETED)

        def freeze(minute: int) -> None:
            if minute == arguments.freeze:
                cluster.expire_session(1)

        clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": "tail"}}
        with Agent(Path(temporary) / "agent", clusters, slack) as agent:
            agent.wait_until_watching()
            begun_at = time.monotonic()
            wait_until(
                lambda: len({fact.group for fact in agent.observations() if isinstance(fact, Commit)}) == len(groups),
                "all groups", 900, every=20,
            )  # fmt: skip
            print(f"all groups were read after {time.monotonic() - begun_at:.0f} s", flush=True)
            count = arguments.groups * arguments.partitions
            with Commits(cluster.bootstrap_servers, groups, arguments.partitions, first, arguments.every) as commits:
                held = measure(agent, commits, count, arguments.minutes, freeze)
            rewind = Rewind(random.choice(groups), time.time_ns() // 1_000_000)
            commit(admin, {rewind.group: 10}, arguments.partitions)
            after_ms = wait_for_post(slack, rewind, 300) - rewind.sent_at
        others = [message.words for message in slack.messages() if rewind.group not in message.words]
    half = held[len(held) // 2 :]
    slope = np.polyfit(np.arange(len(half)), half, 1)[0] * 60 if len(half) > 1 else float("nan")
    print(f"resident memory grows by {slope:+.1f} MiB an hour in the second half; rewind to Slack: {after_ms:,} ms")
    print(*others, sep="\n")
    return int(bool(others) and not arguments.freeze)


if __name__ == "__main__":
    sys.exit(main())
