"""Many groups at once: what batches show of them, and whether librdkafka shows the same."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from agent.model.observations.base import Available, Unavailable
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client_choice import MANY_GROUPS
from testbed.consumers import SubscribedConsumer
from testbed.groups import delete_group, delete_groups, move_all_offsets, move_offsets
from testbed.kafka import Cluster
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.asking import admin_client, ask
from tests.integration.scenes import named
from tests.integration.seen import Seen, watching
from tests.parameters import KAFKA_VERSIONS

pytestmark = pytest.mark.integration

_MANY = 3 * MANY_GROUPS
_PARTITIONS = 3


@contextmanager
def _groups(cluster: Cluster, name: str, count: int, offset: int) -> Iterator[list[str]]:
    """A topic, and groups without members that have committed an offset in each of its partitions."""
    cluster.create_topic(name, _PARTITIONS)
    fill(cluster.bootstrap_servers, [(name, partition) for partition in range(_PARTITIONS)], records=100)
    groups = [f"{name}-{number:03d}" for number in range(count)]
    move_all_offsets(cluster.bootstrap_servers, groups, name, offset, range(_PARTITIONS))
    yield groups
    if cluster.version != "0.11.0.0":  # it cannot delete groups; of the others, tests list all groups
        delete_groups(cluster.bootstrap_servers, groups)


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_batches_show_what_librdkafka_shows(cluster: Cluster) -> None:
    """Of groups with members, of both protocols, without, without offsets, and unknown ones; also of old brokers."""
    name = named("batches")
    protocols = ["classic", "consumer"] if cluster.version == "4.1.1" else ["classic"]
    count = MANY_GROUPS if cluster.version == "0.11.0.0" else _MANY  # it keeps them, and later tests poll them all
    with _groups(cluster, name, count, 40) as groups, ExitStack() as running:
        consumers = [
            running.enter_context(
                SubscribedConsumer(cluster.bootstrap_servers, f"{name}-{kind}", [name], commit_ms=100, protocol=kind)
            )
            for kind in protocols
        ]
        wait_until(lambda: all(sum(one.committed.values()) == 300 for one in consumers), "all commits")
        special = [f"{name}-{kind}" for kind in protocols] + [f"{name}-unknown"]
        requests: list[protocol.Request] = []
        for group in [*special, *groups[:5]]:
            requests += [protocol.DescribeGroup(group), protocol.ListCommits(group)]
        others = [protocol.ListCommits(group) for group in groups[5:]]
        with admin_client(cluster) as one_by_one, admin_client(cluster) as batched:
            expected = ask(one_by_one, requests)
            assert ask(batched, [*requests, *others])[: len(requests)] == expected
            again = [msgspec.structs.replace(request, complete=False) for request in [*requests, *others]]
            repeated = ask(batched, again)
    sent_again = [request for request, result in zip(again, repeated, strict=True) if result != protocol.Unchanged()]
    if cluster.version == "0.11.0.0":
        assert sent_again == again
    else:
        assert sent_again == [protocol.DescribeGroup(f"{name}-unknown", complete=False)]


@pytest.mark.parametrize("cluster", ["kafka_3_9", "kafka_4_1"], indirect=True)
def test_changes_of_one_among_many_groups_are_observed(cluster: Cluster) -> None:
    """It is dated since the last poll, which did not read its offsets in full; the others emit nothing."""
    name, seen = named("among"), Seen()
    with _groups(cluster, name, _MANY, 40) as groups, watching(cluster, name, seen) as source:
        seen.wait_for(source, Commit, lambda _: len({fact.group for fact in seen.all(Commit)}) == _MANY)
        for _ in range(3):
            source.poll()
        seen.mark()
        before = time.time_ns() // 1_000_000
        source.poll()
        move_offsets(cluster.bootstrap_servers, groups[7], name, 10, range(_PARTITIONS))
        commit = seen.wait_for(source, Commit, offset=10)
        assert commit.since is not None
        assert commit.since >= before
        delete_group(cluster.bootstrap_servers, groups[8])
        seen.wait_for(source, GroupState, group=groups[8], state="Dead")
        seen.wait_for(source, Commit, group=groups[8], offset=None)
        move_offsets(cluster.bootstrap_servers, groups[8], name, 40, range(_PARTITIONS))
        seen.wait_for(source, Commit, group=groups[8], offset=40)
    assert {fact.group for fact in seen.all(Commit)} == {groups[7], groups[8]}
    assert seen.outages() == []


@pytest.mark.acceptance
def test_many_groups_are_read_from_their_new_coordinator(tmp_path: Path) -> None:
    """It dies, another takes over, and the first comes back; the admin process does not crash."""
    name, seen = named("moved"), Seen()
    with (
        Cluster("3.9.1", [1, 2, 3], workdir=tmp_path, offsets_on=[3, 2]) as cluster,
        capture_logs() as logs,
        _groups(cluster, name, _MANY, 40) as groups,
        watching(cluster, name, seen) as source,
    ):
        seen.wait_for(source, Commit, lambda _: len({fact.group for fact in seen.all(Commit)}) == _MANY)
        cluster.kill(3)
        seen.wait_for(source, BrokerRegistration, broker=3, epoch=None)
        move_offsets(cluster.bootstrap_servers, groups[0], name, 10, range(_PARTITIONS))
        seen.wait_for(source, Commit, group=groups[0], offset=10)
        cluster.start(3)
        cluster.wait_until_in_sync()
        for partition in range(4):
            cluster.wait_for_leader("__consumer_offsets", partition, 3)
        move_offsets(cluster.bootstrap_servers, groups[1], name, 20, range(_PARTITIONS))
        seen.wait_for(source, Commit, group=groups[1], offset=20)
    moved = [(fact.group, fact.offset) for fact in seen.all(Commit) if fact.offset != 40]
    assert moved == [(groups[0], 10)] * _PARTITIONS + [(groups[1], 20)] * _PARTITIONS
    assert [line for line in logs if line["event"] == "kafka_client_exited"] == []


def test_groups_of_a_frozen_coordinator_are_unavailable(kafka_3_9: Cluster) -> None:
    """Once it answers, what was committed meanwhile is observed."""
    name, seen = named("frozen"), Seen()
    with _groups(kafka_3_9, name, _MANY, 40) as groups, watching(kafka_3_9, name, seen) as source:
        seen.wait_for(source, Commit, lambda _: len({fact.group for fact in seen.all(Commit)}) == _MANY)
        seen.mark()
        kafka_3_9.freeze(2024)
        outage = seen.wait_for(source, Unavailable, group=groups[-1])
        seen.wait_for(source, BrokerRegistration, broker=2024, epoch=None)
        kafka_3_9.thaw(2024)
        seen.wait_for(source, Available, group=groups[-1])
        kafka_3_9.wait_until_registered(2024)
        kafka_3_9.wait_until_in_sync()
        move_offsets(kafka_3_9.bootstrap_servers, groups[0], name, 10, range(_PARTITIONS))
        seen.wait_for(source, Commit, group=groups[0], offset=10)
    assert "coordinator" in outage.reason
    assert {(fact.group, fact.offset) for fact in seen.all(Commit)} == {(groups[0], 10)}
