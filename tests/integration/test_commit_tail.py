"""Commits read from `__consumer_offsets` on real brokers: each rewind, deletions, transactions; polls in between."""

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from agent.model.observations.kafka import Commit, GroupState
from agent.sources.kafka.source import KafkaSource
from agent.sources.kafka.tail.progress import BEHIND_MS
from testbed.agent import Agent
from testbed.groups import delete_group
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import named
from tests.integration.seen import Seen, watching

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


class Groups:
    """Groups without members that commit offsets of a topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._consumers: dict[str, Consumer] = {}

    def commit(self, group: str, *offsets: int) -> None:
        """Commit these offsets of partition 0, one after the other."""
        consumer = self.consumer(group)
        for offset in offsets:
            committed = consumer.commit(offsets=[TopicPartition(self._topic, 0, offset)], asynchronous=False)
            assert [partition.error for partition in committed or ()] == [None]

    def consumer(self, group: str) -> Consumer:
        """Return the group's consumer, which has joined nothing."""
        if group not in self._consumers:
            properties = {"bootstrap.servers": self._cluster.bootstrap_servers, "group.id": group, "log_level": 0}
            self._consumers[group] = Consumer(properties)
        return self._consumers[group]


def offsets(seen: Seen, group: str) -> list[int | None]:
    """Return the offsets observed of a group, in order, without those that confirm the one before."""
    observed: list[int | None] = []
    for commit in seen.all(Commit):
        if commit.group == group and observed[-1:] != [commit.offset]:
            observed.append(commit.offset)
    return observed


def wait_for_offsets(source: KafkaSource, seen: Seen, group: str, wanted: Sequence[int | None]) -> None:
    """Poll until these offsets have been observed last."""

    def is_observed() -> bool:
        source.poll()
        return offsets(seen, group)[-len(wanted) :] == list(wanted)

    wait_until(is_observed, f"{group} to be seen at {wanted}", 60)


def wait_until_followed(source: KafkaSource, *groups: str) -> None:
    """Poll until the commits of these groups are read from the log."""

    def is_followed() -> bool:
        source.poll()
        return all(map(source.reads_log_of, groups))

    wait_until(is_followed, f"{groups} to be followed", 60)


@pytest.mark.parametrize("cluster", ["kafka_0_11", "kafka_3_9", "kafka_4_1"], indirect=True)
def test_each_rewind_is_observed_however_short(cluster: Cluster) -> None:
    topic = named("topic")
    cluster.create_topic(topic, 1)
    group, late = f"{topic}-group", f"{topic}-late"
    groups, seen = Groups(cluster, topic), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        seen.mark()
        groups.commit(group, 5_100, 300, 5_200, 5_300, 400, 5_400)  # all between two polls
        wait_for_offsets(source, seen, group, [5_100, 300, 5_300, 400, 5_400])
        assert all(commit.since is None for commit in seen.all(Commit))
        groups.commit(late, 70)
        wait_until_followed(source, late)
        groups.commit(late, 20, 80)
        wait_for_offsets(source, seen, late, [70, 20, 80])
        if cluster.version.startswith("0."):
            return  # Kafka deletes groups on request from 1.1 on
        delete_group(cluster.bootstrap_servers, late)
        wait_for_offsets(source, seen, late, [None])
        seen.wait_for(source, GroupState, group=late, state="Dead")


def test_a_rewind_while_the_agent_is_suspended_is_reported(kafka_3_9: Cluster, slack: Slack, tmp_path: Path) -> None:
    topic = named("topic")
    kafka_3_9.create_topic(topic, 1)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5_000)
    group = f"{topic}-group"
    groups = Groups(kafka_3_9, topic)
    groups.commit(group, 4_000)
    clusters = {"main": {"bootstrap_servers": kafka_3_9.bootstrap_servers, "commits": "tail"}}
    with Agent(tmp_path / "agent", clusters, slack) as agent:
        agent.wait_until_watching()

        following = count(4_001)

        def is_followed() -> bool:
            groups.commit(group, next(following))
            commits = [fact for fact in agent.observations() if isinstance(fact, Commit)]
            return any(commit.since is None for commit in commits[1:])  # a poll says when it saw the commit before

        wait_until(is_followed, "commits to be read in the log", 60, every=1)
        agent.freeze()
        groups.commit(group, 100)
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 2 * BEHIND_MS / 1000, "the reading to be late")
        groups.commit(group, 4_200)
        agent.thaw()
        (message,) = wait_until(slack.messages, "the message", 60)
    assert group in message.words
    assert "→ 100" in message.words


def test_commits_of_a_transaction_count_when_it_is_committed(kafka_3_9: Cluster) -> None:
    """While it is open, the log behind it cannot be read: groups of that partition are polled."""
    topic = named("topic")
    kafka_3_9.create_topic(topic, 1)
    group, groups, seen = f"{topic}-group", Groups(kafka_3_9, topic), Seen()
    groups.commit(group, 100)
    producer = Producer({"bootstrap.servers": kafka_3_9.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    metadata = groups.consumer(group).consumer_group_metadata()
    with watching(kafka_3_9, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 40)], metadata)
        producer.abort_transaction()
        groups.commit(group, 200)
        wait_for_offsets(source, seen, group, [100, 200])
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 60)], metadata)

        def is_polled() -> bool:
            source.poll()
            return not source.reads_log_of(group)

        wait_until(is_polled, f"{group} to be polled", 30)
        assert offsets(seen, group) == [100, 200]
        producer.commit_transaction()
        wait_for_offsets(source, seen, group, [100, 200, 60])
        wait_until_followed(source, group)
        groups.commit(group, 300, 50, 310)
        wait_for_offsets(source, seen, group, [100, 200, 60, 300, 50, 310])
