"""kafka-python's results as messages of the protocol, and the messages that it lacks."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka import errors

from agent.model.observations.kafka import Member, PartitionState
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.schemas import ShareGroupDescribeResponse, StreamsGroupDescribeResponse

_ID = UUID("0004e173-51a4-4f8e-9014-cfffff9ed924")
_BASE64 = "AAThc1GkT46QFM___57ZJA"
"""As Kafka's tools print it."""


def _partition(index: int, **fields: Any) -> SimpleNamespace:
    common = {"leader_id": 1, "leader_epoch": 4, "replica_nodes": [1, 2], "isr_nodes": [1]}
    return SimpleNamespace(partition_index=index, **{**common, "eligible_leader_replicas": [2], **fields})


def test_pages_of_a_topic_are_one_topic() -> None:
    described: dict[str, protocol.Topic | protocol.Failure] = {}
    for partition in (_partition(0), _partition(1, leader_id=-1, eligible_leader_replicas=None)):
        page = SimpleNamespace(error_code=0, name="t", topic_id=_ID, partitions=[partition])
        results.add_topic(described, page, "main", 5)
    results.add_topic(described, SimpleNamespace(error_code=3, name="gone"), "main", 5)
    topic = described["t"]
    assert isinstance(topic, protocol.Topic)
    assert (topic.id, [(state.leader, state.leader_epoch, state.elr) for state in topic.partitions]) == (
        _BASE64, [(1, 4, (2,)), (None, 4, None)],
    )  # fmt: skip
    assert described["gone"] == protocol.Failure(3, "UnknownTopicOrPartitionError")


def test_reassignments_are_added_to_their_partitions() -> None:
    states = [
        PartitionState(at=5, cluster="main", topic="t", partition=number, leader=1, replicas=(1, 2), isr=(1,))
        for number in (0, 1)
    ]
    moving = SimpleNamespace(adding_replicas=[2], removing_replicas=[3])
    topic = results.add_reassignments(protocol.Topic("x", states), {("t", 1): moving})
    assert isinstance(topic, protocol.Topic)
    assert [(state.adding, state.removing) for state in topic.partitions] == [((), ()), ((2,), (3,))]
    failure = protocol.Failure(3, "?")
    assert results.add_reassignments(failure, {("t", 1): moving}) is failure


def test_an_error_code_is_raised_as_its_error() -> None:
    results.raise_for(0, None)
    with pytest.raises(errors.GroupAuthorizationFailedError):
        results.raise_for(30, None)


def test_a_streams_member_reads_the_topics_of_its_active_tasks() -> None:
    """The message passes through Kafka's wire format."""
    group_type = StreamsGroupDescribeResponse.DescribedGroup
    member_type, topology_type = group_type.Member, group_type.Topology
    tasks = member_type.Assignment.TaskIds
    nothing = member_type.Assignment(active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assignment = member_type.Assignment(
        active_tasks=[tasks(subtopology_id="1", partitions=[2, 0])],
        standby_tasks=[tasks(subtopology_id="0", partitions=[7])],
        warmup_tasks=[],
    )
    member = member_type(
        member_id="m", member_epoch=1, client_id="shop-StreamThread-1", client_host="/h", topology_epoch=0,
        process_id="p", client_tags=[], task_offsets=[], task_end_offsets=[], assignment=assignment,
        target_assignment=nothing, is_classic=False,
    )  # fmt: skip
    repartition = topology_type.Subtopology.TopicInfo(
        name="shop-repartition", partitions=3, replication_factor=1, topic_configs=[]
    )
    subtopology = topology_type.Subtopology(
        subtopology_id="1", source_topics=["orders"], repartition_sink_topics=[], state_changelog_topics=[],
        repartition_source_topics=[repartition],
    )  # fmt: skip
    group = group_type(
        error_code=0, group_id="shop", group_state="Stable", group_epoch=1, assignment_epoch=1,
        topology=topology_type(epoch=0, subtopologies=[subtopology]), members=[member],
    )  # fmt: skip
    sent = StreamsGroupDescribeResponse(throttle_time_ms=0, groups=[group]).encode(version=0)
    received = StreamsGroupDescribeResponse.decode(bytes(sent), version=0).groups[0]
    places = [("orders", 0), ("orders", 2), ("shop-repartition", 0), ("shop-repartition", 2)]
    assert results.read_streams_members(received) == [
        Member(
            id="m",
            host="/h",
            partitions=tuple(places),
            client_id="shop-StreamThread-1",
            tasks=("1_0", "1_2", "1_0", "1_2"),
        )
    ]


def test_a_share_member_has_its_partitions() -> None:
    group_type = ShareGroupDescribeResponse.DescribedGroup
    topic = group_type.Member.Assignment.TopicPartitions(topic_id=_ID, topic_name="orders", partitions=[1, 0])
    member = group_type.Member(
        member_id="m", member_epoch=1, client_id="c", client_host="/h", subscribed_topic_names=["orders"],
        assignment=group_type.Member.Assignment(topic_partitions=[topic]),
    )  # fmt: skip
    group = group_type(
        error_code=0, group_id="g", group_state="Stable", group_epoch=1, assignment_epoch=1, assignor_name="simple",
        members=[member],
    )  # fmt: skip
    sent = ShareGroupDescribeResponse(throttle_time_ms=0, groups=[group]).encode(version=1)
    received = ShareGroupDescribeResponse.decode(bytes(sent), version=1).groups[0]
    members = results.read_members(received)
    assert members == [Member(id="m", host="/h", partitions=(("orders", 0), ("orders", 1)), client_id="c")]
