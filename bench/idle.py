"""What watching costs while nothing happens: many groups whose committed offsets do not move, or many partitions.

Run as `python -m bench.idle [--groups N] [--partitions N] [--unread N] [--commits poll,tail] [--seconds N]
[--version V]`: each group has committed in all of `--partitions`, and those of `--unread` have no readers. After the
quiet time one group, chosen at random, moves back: the time until the request to Slack is measured. In the same run,
librdkafka alone reads all groups' offsets once, all calls at once. Also what this machine makes of a process that rests
most of the time: in some virtual machines, memory costs many times as much at the first access after a rest.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from agent.model.observations.kafka import Commit
from bench.family import Need, needs
from bench.latency import Rewind, commit, wait_for_post
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until

END = 2_000
"""Records in each partition."""
_PER_TOPIC = 100
_SETTLE_S = 90
"""After all groups have been read: what has just changed is read more often."""


def sweep(admin: AdminClient, groups: Sequence[str]) -> float:
    """Return the CPU time of reading all groups' offsets with librdkafka, s."""
    begin = time.process_time()
    futures = [
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=60)[group]
        for group in groups
    ]
    for future in futures:
        future.result()
    return time.process_time() - begin


def work(rest: float) -> float:
    """Return the CPU time (us, the median of twenty) that a little work takes, each after so many seconds of rest."""
    used = []
    for _ in range(20):
        time.sleep(rest)
        begin = time.thread_time_ns()
        json.loads(json.dumps([{"group": f"group-{number}", "offset": number} for number in range(20)]))
        used.append((time.thread_time_ns() - begin) / 1_000)
    return statistics.median(used)


def wait_until_read(agent: Agent, groups: Sequence[str], settle: float) -> int:
    """Wait until the agent has read commits of all groups, and then so many seconds; return its process id."""

    def are_read() -> bool:
        return {fact.group for fact in agent.observations() if isinstance(fact, Commit)} >= set(groups)

    agent.wait_until_watching()
    wait_until(are_read, "all groups", 300, every=5)
    time.sleep(settle)
    if agent.pid is None:
        msg = f"the agent has ended; see {agent.log}"
        raise RuntimeError(msg)
    return agent.pid


def measure(cluster: Cluster, directory: Path, commits: str, groups: Sequence[str], seconds: float) -> str:
    """Return the row of reading commits in this way."""
    table = {"bootstrap_servers": cluster.bootstrap_servers, "commits": commits}
    with Slack() as slack, Agent(directory / commits, {"main": table}, slack) as agent:
        pid = wait_until_read(agent, groups, _SETTLE_S)
        before, begin = needs(pid), time.monotonic()
        time.sleep(seconds)
        after, passed = needs(pid), time.monotonic() - begin
        rewind = Rewind(random.choice(groups), time.time_ns() // 1_000_000)
        commit(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}), {rewind.group: END // 8})
        after_ms = wait_for_post(slack, rewind, 120) - rewind.sent_at
    used = {member: after[member].cpu - before.get(member, Need(0, 0)).cpu for member in after}
    memory = sum(need.memory for need in after.values())
    return (
        f"| {commits} | {100 * sum(used.values()) / passed:.1f} % | {100 * used.get(pid, 0) / passed:.1f} % "
        f"| {memory:.0f} | {after_ms:,} |"
    )


def main() -> int:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", default="poll,tail", help="how commits are read. Default: poll,tail.")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--unread", type=int, default=0, help="partitions of other topics, 100 each")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--version", default="4.1.1", help="of Kafka")
    arguments = parser.parse_args()
    groups = [f"idle-{number:05d}" for number in range(arguments.groups)]
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(arguments.version, (1,), workdir=Path(temporary) / "k") as cluster,
    ):
        places = [("orders", partition) for partition in range(arguments.partitions)]
        cluster.create_topic("orders", arguments.partitions)
        fill(cluster.bootstrap_servers, places, END)
        for number in range(arguments.unread // _PER_TOPIC):
            cluster.create_topic(f"unread-{number:04d}", _PER_TOPIC)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        commit(admin, dict.fromkeys(groups, END // 2), arguments.partitions)
        print(f"{len(groups):,} groups x {arguments.partitions:,} partitions, {arguments.unread:,} others; ", end="")
        print(f"all offsets once with librdkafka alone: {sweep(admin, groups):.2f} s of CPU")
        print(f"a little work: {work(0):,.0f} us of CPU, {work(0.5):,.0f} us after half a second of rest\n")
        print("| commits | a core | without the child process | MiB | rewind to Slack, ms |\n|---|---|---|---|---|")
        for mode in arguments.commits.split(","):
            print(measure(cluster, Path(temporary), mode, groups, arguments.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
