"""A soak: the agent for hours on a real cluster, with many groups, churn, a flaky network and a Slack that often fails.

Run as `python -m bench.soak [--minutes N] [--groups N] [--version V] [--directory DIR]`. Some groups commit steadily;
every few seconds one of them is deleted and another begins. Every minute a group starts whose consumer rewinds to the
log start once, which must become exactly one message. The agent's connections to one of the brokers break for some
seconds, again and again, and Slack fails a third of the requests. A line every ten minutes shows what was delivered
and what the agent needed; the exit status is 1 if anything was lost, doubled or uncalled for, or if memory grew.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.family import Need, need
from testbed.agent import Agent
from testbed.consumers import SubscribedConsumer
from testbed.groups import delete_group
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, Worker, fill
from testbed.waiting import wait_until

TOPICS, PARTITIONS = 10, 10
COMMIT_S = 30
"""How often each steady group commits."""
CHURN_S = 5
BEHIND = 100
"""How many records a steady group leaves unread, as some partitions have fewer than others."""
READER_S = 60
REWOUND = 4_000
"""Records in each partition's log before the first group starts, which a reader reads before it rewinds.

It reads them again in 27 s, longer than any cut of the link, so that polls can see that it rewound.
"""
RATE = 1_500
"""Records that a reader reads in a second."""
GROWTH = 1.1
"""How much more memory the last quarter may need than the second."""

_DELIVERY_S = 600


class SteadyGroups(Worker):
    """Groups without members that commit in all partitions of a topic; some end, and others take their place.

    They keep pace with the log, so that none of them falls behind.
    """

    def __init__(self, bootstrap_servers: str, count: int, traffic: Traffic) -> None:
        """traffic: what writes to all partitions."""
        super().__init__("steady groups")
        self.deleted = 0
        self._traffic = traffic
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._begin = time.monotonic()
        self._started = count
        self._groups = dict.fromkeys(f"steady-{number}" for number in range(count))
        self._due = sorted((self._begin + random.uniform(0, COMMIT_S), group) for group in self._groups)
        self._churn_at = self._begin + COMMIT_S

    def _step(self) -> None:
        now = time.monotonic()
        due = [group for at, group in self._due if at <= now and group in self._groups]
        self._due = [(at, group) for at, group in self._due if at > now] + [(now + COMMIT_S, group) for group in due]
        for group in due:
            offset = REWOUND - BEHIND + self._traffic.acknowledged // (TOPICS * PARTITIONS)
            topic = f"orders-{hash(group) % TOPICS}"
            places = [TopicPartition(topic, partition, offset) for partition in range(PARTITIONS)]
            request = [ConsumerGroupTopicPartitions(group, places)]
            self._admin.alter_consumer_group_offsets(request)[group].add_done_callback(lambda done: done.exception())
        if now >= self._churn_at:
            self._churn_at = now + CHURN_S
            oldest = next(iter(self._groups))
            del self._groups[oldest]
            self._admin.delete_consumer_groups([oldest])[oldest].result(timeout=30)
            self.deleted += 1
            newest = f"steady-{self._started}"
            self._started += 1
            self._groups[newest] = None
            self._due.append((now, newest))
        self._stopped.wait(0.1)


class Readers(Worker):
    """Groups with a consumer that reads a topic, rewinds to the log start, reads on and leaves.

    rewound: the groups that rewound, and when, in seconds of the monotonic clock.
    """

    def __init__(self, bootstrap_servers: str, until: float) -> None:
        """until: the last may start then, seconds of the monotonic clock."""
        super().__init__("readers")
        self.rewound: dict[str, float] = {}
        self._bootstrap_servers = bootstrap_servers
        self._until = until
        self._next = time.monotonic()
        self._started = 0
        self._running: list[tuple[SubscribedConsumer, float]] = []

    @property
    def is_done(self) -> bool:
        """Whether all have left."""
        return time.monotonic() > self._until and not self._running

    def _step(self) -> None:
        now = time.monotonic()
        if self._next <= now <= self._until:
            self._next += READER_S
            topics = [f"orders-{self._started % TOPICS}"]
            reader = SubscribedConsumer(self._bootstrap_servers, f"reader-{self._started}", topics, rate=RATE)
            self._started += 1
            self._running.append((reader.__enter__(), now))
        for reader, started in self._running:
            reader.raise_failure()
            if reader.group not in self.rewound and now - started > READER_S:
                reader.seek_to_start()
                self.rewound[reader.group] = now
            elif now - started > 4 * READER_S:
                reader.stop()
                delete_group(self._bootstrap_servers, reader.group)
        self._running = [(reader, started) for reader, started in self._running if now - started <= 4 * READER_S]
        self._stopped.wait(0.2)

    def _finish(self) -> None:
        for reader, _ in self._running:
            reader.stop()


class FlakyLink(Worker):
    """Breaks the agent's connections to one broker for some seconds, again and again."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("flaky link")
        self.cuts = 0
        self._link = cluster.client_links[cluster.brokers[0]]

    def _step(self) -> None:
        self._stopped.wait(random.uniform(5, 40))
        self._link.cut()
        self.cuts += 1
        self._stopped.wait(random.uniform(0.5, 15))
        self._link.heal()

    def _finish(self) -> None:
        self._link.heal()


class Sample(NamedTuple):
    """What the agent needed. at: minutes since the start."""

    at: float
    need: Need


