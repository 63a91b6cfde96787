"""librdkafka's results as messages of the protocol, through a frame and back."""

import io
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource

from agent.model.observations.kafka import (
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    PartitionState,
    TopicSettings,
)
from agent.sources.kafka.admin import frames, protocol, results

_DECODER = msgspec.msgpack.Decoder(list[protocol.FromProcess])
_NOT_LEADER = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, KafkaError):
        future.set_exception(KafkaException(result))
    else:
        future.set_result(result)
    return future


def _sent(result: protocol.Result) -> protocol.Result:
    """Return the result as it arrives at the other side."""
    stream = io.BytesIO()
    frames.send(stream, protocol.Response(7, 99, result))
    stream.seek(0)
    received = frames.receive(stream, _DECODER)
    assert received == [protocol.Response(7, 99, result)]
    assert frames.receive(stream, _DECODER) is None
    (response,) = received
    assert isinstance(response, protocol.Response)
    return response.result


def _node(broker: int) -> SimpleNamespace:
    return SimpleNamespace(id=broker)


def test_committed_offsets_are_commits_and_errors_are_kept_apart() -> None:
    error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
    places = [
        SimpleNamespace(topic="t", partition=partition, offset=offset, leader_epoch=epoch, error=error)
        for partition, offset, epoch, error in (
            (0, 7, 4, None),
            (1, -1001, None, None),
            (2, -1001, None, error),
            (3, 9, None, None),
        )
    ]
    listed = _done(SimpleNamespace(topic_partitions=places))
    commits = _sent(results.read_commits(listed, "main", "g", 5))
    assert isinstance(commits, protocol.Commits)
    assert list(commits) == [
        Commit(at=5, cluster="main", group="g", topic="t", partition=partition, offset=offset, leader_epoch=epoch)
        for partition, offset, epoch in ((0, 7, 4), (3, 9, None))
    ]
    assert commits.failures == [protocol.PartitionFailure("t", 2, protocol.Failure(error.code(), error.str()))]


def test_negative_log_offsets_mean_an_absent_leader() -> None:
    places = [TopicPartition("t", partition) for partition in range(3)]
    starts = [_done(SimpleNamespace(offset=offset)) for offset in (3, 0, 0)]
    ends = [_done(SimpleNamespace(offset=9)), _done(SimpleNamespace(offset=-1001)), _done(_NOT_LEADER)]
    offsets = results.read_offsets(
        dict(zip(places, starts, strict=True)), dict(zip(places, ends, strict=True)), "main", 5
    )
    assert _sent(offsets) == protocol.Offsets(
        [LogOffsets(at=5, cluster="main", topic="t", partition=0, log_start=3, log_end=9)],
        [
            protocol.PartitionFailure("t", 1, None),
            protocol.PartitionFailure("t", 2, protocol.Failure(_NOT_LEADER.code(), _NOT_LEADER.str())),
        ],
    )


def test_topics_are_partition_states_or_a_failure_each() -> None:
    partitions = [
        SimpleNamespace(id=0, leader=_node(1), replicas=[_node(1), _node(2)], isr=[_node(1)]),
        SimpleNamespace(id=1, leader=None, replicas=[_node(2)], isr=[]),
    ]
    described = {
        "t": _done(SimpleNamespace(topic_id=results._NO_TOPIC_ID, partitions=partitions)),
        "gone": _done(_NOT_LEADER),
    }
    common: dict[str, Any] = {"at": 5, "cluster": "main", "topic": "t", "topic_id": None}
    assert _sent(results.read_topics(described, "main", 5)) == protocol.Topics(
        {
            "t": protocol.Topic(
                None,
                [
                    PartitionState(**common, partition=0, leader=1, replicas=(1, 2), isr=(1,)),
                    PartitionState(**common, partition=1, leader=None, replicas=(2,), isr=()),
                ],
            ),
            "gone": protocol.Failure(_NOT_LEADER.code(), _NOT_LEADER.str()),
        }
    )


def test_a_group_unknown_to_kafka_4_is_dead() -> None:
    unknown = _done(KafkaError(KafkaError.GROUP_ID_NOT_FOUND))
    dead = GroupState(at=5, cluster="main", group="g", state="Dead")
    assert _sent(results.read_group_state(unknown, "main", "g", 5)) == dead
    with pytest.raises(KafkaException):
        results.read_group_state(_done(_NOT_LEADER), "main", "g", 5)


