"""Commits read from `__consumer_offsets` through faults of brokers, log and agent: each rewind is observed."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from agent.model.batches import CommitKey
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, OffsetsPosition, OffsetsUnread
from agent.sources.kafka.source import KafkaSource
from agent.sources.kafka.tail.records import encode_key
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.offsets_topic import encode_commit, offsets_producer
from testbed.waiting import wait_until
from tests.integration.committing import (
    Groups,
    home,
    log_end,
    wait_for_offsets,
    wait_for_positions,
    wait_until_followed,
)
from tests.integration.scenes import named, now
from tests.integration.seen import Seen, watching

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

_BATCH = 100_000


def poll_until(source: KafkaSource, condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds."""

    def holds() -> bool:
        source.poll()
        return condition()

    wait_until(holds, what, 60)


def commit_once_possible(groups: Groups, group: str, *offsets: int) -> None:
    """Commit these offsets one after the other, each as soon as the group has a coordinator."""
    for offset in offsets:

        def is_committed(offset: int = offset) -> bool:
            try:
                groups.commit(group, offset)
            except KafkaException:
                return False
            return True

        wait_until(is_committed, f"{group} to commit {offset}", 90)


def assert_followed_throughout(source: KafkaSource, seen: Seen, group: str, wanted: list[int]) -> None:
    """Poll until these offsets have been observed last, all of them in the log."""
    wait_for_offsets(source, seen, group, wanted)
    assert source.reads_log_of(group)
    commits = [commit for commit in seen.all(Commit) if commit.group == group and commit.offset in wanted]
    assert all(commit.since is None for commit in commits)


def test_a_killed_broker_hides_no_rewind(replicated_offsets: Cluster) -> None:
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 1, replication=3)
    group = f"{topic}-group"
    groups, seen = Groups(cluster, topic), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        seen.mark()
        groups.commit(group, 5_100, 300)
        leader = cluster.wait_for_leader(OFFSETS_TOPIC, home(group)).leader
        cluster.kill(leader)
        commit_once_possible(groups, group, 5_200, 400, 5_300, 500, 5_400)
        assert_followed_throughout(source, seen, group, [5_100, 300, 5_200, 400, 5_300, 500, 5_400])
        cluster.repair()
        groups.commit(group, 600, 5_500)
        assert_followed_throughout(source, seen, group, [500, 5_400, 600, 5_500])


def test_a_reassignment_hides_no_rewind(replicated_offsets: Cluster) -> None:
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 1)
    group = f"{topic}-group"
    groups, seen = Groups(cluster, topic), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        seen.mark()
        replicas = cluster.wait_for_leader(OFFSETS_TOPIC, home(group)).replicas
        wanted = []
        for turn, target in enumerate(replicas[1:], 1):
            cluster.reassign(OFFSETS_TOPIC, {home(group): [target]})
            for offset in (5_000 + turn, 100 + turn, 6_000 + turn):
                commit_once_possible(groups, group, offset)
                wanted.append(offset)
            cluster.wait_for_leader(OFFSETS_TOPIC, home(group), target, isr=[target])
            for offset in (200 + turn, 7_000 + turn):
                commit_once_possible(groups, group, offset)
                wanted.append(offset)
        assert_followed_throughout(source, seen, group, wanted)
        cluster.reassign(OFFSETS_TOPIC, {home(group): replicas})
        cluster.wait_for_leader(OFFSETS_TOPIC, home(group), isr=replicas)


def write_commits(cluster: Cluster, group: str, topic: str, commits: int, rewinds: int) -> list[int]:
    """Write so many commits of 100 partitions; return the offsets to which partition 0 rewound."""
    producer = offsets_producer(cluster.bootstrap_servers, linger_ms=50, queue_buffering_max_messages=2 * _BATCH)
    keys = [encode_key(CommitKey(group, topic, partition)) for partition in range(100)]
    every = commits // rewinds
    low = []
    for number in range(commits):
        offset = 10_000 + number
        if number % every == every // 2:
            offset = 1_000 + number // every
            low.append(offset)
        key = keys[0] if offset < 10_000 else keys[number % 100]
        producer.produce(OFFSETS_TOPIC, key=key, value=encode_commit(offset, now()), partition=home(group))
        if number % _BATCH == _BATCH - 1:
            assert producer.flush(120) == 0
    assert producer.flush(120) == 0
    return low


