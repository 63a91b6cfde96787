"""What reading a commit from the log costs, and whether any is missed: the agent is paused while many pass.

Run as `python -m bench.tail [--groups N] [--partitions N] [--sweeps N] [--version V]`: while the agent is suspended,
each group commits in all partitions, `--sweeps` times. In the middle one group moves back, and regains its position
with the next sweep. Then the agent goes on: the CPU time until it has read all is measured, and the message about that
group is awaited. A bare loop, which keeps the last offset of each key in a dict, reads the same records in the same
run. The exit status is 1 if the group was missed or anything else was posted.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from bench import bare_loop
from bench.family import need
from bench.idle import END, wait_until_read
from bench.latency import commit, is_about
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until

_STEP = 40
"""Records that a group reads from one sweep to the next."""
_SETTLE_S = 30
"""After all groups have been read: by then they are followed in the log."""


def main() -> int:
    """Parse the arguments and measure; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--version", default="4.1.1", help="of Kafka")
    arguments = parser.parse_args()
    groups = [f"reader-{number:05d}" for number in range(arguments.groups)]
    begin, last = END // 2, END // 2 + _STEP * arguments.sweeps
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(arguments.version, (1,), workdir=Path(temporary) / "k") as cluster,
        Slack() as slack,
    ):
        cluster.create_topic("orders", arguments.partitions)
        fill(cluster.bootstrap_servers, [("orders", partition) for partition in range(arguments.partitions)], END)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        commit(admin, dict.fromkeys(groups, begin), arguments.partitions)
        clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": "tail"}}
        with Agent(Path(temporary) / "agent", clusters, slack) as agent:
            pid = wait_until_read(agent, groups, _SETTLE_S)
            agent.freeze()
            # Not one of the first: it would be back sooner than any consumer reads, like commits that are out of order.
            chosen = random.choice(groups[len(groups) // 2 :])
            for number in range(1, arguments.sweeps + 1):
                commit(admin, dict.fromkeys(groups, begin + _STEP * number), arguments.partitions)
                if number == arguments.sweeps // 2:
                    commit(admin, {chosen: 10}, arguments.partitions)
            commit(admin, {groups[-1]: last + 1}, arguments.partitions)
            before = need(pid)
            agent.thaw()

            def is_last(fact: Observation) -> bool:
                return isinstance(fact, Commit) and fact.group == groups[-1] and fact.offset == last + 1

            agent.wait_for(is_last, "the last commit", 600)
            after = need(pid)
            is_found = True
            try:
                wait_until(lambda: any(is_about(message.words, [chosen]) for message in slack.messages()), "it", 60)
            except TimeoutError:
                is_found = False
            others = [message.words for message in slack.messages() if not is_about(message.words, [chosen])]
        count = arguments.groups * arguments.partitions * arguments.sweeps
        bare = bare_loop.measure(cluster.bootstrap_servers)
    cost = (after.cpu - before.cpu) / count * 1e6
    print(f"{count:,} commits while paused: {cost:.1f} us of CPU each; bare loop, {bare.records:,}: {bare.cost:.2f} us")
    print(f"resident: {before.memory:.0f} MiB before, {after.memory:.0f} MiB after; bare loop: {bare.memory:.0f} MiB")
    print(f"a group that moved back and regained its position meanwhile: {'reported' if is_found else 'MISSED'}")
    print(*others, sep="\n")
    return 0 if is_found and not others else 1


if __name__ == "__main__":
    sys.exit(main())
