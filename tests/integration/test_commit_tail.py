"""Commits read from `__consumer_offsets` on real brokers: each rewind, deletions, transactions; polls in between."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Producer, TopicPartition

from agent.model.observations.kafka import Commit, GroupState
from agent.sources.kafka.tail.progress import BEHIND_MS
from testbed.agent import Agent
from testbed.groups import delete_group
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.committing import (
    Groups,
    home,
    log_end,
    offsets,
    wait_for_offsets,
    wait_for_positions,
    wait_until_followed,
)
from tests.integration.scenes import named, now
from tests.integration.seen import Seen, watching
from tests.parameters import KAFKA_VERSIONS

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

Create: TypeAlias = Callable[[Cluster], str]


@pytest.fixture
def create() -> Iterator[Create]:
    """Create topics; when the test ends they go, and with them the commits beyond their ends."""
    created: list[tuple[Cluster, str]] = []

    def create(cluster: Cluster) -> str:
        topic = named("topic")
        cluster.create_topic(topic, 1)
        created.append((cluster, topic))
        return topic

    yield create
    for cluster, topic in created:
        cluster.delete_topic(topic)


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_each_rewind_is_observed_however_short(cluster: Cluster, create: Create) -> None:
    topic = create(cluster)
    group, late = f"{topic}-group", f"{topic}-late"
    groups, seen = Groups(cluster, topic), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        seen.mark()
        groups.commit(group, 5_100, 300, 5_300, 400, 5_400)  # all between two polls
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


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_groups_are_in_the_partitions_where_they_are_looked_for(cluster: Cluster, create: Create) -> None:
    topic = create(cluster)
    groups = Groups(cluster, topic)
    for group in (f"{topic}-{number}" for number in range(20)):
        groups.commit(group, 1)
        end = log_end(cluster, home(group))
        groups.commit(group, 2)
        assert log_end(cluster, home(group)) == end + 1


@pytest.mark.parametrize("cluster", ["kafka_3_9", "kafka_4_1"], indirect=True)
def test_each_rewind_during_downtime_is_observed_with_its_time(cluster: Cluster, create: Create) -> None:
    topic = create(cluster)
    group, idle = f"{topic}-group", f"{topic}-idle"
    groups, before, seen = Groups(cluster, topic), Seen(), Seen()
    groups.commit(group, 5_000)
    groups.commit(idle, 70)
    with watching(cluster, topic, before, commits="tail") as source:
        wait_until_followed(source, group, idle)
        groups.commit(group, 4_000, 5_100)
        wait_for_positions(source, before, cluster, group, idle)
        groups.commit(group, 5_150, 5_050, 5_120)  # after the position in the journal
        wait_for_offsets(source, before, group, [5_150, 5_050, 5_120])
    begin = now()
    groups.commit(group, 5_130, 300, 5_200, 5_300, 400, 5_400)
    end = now()
    with watching(cluster, topic, seen, before.latest, commits="tail") as source:
        assert source.reads_log_of(group)
        wait_for_offsets(source, seen, group, [5_300, 400, 5_400])
        wait_until_followed(source, group, idle)
        groups.commit(group, 10)
        groups.commit(idle, 60)
        wait_for_offsets(source, seen, group, [10])
        wait_for_offsets(source, seen, idle, [60])
    observed = [commit for commit in seen.all(Commit) if commit.group == group]
    second_of = {commit.offset: commit.at // 1_000 for commit in observed}
    progress = [5_200] if second_of.get(5_200, second_of[5_300]) < second_of[5_300] else []  # the last of its second
    assert [commit.offset for commit in observed] == [5_130, 300, *progress, 5_300, 400, 5_400, 10]
    assert all(commit.since is None for commit in observed)
    assert all(begin <= commit.at <= end for commit in observed[:-1])
    assert [commit.offset for commit in seen.all(Commit) if commit.group == idle] == [60]


def test_a_rewind_while_the_agent_is_suspended_is_reported(
    kafka_3_9: Cluster, create: Create, slack: Slack, tmp_path: Path
) -> None:
    topic = create(kafka_3_9)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5_000)
    group = f"{topic}-group"
    groups = Groups(kafka_3_9, topic)
    groups.commit(group, 4_000)
    only = {"include": [f"{topic}*"]}
    main = {"bootstrap_servers": kafka_3_9.bootstrap_servers, "commits": "tail", "groups": only, "topics": only}
    clusters = {"main": main}
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


def test_commits_of_a_transaction_count_when_it_is_committed(kafka_3_9: Cluster, create: Create) -> None:
    """While it is open, the log behind it cannot be read: groups of that partition are polled."""
    topic = create(kafka_3_9)
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