def test_group_states_have_kafkas_names_and_sorted_members() -> None:
    assignment = SimpleNamespace(topic_partitions=[TopicPartition("t", 1), TopicPartition("t", 0)])
    members = [
        SimpleNamespace(member_id=name, host="/h", client_id="c", assignment=assignment) for name in ("m2", "m1")
    ]
    description = SimpleNamespace(
        members=members,
        state=SimpleNamespace(name="COMPLETING_REBALANCING"),
        is_simple_consumer_group=False,
        partition_assignor="",
    )
    state = _sent(results.read_group_state(_done(description), "main", "g", 5))
    assert isinstance(state, GroupState)
    assert (state.state, state.simple, state.assignor) == ("CompletingRebalance", False, None)
    assert [(member.id, member.partitions) for member in state.members] == [
        ("m1", (("t", 0), ("t", 1))), ("m2", (("t", 0), ("t", 1))),
    ]  # fmt: skip


def test_settings_are_read_from_texts_and_fail_by_topic() -> None:
    def entries(**settings: str) -> Future[Any]:
        return _done({name.replace("_", "."): SimpleNamespace(value=value) for name, value in settings.items()})

    broker = {"offsets_retention_minutes": "10080", "transaction_max_timeout_ms": "900000"}
    assert _sent(results.read_broker_settings(entries(**broker))) == protocol.BrokerSettings(604_800_000, 900_000, None)
    older = entries(**broker, inter_broker_protocol_version="2.8-IV1")
    assert _sent(results.read_broker_settings(older)) == protocol.BrokerSettings(604_800_000, 900_000, "2.8-IV1")
    topics = {
        ConfigResource(ConfigResource.Type.TOPIC, "t"): entries(
            cleanup_policy="compact,delete", retention_ms="-1", retention_bytes="5"
        ),
        ConfigResource(ConfigResource.Type.TOPIC, "gone"): _done(_NOT_LEADER),
    }
    assert _sent(results.read_topic_settings(topics, "main", 5)) == protocol.Settings(
        {
            "t": TopicSettings(
                at=5, cluster="main", topic="t", cleanup_policy="compact,delete", retention_ms=-1, retention_bytes=5
            ),
            "gone": protocol.Failure(_NOT_LEADER.code(), _NOT_LEADER.str()),
        }
    )


@pytest.mark.parametrize("left_out", ["offsets.retention.minutes", "transaction.max.timeout.ms"])
def test_a_broker_that_does_not_list_a_setting_does_not_support_it(left_out: str) -> None:
    """Not every server that speaks Kafka's protocol has all of its settings."""
    names = {"offsets.retention.minutes", "transaction.max.timeout.ms"} - {left_out}
    listed = _done({name: SimpleNamespace(value="5") for name in names})
    with pytest.raises(KafkaException) as raised:
        results.read_broker_settings(listed)
    failure = results.read_failure(raised.value)
    assert failure == protocol.Failure(protocol.UNSUPPORTED, f"the broker does not list its setting {left_out}")
    assert failure.is_final
    unknown = _done({"cleanup.policy": SimpleNamespace(value="delete"), "retention.ms": SimpleNamespace(value=None)})
    topics = {ConfigResource(ConfigResource.Type.TOPIC, "t"): unknown}
    assert _sent(results.read_topic_settings(topics, "main", 5)) == protocol.Settings(
        {"t": protocol.Failure(protocol.UNSUPPORTED, "the broker does not list its setting retention.ms")}
    )


def test_last_stable_offsets_that_cannot_be_read_are_left_out() -> None:
    futures = [_done(SimpleNamespace(offset=7)), _done(SimpleNamespace(offset=-1001)), _done(_NOT_LEADER)]
    ends = {TopicPartition("t", partition): future for partition, future in enumerate(futures)}
    assert _sent(results.read_stable_offsets(ends, "main", 5)) == protocol.StableOffsets(
        [LastStableOffset(at=5, cluster="main", topic="t", partition=0, offset=7)]
    )


def test_the_end_of_the_stream_within_a_frame_is_an_end() -> None:
    stream = io.BytesIO()
    frames.send(stream, protocol.ConnectionFailure("kafka-1:9093", 1, "refused"))
    assert frames.receive(io.BytesIO(stream.getvalue()[:-1]), _DECODER) is None


def test_permitted_operations_have_the_names_of_acls() -> None:
    described = _done(SimpleNamespace(authorized_operations=[AclOperation.READ, AclOperation.DESCRIBE]))
    assert _sent(results.read_operations(described)) == protocol.Operations(["DESCRIBE", "READ"])


def test_a_broker_before_2_3_lists_no_operations() -> None:
    described = _done(SimpleNamespace(authorized_operations=None))
    assert _sent(results.read_operations(described)) == protocol.Operations([])
