"""Faults of ZooKeeper that a real server cannot be made to have, or that need a look at its watches."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import pytest

from agent.clock import now_ms
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.kafka import BrokerRegistration, Controller, PartitionState
from agent.sources.zookeeper.session import Session, ZnodeReader
from agent.sources.zookeeper.source import ZooKeeperSource
from agent.sources.zookeeper.znodes import BROKER_IDS, CONTROLLER, REASSIGNMENTS, TOPICS, partition_state_path
from testbed.waiting import wait_until
from tests.integration.seen import Seen
from tests.sources.zookeeper.znode_server import ZnodeServer

T = TypeVar("T", bound=Observation)

_BROKER = {"version": 4, "host": "h", "port": 9092, "endpoints": []}


@pytest.fixture
def server() -> Iterator[ZnodeServer]:
    """Start a server for a cluster with broker 7."""
    with ZnodeServer() as running:
        running.write(f"{BROKER_IDS}/7", _BROKER)
        running.write(TOPICS)
        yield running


@contextmanager
def _watching(
    server: ZnodeServer,
    seen: Seen,
    known: tuple[Observation, ...] = (),
    *,
    topics: NameFilter | None = None,
    timeout: float = 10,
) -> Iterator[ZooKeeperSource]:
    source = ZooKeeperSource(
        "main",
        server.address,
        seen,
        known,
        interval=1000,
        topics=topics or NameFilter(),
        read_options=lambda: {"timeout": timeout},
    )
    try:
        yield source
    finally:
        source.close()


def _create_topic(server: ZnodeServer, name: str, partitions: int, replicas: tuple[int, ...] = (7,)) -> None:
    assignment = {str(number): replicas for number in range(partitions)}
    server.write(f"{TOPICS}/{name}", {"version": 2, "partitions": assignment})
    for number in range(partitions):
        _write_state(server, name, number, replicas[0], 0)


def _write_state(server: ZnodeServer, name: str, number: int, leader: int, epoch: int) -> int:
    content = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": epoch, "isr": [7]}
    return server.write(partition_state_path(name, number), content)


def _await_reading(source: ZooKeeperSource, at: int) -> None:
    """Wait until what was read holds as of a moment after `at`."""

    def has_read() -> bool:
        source.poll()
        return (source.read_at or 0) > at

    wait_until(has_read, "a reading")


def _await_change(seen: Seen, kind: type[T], **fields: object) -> T:
    """Return what a watch reports, without polls."""
    return wait_until(partial(seen.all, kind, **fields), f"{kind.__name__} with {fields}")[0]


@pytest.mark.parametrize("clock_ahead", [0, -1_000, -8_000])
def test_changes_are_dated_after_the_last_reading_whatever_the_clock(clock_ahead: int) -> None:
    """A leader change that ZooKeeper dates too early would be taken for earlier than what caused it."""
    seen = Seen()
    with ZnodeServer(clock_ahead) as server:
        server.write(f"{BROKER_IDS}/7", _BROKER)
        server.write(CONTROLLER, {"brokerid": 7})
        _create_topic(server, "t", 1)
        with _watching(server, seen) as source:
            seen.wait_for(source, PartitionState, leader=7)
            server.delete(f"{BROKER_IDS}/7")
            server.delete(CONTROLLER)
            seen.wait_for(source, BrokerRegistration, session=None)
            seen.wait_for(source, Controller, broker=None)
            _await_reading(source, now_ms())
            seen.mark()
            earliest = source.read_at or 0
            dates = [
                server.write(f"{BROKER_IDS}/7", _BROKER),
                server.write(CONTROLLER, {"brokerid": 8}),
                _write_state(server, "t", 0, 8, 1),
            ]
            changes = [
                _await_change(seen, BrokerRegistration, broker=7),
                _await_change(seen, Controller, broker=8),
                _await_change(seen, PartitionState, leader=8),
            ]
    for change, date in zip(changes, dates, strict=True):
        assert change.since == change.at
        assert max(date, earliest) <= change.at <= change.seen
        assert change.at == date or clock_ahead


def test_a_change_that_was_reported_and_not_yet_read_postpones_the_reading(server: ZnodeServer) -> None:
    """Until it has been passed on, nothing holds as of the last response."""
    session = Session(server.address, lambda: {"timeout": 10})
    is_reported, may_continue = threading.Event(), threading.Event()

    def pass_on(_: str) -> None:
        is_reported.set()
        may_continue.wait(60)

    reader = ZnodeReader(session.client, pass_on)
    session.start()
    try:
        wait_until(lambda: session.disconnected_since is None, "a connection")
        reader.get([f"{BROKER_IDS}/7"])
        assert reader.await_changes()
        server.write(f"{BROKER_IDS}/7", _BROKER)
        assert is_reported.wait(60)
        assert not reader.await_changes()
        may_continue.set()
        assert reader.await_changes()
    finally:
        may_continue.set()
        session.close()


def test_a_topic_that_is_excluded_later_is_watched_until_it_is_deleted(server: ZnodeServer) -> None:
    """Else its last state would hold for good, and with it alarms about it."""
    before, seen = Seen(), Seen()
    _create_topic(server, "logs", 1, (7, 8))
    _create_topic(server, "never", 1)
    with _watching(server, before, topics=NameFilter(include=["logs"])) as source:
        before.wait_for(source, PartitionState, replicas=(7, 8))
    server.write(f"{TOPICS}/logs", {"version": 2, "partitions": {"0": [7]}})
    with _watching(server, seen, tuple(before.latest), topics=NameFilter(exclude=["logs", "never"])) as source:
        seen.wait_for(source, PartitionState, topic="logs", replicas=(7,))
        server.delete(f"{TOPICS}/logs")
        seen.wait_for(source, PartitionState, topic="logs", replicas=())
    assert seen.all(PartitionState, topic="never") == []


def test_a_denied_partition_leaves_the_rest_of_its_topic_readable(server: ZnodeServer) -> None:
    """It is requested again with the heartbeat, and not before."""
    seen, denied = Seen(), partition_state_path("orders", 1)
    _create_topic(server, "orders", 3)
    server.denied.add(denied)
    with _watching(server, seen) as source:
        seen.wait_for(source, PartitionState, partition=2)
        seen.wait_for(source, Unavailable, topic="orders", partition=1)
        _write_state(server, "orders", 0, -1, 1)
        seen.wait_for(source, PartitionState, partition=0, leader=None)
        assert server.requests[f"{TOPICS}/orders"] == 1
        source._queue.put("heartbeat")
        wait_until(lambda: server.requests[denied] > 2, "a second attempt")
        server.denied.clear()
        source._queue.put("heartbeat")
        seen.wait_for(source, PartitionState, partition=1)
        seen.wait_for(source, Available, topic="orders", partition=1)


def test_a_zookeeper_restored_from_a_backup_is_connected_to_again(server: ZnodeServer) -> None:
    """Its zxid is lower than what the client has seen, so that it refuses the client's session."""
    seen = Seen()
    with _watching(server, seen, timeout=0.3) as source:
        seen.wait_for(source, BrokerRegistration, broker=7)
        server.restore()
        seen.wait_for(source, Unavailable)
        server.write(f"{BROKER_IDS}/8", _BROKER)
        seen.wait_for(source, BrokerRegistration, broker=8)