def commit_to_all(groups: Groups, group: str, topic: str) -> None:
    """Commit 25,000 times: in each of the 100 partitions of a topic, again and again."""
    for offset in range(10_000, 10_250):
        everywhere = [TopicPartition(topic, partition, offset) for partition in range(100)]
        groups.consumer(group).commit(offsets=everywhere, asynchronous=False)


def test_compaction_hides_no_rewind(replicated_offsets: Cluster) -> None:
    """While the tail reads, and after a restart: the log then has holes, but only of what was superseded."""
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 100)
    group = f"{topic}-group"
    busy = next(name for name in map(f"{topic}-busy-{{}}".format, range(1_000)) if home(name) == home(group))
    groups, before, seen = Groups(cluster, topic), Seen(), Seen()
    groups.commit(group, 5_000)
    compacted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    cluster.alter_topic(OFFSETS_TOPIC, compacted)
    with watching(cluster, topic, before, commits="tail") as source:
        wait_until_followed(source, group)
        before.mark()
        wanted = []
        for turn in range(4):
            commit_to_all(groups, busy, topic)
            groups.commit(group, 6_000 + turn, 100 + turn)
            wanted += [6_000 + turn, 100 + turn]
        wait_until_compacted(cluster, home(group))
        groups.commit(group, 6_010, 110)
        wait_for_positions(source, before, cluster, group)
    assert [offset for offset in offsets_of(before, group, topic) if offset in wanted] == wanted
    commit_to_all(groups, busy, topic)
    wait_until_compacted(cluster, home(group))
    groups.commit(group, 6_020, 120)
    with watching(cluster, topic, seen, before.latest, commits="tail") as source:
        poll_until(source, lambda: offsets_of(seen, group, topic)[-2:] == [6_020, 120], "the last rewind")
        assert seen.all(OffsetsUnread) == []


def offsets_of(seen: Seen, group: str, topic: str) -> list[int | None]:
    """Return the offsets of a topic observed of a group, in order, without those that confirm the one before."""
    observed: list[int | None] = []
    for commit in seen.all(Commit, group=group, topic=topic):
        if observed[-1:] != [commit.offset]:
            observed.append(commit.offset)
    return observed


def wait_until_compacted(cluster: Cluster, partition: int) -> None:
    """Wait until the cleaner of the partition's leader has run since now."""
    leader = cluster.wait_for_leader(OFFSETS_TOPIC, partition).leader
    checkpoint = cluster.log_directory(leader) / "cleaner-offset-checkpoint"

    def cleaned_up_to() -> int:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        found = [line.split() for line in lines if line.startswith(f"{OFFSETS_TOPIC} {partition} ")]
        return int(found[0][2]) if found else 0

    end = log_end(cluster, partition)
    # A segment of 1 MiB holds some 15,000 of the records; the active one is not cleaned.
    wait_until(lambda: cleaned_up_to() > end - 30_000 and cleaned_up_to() > 0, "the cleaner to run", 90)


def test_a_range_removed_during_downtime_is_reported(replicated_offsets: Cluster) -> None:
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 1)
    group = f"{topic}-group"
    groups, before, seen = Groups(cluster, topic), Seen(), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, before, commits="tail") as source:
        wait_until_followed(source, group)
        wait_for_positions(source, before, cluster, group)
    first = max(fact.next_offset for fact in before.all(OffsetsPosition, partition=home(group)))
    groups.commit(group, 5_100, 300, 5_200)
    start = remove_all(cluster, home(group))
    groups.commit(group, 5_250, 5_040)
    with watching(cluster, topic, seen, before.latest, commits="tail") as source:
        unread = seen.wait_for(source, OffsetsUnread, partition=home(group))
        assert (unread.first_offset, unread.last_offset) == (first, start - 1)
        wait_for_offsets(source, seen, group, [5_250, 5_040])
        assert source.reads_log_of(group)


