"""The Kafka source against real brokers: what only newer protocols show, and transactions."""

import pytest
from confluent_kafka import Consumer, ShareConsumer
from kafka.admin import KafkaAdminClient

from agent.model.observations.base import Unavailable
from agent.model.observations.kafka import Commit, GroupState, LastStableOffset, OpenTransaction, PartitionState
from agent.sources.kafka.state import stable_offsets
from testbed.kafka import Cluster
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import named, open_transaction
from tests.integration.seen import Seen, watching
from tests.integration.test_kafka_source import _commit

pytestmark = pytest.mark.integration


def test_leader_epochs_and_eligible_leader_replicas_are_observed(kafka_4_1: Cluster) -> None:
    """KIP-966: a replica that leaves the ISR below min.insync.replicas may still be elected without a loss."""
    name, seen = named("elr"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005, 2011]}, config={"min.insync.replicas": "2"})
    with watching(kafka_4_1, name, seen) as source:
        before = seen.wait_for(source, PartitionState, topic=name)
        kafka_4_1.kill(2011)
        after = seen.wait_for(source, PartitionState, topic=name, isr=(2005,))
    assert (before.elr, after.elr) == ((), (2011,))
    assert (before.leader_epoch, after.leader_epoch) == (0, 0)


def test_a_reassignment_is_observed_while_it_lasts(kafka_4_1: Cluster) -> None:
    """A throttle keeps the new replica from catching up (KIP-455)."""
    name, seen = named("reassigned"), Seen()
    throttled = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}
    kafka_4_1.create_topic(name, assignment={0: [2005]}, config=throttled)
    fill(kafka_4_1.bootstrap_servers, [(name, 0)], records=50_000)
    with watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, PartitionState, topic=name, adding=(), removing=())
        kafka_4_1.throttle(1)
        kafka_4_1.reassign(name, {0: [2011]})
        seen.wait_for(source, PartitionState, topic=name, adding=(2011,), removing=(2005,))
        kafka_4_1.throttle(100_000_000)
        seen.wait_for(source, PartitionState, topic=name, leader=2011, replicas=(2011,), adding=(), removing=())


def test_a_group_of_the_consumer_protocol_has_its_type(kafka_4_1: Cluster) -> None:
    """KIP-848: type, state and members."""
    name, seen = named("kip848"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005]})
    consumer = Consumer(
        {"bootstrap.servers": kafka_4_1.bootstrap_servers, "group.id": name, "group.protocol": "consumer"}
    )
    consumer.subscribe([name])
    with watching(kafka_4_1, name, seen) as source:

        def is_assigned(state: GroupState) -> bool:
            consumer.poll(0.1)
            return any(member.partitions for member in state.members)

        stable = seen.wait_for(source, GroupState, is_assigned, group=name, state="Stable")
    consumer.close()
    assert stable.type == "consumer"
    assert "Unknown" not in {fact.state for fact in seen.all(GroupState)}


def test_a_rebalance_of_the_consumer_protocol_is_observed(kafka_4_1: Cluster) -> None:
    """KIP-848: the group is Reconciling for as long as a member that must give up a partition is not polled."""
    name, seen = named("kip848"), Seen()
    kafka_4_1.create_topic(name, assignment={0: [2005], 1: [2005]})
    options = {"bootstrap.servers": kafka_4_1.bootstrap_servers, "group.id": name, "group.protocol": "consumer"}
    first, second = Consumer(options), Consumer(options)
    first.subscribe([name])
    with watching(kafka_4_1, name, seen) as source:

        def is_spread(state: GroupState, consumers: tuple[Consumer, ...]) -> bool:
            for consumer in consumers:
                consumer.poll(0.1)
            readers = [member for member in state.members if member.partitions]
            return len(readers) == len(consumers) and sum(len(member.partitions) for member in readers) == 2

        seen.wait_for(source, GroupState, lambda state: is_spread(state, (first,)), group=name, state="Stable")
        second.subscribe([name])
        second.poll(0.1)
        rebalancing = seen.wait_for(source, GroupState, lambda state: state.state != "Stable", group=name)
        seen.wait_for(source, GroupState, lambda state: is_spread(state, (first, second)), group=name, state="Stable")
    first.close()
    second.close()
    assert rebalancing.state in ("Assigning", "Reconciling")
    assert {state.type for state in seen.all(GroupState)} == {"consumer"}


def test_share_offsets_of_4_1_are_refused_once(kafka_4_1: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not report the lag: the group is observed, its offsets are not, and the log says so."""
    name, seen = named("share"), Seen()
    KafkaAdminClient(bootstrap_servers=kafka_4_1.bootstrap_servers.split(",")).update_features(
        {"share.version": ("UPGRADE", 1)}
    )
    kafka_4_1.create_topic(name, assignment={0: [2005]})
    with (
        ShareConsumer({"bootstrap.servers": kafka_4_1.bootstrap_servers, "group.id": name, "log_level": 0}) as consumer,
        watching(kafka_4_1, name, seen) as source,
    ):
        consumer.subscribe([name])
        seen.wait_for(source, GroupState, lambda state: bool(state.members), group=name, type="share")

        def is_logged() -> bool:
            source.poll()
            return "kafka_refuses" in capsys.readouterr().out

        wait_until(is_logged, "the refusal to be logged")
        source.poll()
        source.poll()
    assert "kafka_refuses" not in capsys.readouterr().out
    assert seen.all(Commit) == []
    assert seen.all(Unavailable, group=name) == []


def test_a_transaction_of_a_dead_producer_is_observed(kafka_3_9: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group waits at the last stable offset; the producer and its transactional.id are named; it ends."""
    monkeypatch.setattr(stable_offsets, "_SAMPLE_MS", 2_000)
    monkeypatch.setattr(stable_offsets, "_STANDSTILL_MS", 2_000)
    name, seen = named("open"), Seen()
    kafka_3_9.create_topic(name, assignment={0: [2005]})
    fill(kafka_3_9.bootstrap_servers, [(name, 0)], records=10)
    _commit(kafka_3_9, name, {(name, 0): 10})
    producer = open_transaction(kafka_3_9, name, 0)
    with watching(kafka_3_9, name, seen, watch_partitions=False) as source:
        held_back = seen.wait_for(source, LastStableOffset, topic=name)
        transaction = seen.wait_for(source, OpenTransaction, topic=name)
        producer.abort_transaction(30)
        seen.wait_for(source, LastStableOffset, topic=name, held_back=False)
    assert (held_back.offset, held_back.held_back) == (10, True)
    assert (transaction.start_offset, transaction.transactional_id, transaction.state) == (10, name, "Ongoing")
    assert transaction.last_write_at is not None
    assert seen.all(Unavailable) == []