def test_deleted_topics_leave_no_watches(server: ZnodeServer) -> None:
    """ZooKeeper and kazoo would keep a watch on each path for good."""
    seen = Seen()
    with _watching(server, seen) as source:
        for name in ("first", "second"):
            _create_topic(server, name, 4)
            for partition in range(4):
                seen.wait_for(source, PartitionState, topic=name, partition=partition, leader=7)
            assert len(server.watched(f"{TOPICS}/{name}")) == 5
            server.delete(f"{TOPICS}/{name}")
            for partition in range(4):
                seen.wait_for(source, PartitionState, topic=name, partition=partition, replicas=())
        _await_reading(source, now_ms())
        assert server.watched("") == sorted([BROKER_IDS, f"{BROKER_IDS}/7", CONTROLLER, REASSIGNMENTS, TOPICS])


@pytest.mark.parametrize(
    ("path", "kind", "fields"),
    [
        (CONTROLLER, Controller, {"broker": 7}),
        (REASSIGNMENTS, PartitionState, {"partition": 1, "adding": (8,)}),
        (partition_state_path("t", 0), PartitionState, {"partition": 0}),
    ],
    ids=["controller", "reassignments", "partition"],
)
def test_creation_of_what_was_missing_is_observed(
    server: ZnodeServer, path: str, kind: type[Observation], fields: dict[str, object]
) -> None:
    seen = Seen()
    server.write(f"{TOPICS}/t", {"version": 2, "partitions": {"0": [7], "1": [7, 9]}})
    _write_state(server, "t", 1, 7, 0)
    target = {"topic": "t", "partition": 1, "replicas": [7, 8]}
    with _watching(server, seen) as source:
        seen.wait_for(source, PartitionState, partition=1)
        _await_reading(source, now_ms())
        server.write(path, {"brokerid": 7, "leader": 7, "leader_epoch": 0, "isr": [7], "partitions": [target]})
        _await_change(seen, kind, **fields)
