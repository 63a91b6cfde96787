"""More is written to `__consumer_offsets` than the agent reads: no group waits for others, and the agent says so."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from agent.model.batches import CommitKey
from agent.model.group_partition import partition_of
from agent.model.observations.agent import AgentPart
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, OffsetsPosition
from agent.sources.base import Batch
from agent.sources.kafka.tail.commit_tail import CommitTail
from agent.sources.kafka.tail.progress import LATE_MS
from agent.sources.kafka.tail.records import encode_key
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.offsets_topic import encode_commit, offsets_producer
from testbed.slack import Slack
from testbed.traffic import Worker
from testbed.waiting import wait_until
from tests.integration.committing import Groups
from tests.integration.scenes import now

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

_PARTITIONS = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Kafka 4.1.1 with as many partitions of the offsets topic as Kafka has by default."""
    config = {"offsets.topic.num.partitions": _PARTITIONS}
    with Cluster("4.1.1", (1,), workdir=tmp_path_factory.mktemp("kafka"), config=config) as cluster:
        yield cluster


def writer(cluster: Cluster) -> Producer:
    """Return a producer of small batches, as coordinators write them."""
    return offsets_producer(cluster.bootstrap_servers, linger_ms=20, batch_size=1 << 16)


def value(offset: int, at: int) -> bytes:
    """Return a commit with metadata of 1,000 bytes. at: ms."""
    return encode_commit(offset, at, b"m" * 1_000)


def groups_of_all_partitions() -> list[str]:
    """Return a group for each partition of the offsets topic."""
    found: dict[int, str] = {}
    for number in range(10_000):
        found.setdefault(partition_of(f"group-{number}", _PARTITIONS), f"group-{number}")
    return [found[partition] for partition in range(_PARTITIONS)]


def write(cluster: Cluster, groups: Sequence[str], count: int) -> None:
    """Write so many commits of each group, one a second until now."""
    producer, begin = writer(cluster), now() - 1_000 * count
    for number in range(count):
        for partition, group in enumerate(groups):
            key = encode_key(CommitKey(group, "orders", 0))
            producer.produce(OFFSETS_TOPIC, value(number + 1, begin + 1_000 * number), key, partition)
        producer.poll(0)
        if number % 500 == 499:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def test_no_partition_waits_until_others_have_been_read(cluster: Cluster) -> None:
    cluster.create_topic("orders", 1)
    Groups(cluster, "orders").commit("first", 1)  # creates the offsets topic
    for partition in range(_PARTITIONS):
        cluster.wait_for_leader(OFFSETS_TOPIC, partition)
    groups, count = groups_of_all_partitions(), 2_500
    known: list[Observation] = []
    for partition, group in enumerate(groups):
        known += [
            OffsetsPosition(at=now(), cluster="main", partition=partition, next_offset=0, partitions=_PARTITIONS),
            Commit(at=now() - 10_000_000, cluster="main", group=group, topic="orders", partition=0, offset=0),
        ]
    write(cluster, groups, count)
    read: Counter[str] = Counter()
    is_half_read, may_go_on = threading.Event(), threading.Event()

    def emit(batch: Batch) -> None:
        read.update(fact.group for fact in batch if isinstance(fact, Commit))
        if read.total() >= _PARTITIONS * count // 2:
            is_half_read.set()
            may_go_on.wait()

    properties = {"bootstrap.servers": cluster.bootstrap_servers}
    tail = CommitTail("main", lambda: properties, lambda _: True, emit, known)
    tail.set_partitions(_PARTITIONS, now())
    try:
        assert is_half_read.wait(120)
        assert set(groups) <= read.keys()
        assert min(read[group] for group in groups) > count // 4
    finally:
        may_go_on.set()
        tail.close()


class Commits(Worker):
    """A group that commits 150 times a second."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        super().__init__("commits")
        self._producer, self._count = writer(cluster), 0
        self._key = encode_key(CommitKey(group, "orders", 0))
        self._partition = partition_of(group, _PARTITIONS)

    def _step(self) -> None:
        for _ in range(15):
            self._count += 1
            self._producer.produce(OFFSETS_TOPIC, value(self._count, now()), self._key, self._partition)
        self._producer.poll(0)
        self._stopped.wait(0.1)

    def _finish(self) -> None:
        self._producer.flush(60)


def test_an_agent_that_reads_more_slowly_than_is_committed_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """Until it has caught up. Its client is allowed some 90 records of a partition a second."""
    slow = {"queued.min.messages": 1, "fetch.queue.backoff.ms": 1_000, "fetch.message.max.bytes": 100_000}
    clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": "tail", "kafka": slow}}
    with Slack() as slack, Agent(tmp_path / "agent", clusters, slack) as agent:
        agent.wait_until_watching()

        def reports(*, problem: bool) -> bool:
            facts = [fact for fact in agent.observations() if isinstance(fact, AgentPart)]
            return bool(facts) and facts[-1].part == "main/kafka" and (facts[-1].problem is not None) == problem

        Groups(cluster, "orders").commit("busy", 1)
        agent.wait_for(lambda fact: isinstance(fact, Commit) and fact.group == "busy", "the first commit")
        with Commits(cluster, "busy"):
            begun = now()
            wait_until(lambda: reports(problem=True), "the agent to report itself", 180, every=1)
            assert now() - begun > LATE_MS

        def is_posted() -> bool:
            reason = "main/kafka: Commits are made faster than the agent reads them"
            return any(reason in message.words for message in slack.messages())

        wait_until(is_posted, "the message")
        wait_until(lambda: reports(problem=False), "the agent to catch up", 300, every=1)
