"""The Kafka source on Kafka 4.3.1: share groups (KIP-932) and streams groups (KIP-1071)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from agent.model.observations.kafka import Commit, GroupState
from testbed.groups import delete_group, reset_share_group
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import committed, findings, named, watched
from tests.integration.seen import Seen, watching

pytestmark = [pytest.mark.integration, pytest.mark.acceptance]


@pytest.fixture(scope="module")
def kafka_4_3() -> Iterator[Cluster]:
    """A broker of Kafka 4.3.1 under KRaft."""
    with (
        tempfile.TemporaryDirectory(prefix="backflow-kafka-4.3.1-") as folder,
        Cluster("4.3.1", [2005], workdir=Path(folder), config={"transaction.state.log.num.partitions": 4}) as cluster,
    ):
        yield cluster


def _share_group(cluster: Cluster, group: str) -> ShareConsumer:
    """Return a consumer of a share group that begins at the log start."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(30)
    return ShareConsumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})


def _read(consumer: ShareConsumer, records: int) -> None:
    """Read this many records and acknowledge them."""
    read = 0

    def are_read() -> bool:
        nonlocal read
        read += sum(message.error() is None for message in consumer.poll(0.5))
        return read >= records

    wait_until(are_read, f"{records} records to be read")
    consumer.commit_sync()


def test_a_share_group_is_observed(kafka_4_3: Cluster, tmp_path: Path) -> None:
    """It is at the log end when it has processed everything, although its start offset is not."""
    name, seen = named("share"), Seen()
    kafka_4_3.create_topic(name)
    fill(kafka_4_3.bootstrap_servers, [(name, 0)], records=2_000)
    with watching(kafka_4_3, name, seen) as source:
        with _share_group(kafka_4_3, name) as consumer:
            consumer.subscribe([name])
            _read(consumer, 2_000)
            state = seen.wait_for(
                source, GroupState, lambda fact: any(member.partitions for member in fact.members), group=name
            )
            seen.wait_for(source, Commit, group=name, offset=2_000)
        seen.wait_for(source, GroupState, group=name, state="Empty")
        reset_share_group(kafka_4_3.bootstrap_servers, name, name, tmp_path)
        seen.mark()
        seen.wait_for(source, Commit, group=name, offset=0)
        delete_group(kafka_4_3.bootstrap_servers, name)
        seen.wait_for(source, GroupState, group=name, state="Dead")
        seen.wait_for(source, Commit, group=name, offset=None)
    assert (state.type, state.state) == ("share", "Stable")


def test_a_reset_share_group_is_an_operators_rewind(kafka_4_3: Cluster, tmp_path: Path) -> None:
    name = named("share")
    kafka_4_3.create_topic(name)
    fill(kafka_4_3.bootstrap_servers, [(name, 0)], records=5_000)
    with watched(kafka_4_3, tmp_path) as agent:
        with _share_group(kafka_4_3, name) as consumer:
            consumer.subscribe([name])
            _read(consumer, 5_000)
            agent.wait_for(committed(name, 5_000), "its position at the log end")
        agent.wait_for(
            lambda fact: isinstance(fact, GroupState) and fact.group == name and fact.state == "Empty", "its end"
        )
        reset_share_group(kafka_4_3.bootstrap_servers, name, name, tmp_path)
        incident = agent.wait_for_incident(
            lambda incident: bool(findings([incident], "offset_rewind", group=name)), "the rewind"
        )
    (rewind,) = findings([incident], "offset_rewind", group=name)
    assert (rewind["severity"], rewind["labels"]) == ("info", ["to_earliest", "operator_reset"])
    assert (rewind["previous"]["offset"], rewind["current"]["offset"]) == (5_000, 0)


def test_a_streams_group_is_observed(kafka_4_3: Cluster, tmp_path: Path) -> None:
    """Type, tasks and commits of an application with group.protocol=streams."""
    name, seen = named("streams"), Seen()
    kafka_4_3.create_topic(name, 2)
    fill(kafka_4_3.bootstrap_servers, [(name, 0), (name, 1)], records=100)
    app = StreamsApp("4.3.1", kafka_4_3.bootstrap_servers, name, tmp_path, input_topic=name, group_protocol="streams")
    with app, watching(kafka_4_3, name, seen) as source:
        state = seen.wait_for(
            source, GroupState, lambda fact: any(len(member.tasks) == 2 for member in fact.members), group=name
        )
        for partition in (0, 1):
            seen.wait_for(source, Commit, group=name, topic=name, partition=partition, offset=100)
        app.stop()
        seen.wait_for(source, GroupState, group=name, state="Empty")
    (member,) = state.members
    assert (state.type, state.state) == ("streams", "Stable")
    assert (member.partitions, member.tasks) == (((name, 0), (name, 1)), ("0_0", "0_1"))
