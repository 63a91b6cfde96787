"""Znodes of topics and reassignments, as controllers of several Kafka versions write them."""

import json
from typing import Any

import pytest
from kazoo.protocol.states import ZnodeStat

from agent.model.observations.kafka import PartitionState
from agent.sources.base import GONE
from agent.sources.zookeeper.znodes import (
    Node,
    UndecodableError,
    ZnodeDecoder,
    decode_reassignments,
    decode_topic,
    session_id,
)

CREATED, REASSIGNED, NOW = 1_000, 700_000, 900_000


def _node(content: object, *, mtime: int = CREATED, version: int = 0) -> Node:
    stat = ZnodeStat(
        czxid=31, mzxid=32, ctime=CREATED, mtime=mtime, version=version, cversion=0, aversion=0, ephemeralOwner=0,
        dataLength=0, numChildren=0, pzxid=31,
    )  # fmt: skip
    return json.dumps(content).encode(), stat


def _topic(replicas: list[int], **more: Any) -> dict[str, Any]:
    return {"version": 2, "partitions": {"0": replicas}, **more}


def _state(isr: list[int], version: int = 4) -> Node:
    content = {"controller_epoch": 1, "leader": isr[0], "version": 1, "leader_epoch": 3, "isr": isr}
    return _node(content, mtime=2_000, version=version)


def _decode(decoder: ZnodeDecoder, topic: Node, state: Node, read_at: int | None = None) -> PartitionState:
    decoded = decode_topic("/brokers/topics/t", topic)
    observation = decoder.partition("t", 0, decoded, state, now=NOW, read_at=read_at)
    assert isinstance(observation, PartitionState)
    return observation


def test_reassignment_is_read_from_the_topic() -> None:
    """Since 2.4 (KIP-455). The state's znode does not change with it, so the topic's dates it."""
    decoder = ZnodeDecoder("main", ())
    before = _decode(decoder, _node(_topic([1, 2])), _state([1, 2]))
    reassigned = _topic([7, 1, 2], adding_replicas={"0": [7]}, removing_replicas={"0": [2]})
    after = _decode(decoder, _node(reassigned, mtime=REASSIGNED), _state([1, 2]))
    assert (before.replicas, before.adding, before.removing, before.at) == ((1, 2), (), (), 2_000)
    assert (after.replicas, after.adding, after.removing) == ((7, 1, 2), (7,), (2,))
    assert after.at == after.since == REASSIGNED


def test_reassignment_is_read_from_its_own_znode() -> None:
    """Before 2.4 the topic lists old and new replicas, and only the target tells them apart."""
    decoder = ZnodeDecoder("main", ())
    decoder.reassignments = decode_reassignments(
        _node({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [7, 1]}]})
    )
    state = _decode(decoder, _node(_topic([7, 1, 2])), _state([1, 2]))
    assert (state.adding, state.removing) == ((7,), (2,))


@pytest.mark.parametrize("content", [[], {"partitions": 7}, {"partitions": [{"topic": "t"}]}, {"version": 1}])
def test_unknown_reassignments_are_undecodable(content: object) -> None:
    with pytest.raises(UndecodableError, match="/admin/reassign_partitions"):
        decode_reassignments(_node(content))


@pytest.mark.parametrize("content", [{"version": 2}, _topic([1], adding_replicas={"0": "x"})])
def test_unknown_topics_are_undecodable(content: object) -> None:
    with pytest.raises(UndecodableError, match="/brokers/topics/t"):
        decode_topic("/brokers/topics/t", _node(content))


def test_no_reassignment_is_none() -> None:
    assert decode_reassignments(None) == {}


def test_deleted_partitions_are_forgotten_but_for_the_last() -> None:
    decoder = ZnodeDecoder("main", ())
    topic = decode_topic("/brokers/topics/t", _node(_topic([1])))
    for number in range(GONE + 3):
        decoder.partition(f"t{number}", 0, topic, _state([1]), now=NOW, read_at=None)
        (state,) = decoder.partitions(f"t{number}")
        decoder.deleted(state, NOW)
    decoder.partition("t1", 0, topic, _state([1]), now=NOW, read_at=None)  # was created again
    assert decoder.forget_deleted() == [("partition_state", "main", f"t{number}", 0) for number in (0, 2)]
    assert not decoder.forget_deleted()
    assert len(decoder.facts) == GONE + 1
    assert [state.topic for state in decoder.partitions()] == ["t1"]


def test_partitions_of_the_earlier_run_are_known_by_topic() -> None:
    first = _decode(ZnodeDecoder("main", ()), _node(_topic([1])), _state([1]))
    assert ZnodeDecoder("main", [first]).partitions("t") == [first]
    assert ZnodeDecoder("main", [first.deleted(NOW)]).partitions() == []