class Delivered(NamedTuple):
    """What Slack has of the groups that rewound, and of others."""

    messages: dict[str, int]
    others: list[str]

    def problems(self, rewound: Sequence[str]) -> Iterator[str]:
        """Yield what was lost, doubled or uncalled for."""
        for group in rewound:
            if self.messages.get(group, 0) != 1:
                yield f"{group}: {self.messages.get(group, 0)} messages"
        yield from (f"uncalled for: {text}" for text in self.others)


def delivered(slack: Slack, rewound: Sequence[str]) -> Delivered:
    """Return in how many messages each group is named."""
    counts: dict[str, int] = {}
    others = []
    for message in slack.messages():
        words = message.words.split()
        named = {group for group in rewound if any(word.strip("`*.,:()") == group for word in words)}
        for group in named:
            counts[group] = counts.get(group, 0) + 1
        if not named:
            others.append(" ".join(words[:30]))
    return Delivered(counts, others)


def has_grown(samples: Sequence[Sample]) -> bool:
    """Return whether the last quarter needed more memory than the second."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    if not quarter:
        return False
    return sum(sample.need.memory for sample in after) > GROWTH * sum(sample.need.memory for sample in before)


class Soak:
    """What runs for the time of a soak."""

    def __init__(
        self, cluster: Cluster, slack: Slack, agent: Agent, traffic: Traffic, *, minutes: float, groups: int
    ) -> None:
        self._slack, self._agent = slack, agent
        self._begin = time.monotonic()
        self._end = self._begin + minutes * 60
        self._steady = SteadyGroups(cluster.bootstrap_servers, groups, traffic)
        self._readers = Readers(cluster.bootstrap_servers, self._end - 5 * READER_S)
        self._link = FlakyLink(cluster)

    def run(self) -> Iterator[str]:
        """Run to the end and yield what was wrong. Raises TimeoutError if messages are missing in the end."""
        with self._steady, self._agent:
            self._agent.wait_until_watching()
            with self._readers, self._link:
                samples = list(self._samples())
            wait_until(lambda: not self._missing(), "the last messages", _DELIVERY_S, every=5)
            self._agent.stop()
        yield from delivered(self._slack, self._rewound).problems(self._rewound)
        if self._agent.exit_status != 0:
            yield f"the agent ended with status {self._agent.exit_status}"
        if has_grown(samples):
            yield "memory grew"

    @property
    def _rewound(self) -> list[str]:
        return list(self._readers.rewound)

    def _missing(self) -> set[str]:
        return set(self._rewound) - delivered(self._slack, self._rewound).messages.keys()

    def _samples(self) -> Iterator[Sample]:
        """Yield a sample a minute; print one in ten."""
        print(
            "| minutes | gone back | named in a message | groups deleted | cuts | Slack requests, failed | MiB | CPU |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        pause = threading.Event()
        count, used = 0, 0.0
        while (now := time.monotonic()) < self._end or not self._readers.is_done:
            for worker in (self._readers, self._steady, self._link):
                worker.raise_failure()
            if self._agent.pid is None or not self._agent.running:
                msg = f"the agent ended with status {self._agent.exit_status}; see {self._agent.log}"
                raise RuntimeError(msg)
            taken = Sample((now - self._begin) / 60, need(self._agent.pid))
            count += 1
            if count % 10 == 0:
                print(self._row(taken, (taken.need.cpu - used) / 6), flush=True)
                used = taken.need.cpu
            yield taken
            pause.wait(max(0.0, now + 60 - time.monotonic()))

    def _row(self, taken: Sample, share: float) -> str:
        failed = sum(request.status != 200 for request in self._slack.requests)
        named = len(self._rewound) - len(self._missing())
        return (
            f"| {taken.at:.0f} | {len(self._rewound)} | {named} | {self._steady.deleted} | {self._link.cuts} "
            f"| {len(self._slack.requests)}, {failed} | {taken.need.memory:.0f} | {share:.0f} % |"
        )


def soak(directory: Path, version: str, minutes: float, groups: int) -> int:
    """Start everything, soak, print what was wrong, and return how much that was."""
    topics = [f"orders-{number}" for number in range(TOPICS)]
    places: list[Place] = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    config = {"offsets.topic.num.partitions": 12}
    everywhere = (2005, 2011, 2024)
    workdir = directory / "kafka"
    with (
        Slack() as slack,
        Cluster(version, everywhere, workdir=workdir, offsets_on=everywhere, config=config, linked=True) as cluster,
    ):
        for topic in topics:
            cluster.create_topic(topic, PARTITIONS, replication=3)
        fill(cluster.bootstrap_servers, places, REWOUND)
        table = {"bootstrap_servers": cluster.servers("LINKED")}
        table |= {} if cluster.zookeeper is None else {"zookeeper": cluster.zookeeper}
        agent = Agent(directory / "agent", {"main": table}, slack)
        for after in (False, True):
            slack.close_connection(times=None, after=after, share=0.1)
        slack.answer(500, times=None, share=0.1)
        slack.answer(429, retry_after=1, times=None, share=0.1)
        with Traffic(cluster.bootstrap_servers, places, rate=2) as traffic:
            problems = list(Soak(cluster, slack, agent, traffic, minutes=minutes, groups=groups).run())
        slack.dump(directory / "slack.jsonl")
        print("\n".join([*problems, f"{len(slack.messages())} messages, {len(problems)} problems"]))
        return len(problems)


def main() -> int:
    """Parse the arguments and soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--version", default="3.9.1", help="of Kafka")
    parser.add_argument("--directory", type=Path, help="kept afterwards; by default one that is removed")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        return int(soak(directory, arguments.version, arguments.minutes, arguments.groups) > 0)


if __name__ == "__main__":
    sys.exit(main())
