"""The Kafka source against real brokers: observations, availability, and brokers that hang."""

import os
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from structlog.testing import capture_logs

from agent.model.observations.base import Availability, Available, Observation, Unavailable
from agent.model.observations.kafka import (
    BrokerRegistration,
    ClusterSettings,
    Commit,
    GroupState,
    LogOffsets,
    PartitionState,
    TopicSettings,
)
from testbed.consumers import SubscribedConsumer
from testbed.groups import delete_group
from testbed.kafka import Cluster
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import named, now
from tests.integration.seen import Seen, watching
from tests.parameters import KAFKA_VERSIONS

pytestmark = pytest.mark.integration


def _commit(cluster: Cluster, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Commit as a group without members; with a consumer: AdminClient aborts if the coordinator has just moved."""
    requested = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})

    def try_commit() -> bool:
        try:
            committed = consumer.commit(offsets=requested, asynchronous=False)
        except KafkaException:
            return False  # the coordinator is loading, or moving
        return all(partition.error is None for partition in committed)

    wait_until(try_commit, f"{group} to commit")
    consumer.close()


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_all_facts_about_a_cluster_are_observed(cluster: Cluster) -> None:
    """In a batch, partitions come before groups, then log offsets, then commits."""
    name, seen = named("all"), Seen()
    cluster.create_topic(name, assignment={0: [2005, 2011], 1: [2011, 2024]})
    fill(cluster.bootstrap_servers, [(name, 0), (name, 1)], records=100)
    _commit(cluster, f"{name}-simple", {(name, 1): 40})
    with (
        SubscribedConsumer(cluster.bootstrap_servers, f"{name}-member", [name], commit_ms=100) as consumer,
        watching(cluster, name, seen) as source,
    ):
        wait_until(lambda: consumer.committed.get((name, 0)) == 100, "the consumer's last commit")
        seen.wait_for(source, Commit, group=f"{name}-member", topic=name, partition=0, offset=100)
        seen.wait_for(source, Commit, group=f"{name}-simple", topic=name, partition=1, offset=40)
        seen.wait_for(source, LogOffsets, topic=name, partition=1, log_start=0, log_end=100)
        state = seen.wait_for(source, PartitionState, topic=name, partition=0)
        stable = seen.wait_for(source, GroupState, group=f"{name}-member", state="Stable")
        empty = seen.wait_for(source, GroupState, group=f"{name}-simple", state="Empty")
    assert (state.leader, state.replicas) == (2005, (2005, 2011))
    assert (state.topic_id is None) == (cluster.version == "0.11.0.0")
    assert [member.partitions for member in stable.members] == [((name, 0), (name, 1))]
    assert empty.members == ()
    assert [fact.broker for fact in seen.all(BrokerRegistration, session=None, epoch=-1)] == [2005, 2011, 2024]
    assert seen.all(Unavailable) == []
    settings = seen.all(TopicSettings, topic=name)
    assert [(fact.cleanup_policy, fact.retention_ms) for fact in settings] == [("delete", 604_800_000)]
    versions = {"0.11.0.0": "0.11.0", "3.9.1": "3.9", "4.1.1": "4.0"}
    assert [fact.version for fact in seen.all(ClusterSettings)] == [versions[cluster.version]]
    assert {fact.type for fact in seen.all(GroupState)} == {None if cluster.version == "0.11.0.0" else "classic"}
    order = [ClusterSettings, TopicSettings, PartitionState, BrokerRegistration, GroupState, LogOffsets, Commit]
    for batch in seen.batches:
        kinds = [order.index(type(fact)) for fact in batch]
        assert kinds == sorted(kinds)


def test_log_ends_are_never_older_than_the_commits(kafka_3_9: Cluster) -> None:
    """In a batch log ends are read after the commits."""
    name, seen = named("order"), Seen()
    kafka_3_9.create_topic(name, assignment={0: [2005]})
    _commit(kafka_3_9, name, {(name, 0): 0})
    with watching(kafka_3_9, name, seen) as source:
        for offset in range(1, 6):
            fill(kafka_3_9.bootstrap_servers, [(name, 0)], records=10)
            _commit(kafka_3_9, name, {(name, 0): offset})
            seen.wait_for(source, Commit, offset=offset)
            seen.wait_for(source, LogOffsets, log_end=offset * 10)
    # A response that comes late is in a batch of its own.
    both = [
        (end, commit)
        for batch in seen.batches
        for end in batch
        for commit in batch
        if isinstance(end, LogOffsets) and isinstance(commit, Commit)
    ]
    assert both
    assert all(end.at >= commit.at for end, commit in both)


def test_a_frozen_leader_does_not_delay_other_partitions(kafka_3_9: Cluster) -> None:
    """While a broker hangs, only its own partition is unavailable."""
    name, seen = named("frozen"), Seen()
    kafka_3_9.create_topic(name, assignment={0: [2005], 1: [2011]})
    _commit(kafka_3_9, name, {(name, 1): 0})
    with watching(kafka_3_9, name, seen) as source:
        seen.wait_for(source, LogOffsets, topic=name, partition=0)
        seen.wait_for(source, Commit, offset=0)
        kafka_3_9.freeze(2005)
        outage = seen.wait_for(source, Unavailable, topic=name, partition=0)
        polls = []
        for offset in range(1, 5):
            fill(kafka_3_9.bootstrap_servers, [(name, 1)], records=1)
            _commit(kafka_3_9, name, {(name, 1): offset})
            begin = time.monotonic()
            source.poll()
            polls.append(time.monotonic() - begin)
        kafka_3_9.thaw(2005)
        recovery = seen.wait_for(source, Available, topic=name, partition=0)
    assert "leader" in outage.reason
    assert sorted(polls)[1] < 1, f"polls of {polls} s beside a frozen broker"
    assert [commit.offset for commit in seen.all(Commit)] == [0, 1, 2, 3, 4]
    assert [offsets.log_end for offsets in seen.all(LogOffsets, partition=1)] == [0, 1, 2, 3, 4]
    assert {fact.partition for fact in seen.all(Availability)} == {0}
    assert recovery.start <= recovery.at


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_a_group_is_unavailable_while_its_coordinator_is_down(cluster: Cluster) -> None:
    """It hangs until the cluster drops it. Once up it is used again, which librdkafka alone would not do."""
    name, seen = named("coordinator"), Seen()
    cluster.create_topic(name, assignment={0: [2011]})
    _commit(cluster, name, {(name, 0): 7})
    with watching(cluster, name, seen) as source:
        seen.wait_for(source, Commit, offset=7)
        cluster.freeze(2024)
        outage = seen.wait_for(source, Unavailable, group=name)
        fill(cluster.bootstrap_servers, [(name, 0)], records=9)
        seen.wait_for(source, LogOffsets, log_end=9)
        seen.wait_for(source, BrokerRegistration, broker=2024, epoch=None)
        cluster.thaw(2024)
        recovery = seen.wait_for(source, Available, group=name)
        cluster.wait_until_registered(2024)
        cluster.wait_until_in_sync()
        _commit(cluster, name, {(name, 0): 8})
        seen.wait_for(source, Commit, offset=8)
    assert "coordinator" in outage.reason
    assert outage.at < recovery.at
    assert [commit.offset for commit in seen.all(Commit)] == [7, 8]


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_a_recreated_topic_precedes_its_offsets(cluster: Cluster) -> None:
    """The deletion is emitted, then another topic id (from 2.8 on), then the new log's offsets."""
    name, seen = named("again"), Seen()
    cluster.create_topic(name, assignment={0: [2005]})
    fill(cluster.bootstrap_servers, [(name, 0)], records=100)
    with watching(cluster, name, seen) as source:
        before = seen.wait_for(source, PartitionState, topic=name)
        seen.wait_for(source, LogOffsets, log_end=100)
        cluster.delete_topic(name)
        deleted = seen.wait_for(source, PartitionState, topic=name, replicas=())
        seen.mark()
        cluster.create_topic(name, assignment={0: [2011]})
        after = seen.wait_for(source, PartitionState, topic=name, leader=2011)
        seen.wait_for(source, LogOffsets, log_end=0)
    assert deleted.topic_id == before.topic_id
    assert (after.topic_id == before.topic_id) == (cluster.version == "0.11.0.0")
    kinds = [type(fact) for batch in seen.batches for fact in batch if isinstance(fact, PartitionState | LogOffsets)]
    assert kinds.index(PartitionState, 3) < len(kinds) - 1
    assert kinds[-1] is LogOffsets


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_deleted_offsets_are_emitted_as_none(cluster: Cluster) -> None:
    """A deleted topic's committed offsets become None, at some time since their old values were last seen."""
    name, seen = named("deleted"), Seen()
    cluster.create_topic(name, assignment={0: [2005]})
    _commit(cluster, name, {(name, 0): 3})
    with watching(cluster, name, seen) as source:
        commit = seen.wait_for(source, Commit, offset=3)
        cluster.admin.delete_topics([name])[name].result(timeout=30)
        deleted = seen.wait_for(source, Commit, offset=None)
    assert deleted.since is not None
    assert commit.at <= deleted.since <= deleted.at


def test_a_deleted_group_is_dead(kafka_3_9: Cluster) -> None:
    """Its offsets are None and its state is Dead, once."""
    name, seen = named("dead"), Seen()
    kafka_3_9.create_topic(name, assignment={0: [2005]})
    _commit(kafka_3_9, name, {(name, 0): 3})
    with watching(kafka_3_9, name, seen) as source:
        seen.wait_for(source, Commit, offset=3)
        delete_group(kafka_3_9.bootstrap_servers, name)
        seen.wait_for(source, Commit, offset=None)
        seen.wait_for(source, GroupState, state="Dead")
        source.poll()
    assert len(seen.all(GroupState, state="Dead")) == 1


def test_changes_during_downtime_are_emitted_at_start(kafka_3_9: Cluster) -> None:
    name, seen = named("known"), Seen()
    kafka_3_9.create_topic(name, assignment={0: [2005]})
    at = now()
    known = [
        Commit(at=at, cluster="main", group=name, topic=name, partition=0, offset=9),
        BrokerRegistration(at=at, cluster="main", broker=99, session=None, epoch=-1),
        Unavailable(at=at, source="kafka", cluster="main", group=name, reason="timed out"),
    ]
    with watching(kafka_3_9, name, seen, known) as source:
        deleted = seen.wait_for(source, Commit, group=name, offset=None)
        gone = seen.wait_for(source, BrokerRegistration, broker=99, epoch=None)
        seen.wait_for(source, Available, group=name)
    assert deleted.since == gone.since == at


def test_an_unreachable_cluster_is_unavailable_once(kafka_4_1: Cluster) -> None:
    """All brokers hang, then resume: one Unavailable and one Available for the source."""
    name, seen = named("reach"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005]})
    with watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, LogOffsets, topic=name)
        for broker in kafka_4_1.brokers:
            kafka_4_1.freeze(broker)
        seen.wait_for(source, Unavailable, topic=None, group=None)
        for _ in range(3):
            source.poll()
        for broker in kafka_4_1.brokers:
            kafka_4_1.thaw(broker)
        seen.wait_for(source, Available, topic=None, group=None)
        kafka_4_1.wait_until_in_sync()
        fill(kafka_4_1.bootstrap_servers, [(name, 0)], records=5)
        seen.wait_for(source, LogOffsets, log_end=5)
    assert len(seen.outages(topic=None, group=None)) == 1