def remove_all(cluster: Cluster, partition: int) -> int:
    """Let retention remove all records of a partition of the offsets topic, and return its log start offset."""
    end = log_end(cluster, partition)
    cluster.alter_topic(OFFSETS_TOPIC, {"cleanup.policy": "delete", "retention.ms": "1"})
    wait_until(lambda: cluster.log_start(OFFSETS_TOPIC, partition) == end, "retention to remove the records", 90)
    cluster.alter_topic(OFFSETS_TOPIC, {"cleanup.policy": "compact"})
    return end


def test_a_million_commits_while_the_agent_is_suspended_hide_no_rewind(
    replicated_offsets: Cluster, tmp_path: Path
) -> None:
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 1)
    group = f"{topic}-group"
    groups = Groups(cluster, topic)
    groups.commit(group, 5_000)
    clusters = {"main": {"bootstrap_servers": cluster.bootstrap_servers, "commits": "tail"}}
    with Agent(tmp_path / "agent", clusters) as agent:
        agent.wait_until_watching()
        agent.wait_for(is_position(home(group)), "the partition to be read")
        following = iter(range(5_001, 9_000))

        def is_followed() -> bool:
            groups.commit(group, next(following))
            commits = [fact for fact in agent.observations() if isinstance(fact, Commit) and fact.group == group]
            return any(commit.since is None for commit in commits[1:])

        wait_until(is_followed, "commits to be read in the log", 60, every=1)
        agent.freeze()
        begin = time.monotonic()
        low = write_commits(cluster, group, topic, 1_000_000, 20)
        wait_until(lambda: time.monotonic() - begin > 30, "30 s to pass", 60)
        agent.thaw()

        def observed() -> list[int]:
            facts = [fact for fact in agent.observations() if isinstance(fact, Commit) and fact.group == group]
            return [fact.offset for fact in facts if fact.partition == 0 and fact.offset in low]

        wait_until(lambda: observed()[-1:] == low[-1:], "the last rewind", 120, every=2)
        assert observed() == low


def is_position(partition: int) -> Callable[[object], bool]:
    """Return a predicate: a position of that partition."""
    return lambda fact: isinstance(fact, OffsetsPosition) and fact.partition == partition


def test_partitions_that_are_added_hide_no_rewind(replicated_offsets: Cluster) -> None:
    """Coordinators use the earlier count until they are restarted; afterwards groups have no offsets."""
    cluster, topic = replicated_offsets, named("topic")
    cluster.create_topic(topic, 1)
    group = f"{topic}-group"
    groups, seen = Groups(cluster, topic), Seen()
    groups.commit(group, 5_000)
    with watching(cluster, topic, seen, commits="tail") as source:
        wait_until_followed(source, group)
        seen.mark()
        count = 8
        cluster.admin.create_partitions([NewPartitions(OFFSETS_TOPIC, count)])[OFFSETS_TOPIC].result(30)
        for partition in range(4, count):
            cluster.wait_for_leader(OFFSETS_TOPIC, partition)
        groups.commit(group, 5_100, 300, 5_200)
        assert_followed_throughout(source, seen, group, [5_100, 300, 5_200])
        poll_until(
            source,
            lambda: {fact.partition for fact in seen.all(OffsetsPosition, partitions=count)} == set(range(count)),
            "positions of all partitions",
        )
        groups.commit(group, 400)
        assert_followed_throughout(source, seen, group, [300, 5_200, 400])
    late = Seen()
    groups.commit(group, 5_300, 450)
    with watching(cluster, topic, late, seen.latest, commits="tail") as source:
        wait_for_offsets(source, late, group, [5_300, 450])
