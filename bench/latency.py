"""How long it takes from a commit that moves backwards to the request to Slack, among many groups.

Run as `python -m bench.latency [--commits tail,poll] [--rewinds N] [--live N] [--groups N] [--version V]`. Groups
without members have committed offsets in a topic; `--live` of them commit once a second, and one after the other of
these moves back, in turn. Each rewind must be posted: as a message, or as what is new in that of an earlier rewind of
the group. It waits between rewinds, as Slack allows one message a second. The exit status is 1 if one was missed or
anything else was posted. The last column is when a bare consumer has read the lower offset, in the same run.
"""

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Worker, fill
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from concurrent.futures import Future

PARTITIONS = 10
END = 50_000
"""Records in each partition."""
BACK = 2_000
"""How far a rewind goes, in records."""
_AT_ONCE = 50
_PAUSE_S = 6.5, 8.0
"""Between rewinds. More than ten a minute would be one incident, a storm."""
_SETTLE_S = 20
"""How long all groups are watched before the first rewind: a reader's rhythm shows within that time."""


class Live(Worker):
    """Groups without members that commit once a second, and move back on request."""

    def __init__(self, bootstrap_servers: str, groups: Sequence[str]) -> None:
        super().__init__("live groups")
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._lock = threading.Lock()
        self._offsets = dict.fromkeys(groups, END // 2)

    def _step(self) -> None:
        with self._lock:
            for group in self._offsets:
                self._offsets[group] += 5
            commit(self._admin, self._offsets)
        self._stopped.wait(1)

    def rewind(self, group: str) -> int:
        """Move a group back; return when the request was sent, ms."""
        with self._lock:
            self._offsets[group] -= BACK
            sent_at = time.time_ns() // 1_000_000
            commit(self._admin, {group: self._offsets[group]})
        return sent_at


class Bare(Worker):
    """A consumer that only compares each committed offset with the last one. seen: when one was lower, ms, by group."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__("bare consumer")
        properties = {"group.id": "bare", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, **properties})
        partitions = self._consumer.list_topics(OFFSETS_TOPIC).topics[OFFSETS_TOPIC].partitions
        self._consumer.assign([TopicPartition(OFFSETS_TOPIC, number, OFFSET_END) for number in partitions])
        self._last: dict[bytes, int] = {}
        self.seen: list[tuple[str, int]] = []

    def _step(self) -> None:
        message = self._consumer.poll(0.5)
        key, value = (None, None) if message is None else (message.key(), message.value())
        if key and value and key[1] <= 1:  # both begin with a version; 0 and 1 are of keys of commits
            offset = int.from_bytes(value[2:10], "big")
            if offset < self._last.get(key, 0):
                self.seen.append((key[4 : 4 + key[3]].decode(), time.time_ns() // 1_000_000))
            self._last[key] = offset

    def _finish(self) -> None:
        self._consumer.close()

    def took(self, rewinds: Sequence["Rewind"]) -> list[int]:
        """Return how long the rewinds that were read took, ms."""
        firsts = ([at for group, at in self.seen if group == back.group and at >= back.sent_at] for back in rewinds)
        return [min(first) - back.sent_at for first, back in zip(firsts, rewinds, strict=True) if first]


def commit(admin: AdminClient, offsets: dict[str, int], partitions: int = PARTITIONS) -> None:
    """Commit an offset in all partitions for each group, for some groups at a time."""
    waiting = iter(offsets.items())
    while batch := list(islice(waiting, _AT_ONCE)):
        futures: list[Future[object]] = []
        for group, offset in batch:
            places = [TopicPartition("orders", partition, offset) for partition in range(partitions)]
            futures += admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
        for future in futures:
            future.result(timeout=30)


class Rewind(NamedTuple):
    """A group that moved back, and when the request for it was sent, ms."""

    group: str
    sent_at: int


def measure(cluster: Cluster, directory: Path, commits: str, groups: Sequence[str], moving: Sequence[str]) -> list[str]:
    """Print the latencies of reading commits in this way; return what was wrong. moving: which groups move back."""
    live = list(dict.fromkeys(moving))

    def is_of_last(fact: Observation) -> bool:
        return isinstance(fact, Commit) and fact.group == groups[-1]

    with Slack() as slack:
        clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": commits}}
        with (
            Agent(directory / commits, clusters, slack) as agent,
            Live(cluster.bootstrap_servers, live) as readers,
            Bare(cluster.bootstrap_servers) as bare,
        ):
            agent.wait_until_watching()
            agent.wait_for(is_of_last, "all groups", 120)
            time.sleep(_SETTLE_S)
            sent: list[Rewind] = []
            for group in moving:
                time.sleep(random.uniform(*_PAUSE_S))
                readers.raise_failure()
                sent.append(Rewind(group, readers.rewind(group)))
            with suppress(TimeoutError):  # reported as missed
                wait_until(lambda: None not in posted_at(slack, sent), "the last messages", 30)
            posted = posted_at(slack, sent)
        others = [message.words for message in slack.messages() if not is_about(message.words, live)]
    took = [at - rewind.sent_at for rewind, at in zip(sent, posted, strict=True) if at is not None]
    p50, p90, p99 = (np.percentile(took, share) if took else float("nan") for share in (50, 90, 99))
    print(
        f"| {commits} | {len(groups):,} | {len(live)} | {len(moving)} | {len(took)} | {len(others)} "
        f"| {p50:,.0f} | {p90:,.0f} | {p99:,.0f} | {max(took, default=0):,} | {np.median(bare.took(sent)):,.0f} |",
        flush=True,
    )
    missed = [rewind.group for rewind, at in zip(sent, posted, strict=True) if at is None]
    return [*(f"{commits}: missed {group}" for group in missed), *others]


def posted_at(slack: Slack, rewinds: Sequence[Rewind]) -> list[int | None]:
    """Return when each rewind was posted, ms: the first text about its group that is new since then; None if not."""
    texts = [(request.at, str(request.arguments["text"])) for request in slack.requests if "text" in request.arguments]

    def first(rewind: Rewind) -> int | None:
        known = {text for at, text in texts if at < rewind.sent_at}
        about = ((at, text) for at, text in texts if at >= rewind.sent_at and is_about(text, [rewind.group]))
        return next((at for at, text in about if text not in known), None)

    return list(map(first, rewinds))


def wait_for_post(slack: Slack, rewind: Rewind, seconds: float) -> int:
    """Wait until a rewind has been posted and return when it was, ms. Raises TimeoutError after `seconds`."""
    return wait_until(lambda: posted_at(slack, [rewind])[0], "the message", seconds, every=0.05)


def is_about(text: str, groups: Sequence[str]) -> bool:
    """Return whether a text names one of the groups."""
    return any(re.search(rf"{group}\b", text) for group in groups)


def main() -> int:
    """Parse the arguments, measure, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", default="tail,poll", help="how commits are read. Default: tail,poll.")
    parser.add_argument("--rewinds", type=int, default=20)
    parser.add_argument("--live", type=int, default=20, help="how many groups commit, and move back in turn")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--version", default="4.1.1", help="of Kafka")
    arguments = parser.parse_args()
    groups = [f"reader-{number:05d}" for number in range(arguments.groups)]
    problems = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(arguments.version, (1,), workdir=Path(temporary) / "k") as cluster,
    ):
        cluster.create_topic("orders", PARTITIONS)
        fill(cluster.bootstrap_servers, [("orders", partition) for partition in range(PARTITIONS)], END)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        print(
            "| commits | groups | live | rewinds | found | other messages | p50, ms | p90, ms | p99, ms | max, ms ",
            end="",
        )
        print(f"| bare consumer, p50, ms |\n{'|---' * 11}|", flush=True)
        for mode in arguments.commits.split(","):
            names = [f"{mode}-{group}" for group in groups]
            commit(admin, dict.fromkeys(names, END // 2))
            moving = list(islice(cycle(names[: arguments.live]), arguments.rewinds))
            problems += measure(cluster, Path(temporary), mode, names, moving)
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