def test_a_crashed_admin_process_is_restarted(kafka_4_1: Cluster) -> None:
    """librdkafka may abort the process: at most one Unavailable, then the source is available again."""
    name, seen = named("client"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005]})
    with watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, LogOffsets, topic=name)
        process = source._client._process
        assert process is not None
        os.kill(process.pid, signal.SIGABRT)
        process.wait()
        fill(kafka_4_1.bootstrap_servers, [(name, 0)], records=5)
        seen.wait_for(source, LogOffsets, log_end=5)
    assert len(seen.outages()) <= 1
    assert len(seen.outages()) == len(seen.all(Available))


def test_a_group_is_read_from_its_new_coordinator(tmp_path: Path) -> None:
    """A coordinator dies, another takes over, the first comes back; the admin process does not crash."""
    name, seen = named("moved"), Seen()
    with (
        Cluster("3.9.1", [1, 2, 3], workdir=tmp_path, offsets_on=[3, 2]) as cluster,
        capture_logs() as logs,
        watching(cluster, name, seen) as source,
    ):
        cluster.create_topic(name, assignment={0: [1]})
        _commit(cluster, name, {(name, 0): 1})
        seen.wait_for(source, Commit, offset=1)
        cluster.kill(3)
        seen.wait_for(source, BrokerRegistration, broker=3, epoch=None)
        _commit(cluster, name, {(name, 0): 2})
        seen.wait_for(source, Commit, offset=2)
        cluster.start(3)
        cluster.wait_until_in_sync()
        for partition in range(4):
            cluster.wait_for_leader("__consumer_offsets", partition, 3)
        _commit(cluster, name, {(name, 0): 3})
        seen.wait_for(source, Commit, offset=3)
    assert [commit.offset for commit in seen.all(Commit)] == [1, 2, 3]
    assert [line for line in logs if line["event"] == "kafka_client_exited"] == []


def test_closing_takes_no_time_while_brokers_hang(kafka_4_1: Cluster) -> None:
    """Nothing is emitted afterwards."""
    name, seen = named("close"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005]})
    with watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, LogOffsets, topic=name)
        for broker in kafka_4_1.brokers:
            kafka_4_1.freeze(broker)
        source.poll()
        process = source._client._process
        assert process is not None
        begin = time.monotonic()
        source.close()
        assert time.monotonic() - begin < 3
        seen.mark()
        source.poll()
        assert seen.all(Observation) == []
        wait_until(lambda: process.poll() is not None, "the client process to end")
