"""Many partitions at once: kafka-python shows of them what librdkafka shows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from agent.model.observations.base import Available, Unavailable
from agent.model.observations.kafka import LogOffsets, PartitionState
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client_choice import MANY_LOGS
from agent.sources.kafka.admin.topic_descriptions import _REST_S
from testbed.kafka import Cluster
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.asking import admin_client, ask
from tests.integration.scenes import named, open_transaction
from tests.integration.seen import Seen, watching
from tests.parameters import KAFKA_VERSIONS

pytestmark = pytest.mark.integration

_PARTITIONS = MANY_LOGS + 10
_FILLED = 3


@contextmanager
def _topic(cluster: Cluster) -> Iterator[str]:
    """A topic of many partitions, of which a few have records."""
    name = named("wide")
    cluster.create_topic(name, _PARTITIONS)
    fill(cluster.bootstrap_servers, [(name, partition) for partition in range(_FILLED)], records=100)
    yield name
    cluster.delete_topic(name)


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_kafka_python_shows_what_librdkafka_shows(cluster: Cluster) -> None:
    with _topic(cluster) as name, admin_client(cluster) as few, admin_client(cluster) as many:
        (metadata,) = ask(few, [protocol.FetchMetadata([])])
        assert isinstance(metadata, protocol.Metadata)
        leaders = metadata.topics[name] or {}
        led = {
            broker: [(name, number) for number in leaders if leaders[number] == broker] for broker in metadata.brokers
        }
        requests = [protocol.ListOffsets(broker, places) for broker, places in led.items()]
        expected = [result for request in requests for result in ask(few, [request])]  # one by one, they are not many
        assert ask(many, requests) == expected
        assert ask(many, [protocol.FetchMetadata([])]) in ([metadata], [protocol.Unchanged()])
        again = [msgspec.structs.replace(request, complete=False) for request in requests]
        assert ask(many, again) == [protocol.Offsets([], [])] * len(requests)
        fill(cluster.bootstrap_servers, [(name, 1)], records=7)
        changed = [log for result in ask(many, again) if isinstance(result, protocol.Offsets) for log in result.logs]
        assert [(log.partition, log.log_end) for log in changed] == [(1, 107)]
        producer = open_transaction(cluster, name, 2)
        stable = [protocol.ListStableOffsets(broker, places) for broker, places in led.items()]
        expected = [result for request in stable for result in ask(few, [request])]
        ask(many, again)  # an open transaction has moved a log end
        answers = ask(many, stable)
        for request, answer, shown in zip(stable, answers, expected, strict=True):
            at_end = protocol.StableOffsets([], at_end=True)
            assert answer == (shown if (name, 2) in request.partitions else at_end)
        ends = {
            fact.partition: fact.offset
            for result in expected
            if isinstance(result, protocol.StableOffsets)
            for fact in result.offsets
        }
        assert ends == {number: {0: 100, 1: 107, 2: 100}.get(number, 0) for number in range(_PARTITIONS)}
        producer.abort_transaction(30)


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_changes_of_one_among_many_partitions_are_observed(cluster: Cluster) -> None:
    """They are dated since the last poll, which sent nothing on; other partitions emit nothing."""
    seen = Seen()
    with _topic(cluster) as name, watching(cluster, name, seen) as source:
        seen.wait_for(source, LogOffsets, lambda _: len(seen.all(LogOffsets)) == _PARTITIONS)
        for _ in range(3):
            source.poll()
        seen.mark()
        before = time.time_ns() // 1_000_000
        source.poll()
        cluster.delete_records(name, 2, 40)
        deleted = seen.wait_for(source, LogOffsets, log_start=40)
        assert deleted.since is not None
        assert deleted.since >= before
        fill(cluster.bootstrap_servers, [(name, 1)], records=5)
        seen.wait_for(source, LogOffsets, partition=1, log_end=105)
        assert {fact.partition for fact in seen.all(LogOffsets)} == {1, 2}
        assert seen.all(PartitionState) == []
        assert seen.outages() == []
        cluster.delete_topic(name)
        seen.wait_for(source, PartitionState, partition=0, replicas=())
        seen.mark()
        cluster.create_topic(name, _PARTITIONS)
        seen.wait_for(source, LogOffsets, partition=1, log_end=0)
        recreated = seen.wait_for(source, PartitionState, partition=1)
        assert recreated.replicas != ()


def test_a_move_of_one_among_many_partitions_at_rest_is_observed_with_the_next_metadata(kafka_4_1: Cluster) -> None:
    """Topics at rest are not described in each poll; what changes is dated since the last poll nevertheless."""
    seen = Seen()
    with _topic(kafka_4_1) as name, watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, PartitionState, lambda _: len(seen.all(PartitionState)) == _PARTITIONS)
        rest_from = time.monotonic() + 1.5 * _REST_S

        def are_at_rest() -> bool:
            source.poll()
            return time.monotonic() > rest_from

        wait_until(are_at_rest, "the topics to be at rest")
        before = seen.all(PartitionState, partition=1)[-1]
        seen.mark()
        polled_at = time.time_ns() // 1_000_000
        source.poll()
        target = next(broker for broker in kafka_4_1.brokers if broker != before.leader)
        kafka_4_1.reassign(name, {1: [target]})
        seen.wait_for(source, PartitionState, seconds=_REST_S / 2, partition=1, replicas=(target,), leader=target)
        first_change = seen.all(PartitionState)[0]
        assert first_change.since is not None
        assert first_change.since >= polled_at
        assert {fact.partition for fact in seen.all(PartitionState)} == {1}


def test_partitions_of_a_frozen_leader_are_unavailable(kafka_4_1: Cluster) -> None:
    """Those of the others go on; once it answers, what was written meanwhile is observed."""
    seen = Seen()
    with _topic(kafka_4_1) as name, watching(kafka_4_1, name, seen) as source:
        seen.wait_for(source, LogOffsets, lambda _: len(seen.all(LogOffsets)) == _PARTITIONS)
        leaders = {fact.partition: fact.leader for fact in seen.all(PartitionState)}
        frozen = leaders[0]
        assert frozen is not None
        led, other = (
            next(number for number in range(1, _PARTITIONS) if (leaders[number] == frozen) is is_led)
            for is_led in (True, False)
        )
        seen.mark()
        kafka_4_1.freeze(frozen)
        seen.wait_for(source, Unavailable, topic=name, partition=led)
        fill(kafka_4_1.bootstrap_servers, [(name, other)], records=9)
        seen.wait_for(source, LogOffsets, lambda fact: fact.log_end in {9, 109}, partition=other)
        assert not seen.all(Unavailable, topic=name, partition=other)
        kafka_4_1.thaw(frozen)
        seen.wait_for(source, Available, topic=name, partition=led)
        kafka_4_1.wait_until_registered(frozen)
        kafka_4_1.wait_until_in_sync()
        fill(kafka_4_1.bootstrap_servers, [(name, led)], records=9)
        seen.wait_for(source, LogOffsets, lambda fact: fact.log_end in {9, 109}, partition=led)