def test_session_of_a_server_with_a_high_id_is_as_zookeeper_logs_it() -> None:
    stat = _node({})[1]._replace(ephemeralOwner=-0x37FF_FFFF_FFFF_FFF0)
    assert session_id(stat) == "0xc800000000000010"


def test_no_change_is_dated_before_a_heartbeat() -> None:
    """The engine would take it for stale. ZooKeeper's clock may be behind ours, and a batch takes its time."""
    decoder = ZnodeDecoder("main", ())
    topic = _node(_topic([1, 2]))
    _decode(decoder, topic, _state([1, 2]))
    decoder.take()
    decoder.confirm(NOW)
    (confirmed,) = decoder.take()
    content, stat = _state([2], version=5)
    after = _decode(decoder, topic, (content, stat._replace(mtime=NOW - 30)))
    assert confirmed.at == NOW
    assert (after.at, after.since, after.isr) == (NOW, NOW, (2,))


def test_no_change_is_dated_before_the_old_value_was_read() -> None:
    """ZooKeeper's clock is 8 s behind. What it dates stays exact; a change among several does not become so."""
    decoder = ZnodeDecoder("main", ())
    topic, stat = _node(_topic([1, 2])), _node({})[1]._replace(ctime=NOW - 8_000, czxid=77)
    controller = (b'{"brokerid": 2}', stat)
    _decode(decoder, topic, _state([1, 2]))
    decoder.registered(1, stat._replace(ctime=CREATED, czxid=31), NOW, None)
    decoder.controller((b'{"brokerid": 1}', stat._replace(ctime=CREATED)), None, NOW, None)
    content, state = _state([2], version=5)
    next_version = _decode(decoder, topic, (content, state._replace(mtime=NOW - 8_000)), NOW - 100)
    changes = [
        next_version, decoder.registered(1, stat, NOW, NOW - 100), decoder.controller(controller, None, NOW, NOW - 100)
    ]  # fmt: skip
    assert {(change.at, change.since) for change in changes} == {(NOW - 100, NOW - 100)}
    content, state = _state([1], version=9)
    missed = _decode(decoder, topic, (content, state._replace(mtime=NOW - 7_000)), NOW - 150)
    assert (missed.at, missed.since) == (NOW - 100, NOW - 150)


def test_what_has_not_changed_keeps_its_date() -> None:
    decoder = ZnodeDecoder("main", ())
    before = [_decode(decoder, _node(_topic([1])), _state([1])), decoder.registered(1, _node({})[1], NOW, None)]
    after = [_decode(decoder, _node(_topic([1])), _state([1]), NOW), decoder.registered(1, _node({})[1], NOW, NOW)]
    assert after == before


@pytest.mark.parametrize("path", ["/brokers/topics/t", "/brokers/topics/t/partitions/0/state"])
def test_what_cannot_be_read_is_not_confirmed(path: str) -> None:
    """Nor is a change of it dated after a reading that left it out."""
    decoder = ZnodeDecoder("main", ())
    topic = _node(_topic([1, 2]))
    _decode(decoder, topic, _state([1, 2]))
    decoder.lose(path)
    decoder.take()
    decoder.confirm(NOW - 100)
    assert decoder.take() == []
    content, stat = _state([2], version=9)
    after = _decode(decoder, topic, (content, stat._replace(mtime=NOW - 8_000)), NOW - 100)
    assert (after.at, after.since) == (NOW - 8_000, None)
    decoder.take()
    decoder.confirm(NOW)
    assert [fact.at for fact in decoder.take()] == [NOW]


def test_brokers_and_controllers_that_cannot_be_read_are_not_confirmed() -> None:
    decoder = ZnodeDecoder("main", ())
    for broker in (1, 2):
        decoder.registered(broker, _node({})[1], NOW, None)
    decoder.controller((b'{"brokerid": 1}', _node({})[1]), None, NOW, None)
    decoder.lose("/brokers/ids/1")
    decoder.lose("/controller")
    decoder.take()
    decoder.confirm(NOW)
    assert [fact.subject for fact in decoder.take()] == [("broker_registration", "main", 2)]


def test_what_is_gone_is_kept_until_it_is_taken() -> None:
    """A request that fails later in the same batch must not hide it."""
    decoder = ZnodeDecoder("main", ())
    state = _decode(decoder, _node(_topic([1])), _state([1]))
    decoder.take()
    gone = [decoder.deleted(state, NOW), decoder.unregistered(7, NOW, None)]
    assert decoder.take() == gone
    assert decoder.take() == []
