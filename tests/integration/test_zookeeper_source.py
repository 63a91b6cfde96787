"""The ZooKeeper source against real ZooKeeper and brokers: sessions, leaders, topics, and our own connection."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_digest_acl

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.kafka import BrokerRegistration, Controller, PartitionState
from agent.model.observations.zookeeper import ZooKeeperHealth
from agent.sources.zookeeper.chroots import describe_chroots, find_chroots
from agent.sources.zookeeper.health import Answer, Server, ask_servers
from agent.sources.zookeeper.session import Session
from agent.sources.zookeeper.source import ZooKeeperSource
from agent.sources.zookeeper.znodes import BROKER_IDS, ZnodeDecoder
from testbed.artifacts import KAFKA
from testbed.kafka import Cluster
from testbed.processes import free_port
from testbed.proxy import Proxy
from testbed.servers import ZooKeeperServer
from testbed.waiting import wait_until
from tests.integration.scenes import named, now
from tests.integration.seen import Seen

pytestmark = pytest.mark.integration

_VERSIONS = ("kafka_0_11", "kafka_3_9")
_SESSION_SECONDS = 3
_BROKER = b'{"version":4,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"timestamp":"1"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Start a ZooKeeper for znodes that tests write."""
    with ZooKeeperServer(KAFKA["3.9.1"], tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Connect a client to that ZooKeeper; its session plays a broker's."""
    connected = server.connect()
    yield connected
    connected.stop()
    connected.close()


@contextmanager
def _watching(
    connect: str | None,
    seen: Seen,
    topics: str = "*",
    known: tuple[Observation, ...] = (),
    also: Callable[[str], bool] = lambda _: False,
) -> Iterator[ZooKeeperSource]:
    assert connect is not None
    source = ZooKeeperSource(
        "main",
        connect,
        seen,
        known,
        interval=1000,
        topics=NameFilter(include=[topics]),
        also=also,
        read_options=lambda: {"timeout": _SESSION_SECONDS},
    )
    try:
        yield source
    finally:
        source.close()


def _write(client: KazooClient, path: str, content: object) -> None:
    """Create or change a znode, as a controller does."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    if client.exists(path):
        client.set(path, body)
    else:
        client.create(path, body, makepath=True)


def _replicas(seen: Seen, partition: int) -> list[tuple[int, ...]]:
    """Return the replicas that the partition has had, in order."""
    states = seen.all(PartitionState, partition=partition)
    return [replicas for replicas, _ in groupby(state.replicas for state in states)]


def _state(leader: int, epoch: int, isr: list[int]) -> dict[str, object]:
    return {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": epoch, "isr": isr}


def _is_missing(client: KazooClient, path: str) -> bool:
    return client.exists(path) is None


def test_topics_that_another_source_needs_are_watched(kafka_3_9: Cluster) -> None:
    """Such as the changelogs of Kafka Streams; no others."""
    name, seen = named("also"), Seen()
    for topic in (f"{name}-changelog", f"{name}-other"):
        kafka_3_9.create_topic(topic, assignment={0: [2005]})
    with _watching(
        kafka_3_9.zookeeper, seen, "no-such-topic", also=lambda topic: topic.endswith("-changelog")
    ) as source:
        seen.wait_for(source, PartitionState, topic=f"{name}-changelog", leader=2005)
        seen.wait_for(source, Controller)
    assert seen.all(PartitionState, topic=f"{name}-other") == []


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_brokers_controller_and_partitions_are_observed(cluster: Cluster) -> None:
    """With sessions, broker epochs, leader epochs, and the topic's id or its znode's czxid."""
    name, seen = named("znodes"), Seen()
    cluster.create_topic(name, assignment={0: [2005, 2011], 1: [2011, 2024]})
    with _watching(cluster.zookeeper, seen, name) as source:
        for broker in cluster.brokers:
            registration = cluster.wait_until_registered(broker)
            seen.wait_for(
                source, BrokerRegistration, broker=broker, session=registration.session, epoch=registration.czxid
            )
        controller = seen.wait_for(source, Controller)
        state = seen.wait_for(source, PartitionState, topic=name, partition=1)
    view = cluster.partition_state(name, 1)
    assert view is not None
    assert (state.leader, state.leader_epoch, state.replicas, state.isr) == tuple(view)
    assert (state.topic_id or "").startswith("czxid:") == (cluster.version == "0.11.0.0")
    assert controller.broker in cluster.brokers
    assert (controller.epoch or 0) > 0
    assert {state.topic for state in seen.all(PartitionState)} == {name}
    assert seen.all(Unavailable) == []


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_an_expired_session_is_gone_then_re_registered(cluster: Cluster) -> None:
    """Old session, no broker unless it is back before that is read, new session; the leader changes in between."""
    name, seen = named("session"), Seen()
    cluster.create_topic(name, assignment={0: [2005, 2011]})
    with _watching(cluster.zookeeper, seen, name) as source:
        seen.wait_for(source, BrokerRegistration, broker=2005)
        seen.wait_for(source, PartitionState, topic=name, leader=2005)
        before, after = cluster.expire_session(2005)
        seen.wait_for(source, BrokerRegistration, broker=2005, session=after.session)
        moved = seen.wait_for(source, PartitionState, topic=name, leader=2011)
    registrations = seen.all(BrokerRegistration, broker=2005)
    first, *gone, last = registrations
    assert [(fact.session, fact.epoch) for fact in (first, last)] == [tuple(before), tuple(after)]
    assert [(fact.session, fact.epoch) for fact in gone] in ([], [(None, None)])
    assert [fact.at for fact in registrations] == sorted(fact.at for fact in registrations)
    assert max([first.at + 1, *(fact.start for fact in gone)]) <= moved.at <= last.at + 60_000
    assert (moved.leader_epoch or 0) > 0


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_a_recreated_topic_has_another_id(cluster: Cluster) -> None:
    """It is deleted first: never the same topic with other offsets."""
    name, seen = named("again"), Seen()
    cluster.create_topic(name, assignment={0: [2005], 1: [2011]})
    with _watching(cluster.zookeeper, seen, name) as source:
        before = seen.wait_for(source, PartitionState, topic=name, partition=0)
        seen.wait_for(source, PartitionState, topic=name, partition=1)
        cluster.delete_topic(name)
        cluster.create_topic(name, assignment={0: [2024]})
        after = seen.wait_for(source, PartitionState, topic=name, partition=0, leader=2024)
        seen.wait_for(source, PartitionState, topic=name, partition=1, replicas=())
    assert before.topic_id != after.topic_id
    assert _replicas(seen, 0) == [(2005,), (), (2024,)]
    assert _replicas(seen, 1) == [(2011,), ()]


def test_changes_are_dated_by_zookeeper_and_emitted_at_once(server: ZooKeeperServer, client: KazooClient) -> None:
    """Watches report them: there are no polls here. Each change is dated exactly, at its znode's mtime."""
    path, seen = f"/{named('k')}", Seen()
    client.ensure_path(f"{path}/brokers/ids")
    _write(client, f"{path}/brokers/topics/t", {"version": 1, "partitions": {"0": [1, 2]}})
    state = f"{path}/brokers/topics/t/partitions/0/state"
    _write(client, state, _state(1, 0, [1, 2]))
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, leader=1)
        for epoch in range(1, 11):
            _write(client, state, _state(epoch % 2 + 1, epoch, [epoch % 2 + 1]))
            find_change = partial(seen.all, PartitionState, leader_epoch=epoch)
            (changed,) = wait_until(find_change, "a change of leader", seconds=10, every=0.002)
            mtime = client.get(state)[1].mtime
            assert changed.at == changed.start == mtime
            assert changed.seen - mtime < 2000
        _write(client, state, _state(-1, 11, []))
        offline = seen.wait_for(source, PartitionState, leader_epoch=11)
    assert offline.leader is None


def test_what_is_gone_is_emitted_though_the_connection_breaks_then(
    server: ZooKeeperServer, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not seen again: after the reconnect it no longer exists."""
    path, seen = f"/{named('k')}", Seen()
    client.ensure_path(f"{path}/brokers/ids")
    for topic in ("a", "b"):
        _write(client, f"{path}/brokers/topics/{topic}", {"version": 1, "partitions": {"0": [1]}})
        _write(client, f"{path}/brokers/topics/{topic}/partitions/0/state", _state(1, 0, [1]))
    with _watching(f"{server.address}{path}", seen) as source:
        for topic in ("a", "b"):
            seen.wait_for(source, PartitionState, topic=topic, leader=1)
        deleted = ZnodeDecoder.deleted

        def lose_connection(decoder: ZnodeDecoder, state: PartitionState, at: int) -> Observation:
            monkeypatch.undo()
            deleted(decoder, state, at)
            raise ConnectionLoss

        monkeypatch.setattr(ZnodeDecoder, "deleted", lose_connection)
        client.delete(f"{path}/brokers/topics/a", recursive=True)
        seen.wait_for(source, PartitionState, topic="a", replicas=())


def test_a_registration_replaced_while_disconnected_is_new(server: ZooKeeperServer, client: KazooClient) -> None:
    """It has another czxid, and is dated when it was created."""
    path, seen = f"/{named('k')}", Seen()
    client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
    with Proxy("127.0.0.1", server.port) as link, _watching(f"{link.address}{path}", seen) as source:
        first = seen.wait_for(source, BrokerRegistration, broker=7)
        link.cut()
        client.delete(f"{path}/brokers/ids/7")
        client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True)
        link.heal()
        stat = client.exists(f"{path}/brokers/ids/7")
        second = seen.wait_for(source, BrokerRegistration, broker=7, epoch=stat.czxid)
    assert first.epoch != second.epoch
    assert first.session == second.session == hex(stat.ephemeralOwner)
    assert second.at == stat.ctime


def test_a_lost_connection_is_unavailable_once_until_it_heals(server: ZooKeeperServer, client: KazooClient) -> None:
    """Then everything is read again, and missed changes are dated since the connection was lost."""
    path, seen = f"/{named('k')}", Seen()
    state = f"{path}/brokers/topics/t/partitions/0/state"
    client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
    _write(client, f"{path}/brokers/topics/t", {"version": 1, "partitions": {"0": [1, 2]}})
    _write(client, state, _state(1, 0, [1, 2]))
    with Proxy("127.0.0.1", server.port) as link, _watching(f"{link.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, leader_epoch=0)
        source.poll()
        cut = now()
        link.cut()
        outage = seen.wait_for(source, Unavailable)
        for epoch in (1, 2, 3):
            _write(client, state, _state(2, epoch, [2]))
        client.delete(f"{path}/brokers/ids/7")
        source.poll()
        link.heal()
        seen.wait_for(source, Available)
        missed = seen.wait_for(source, PartitionState, leader_epoch=3)
        gone = seen.wait_for(source, BrokerRegistration, broker=7, epoch=None)
        _write(client, state, _state(1, 4, [1]))
        again = seen.wait_for(source, PartitionState, leader_epoch=4)
    assert outage.at - cut > _SESSION_SECONDS * 1000
    assert len(seen.outages()) == len(seen.all(Available)) == 1
    assert missed.since is not None
    assert gone.since is not None
    assert missed.since <= cut
    assert gone.since <= cut
    assert again.start == again.at


def test_what_a_new_connection_answers_first_is_dated_since_the_old_one(
    server: ZooKeeperServer, client: KazooClient
) -> None:
    """A request that waited for the connection is answered before everything is read again."""
    path, seen = f"/{named('k')}", Seen()
    client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
    with Proxy("127.0.0.1", server.port) as link, _watching(f"{link.address}{path}", seen) as source:
        seen.wait_for(source, BrokerRegistration, broker=7)
        cut = now()
        link.cut()
        seen.wait_for(source, Unavailable)
        client.delete(f"{path}/brokers/ids/7")
        source._queue.put(BROKER_IDS)
        link.heal()
        gone = seen.wait_for(source, BrokerRegistration, broker=7, epoch=None)
    assert gone.since is not None
    assert gone.since <= cut


def test_a_zookeeper_that_starts_later_becomes_available(tmp_path: Path) -> None:
    """One outage, whose reason may change as the server starts; available when a broker has registered."""
    seen = Seen()
    server = ZooKeeperServer(KAFKA["3.9.1"], tmp_path)
    with _watching(f"{server.address}/later", seen) as source:
        outage = seen.wait_for(source, Unavailable)
        with server:
            broker = server.connect()
            broker.create("/later/brokers/ids/1", _BROKER, ephemeral=True, makepath=True)
            seen.wait_for(source, BrokerRegistration, broker=1)
            seen.wait_for(source, Available)
            assert seen.outages() == [outage]
            broker.stop()
            broker.close()
    assert server.address in outage.reason


def test_a_path_without_brokers_is_unavailable(server: ZooKeeperServer, client: KazooClient) -> None:
    """A wrong chroot, or a cluster that never ran; everything is read when the first broker registers."""
    path, seen = f"/{named('k')}", Seen()
    topics = f"{path}/brokers/topics"
    _write(client, f"{topics}/t", {"version": 1, "partitions": {"0": [7]}})
    _write(client, f"{topics}/t/partitions/0/state", _state(7, 0, [7]))
    known = BrokerRegistration(at=now() - 1000, cluster="main", broker=5, session="0x1", epoch=1)
    with _watching(f"{server.address}{path}", seen, known=(known,)) as source:
        outage = seen.wait_for(source, Unavailable)
        seen.wait_for(source, ZooKeeperHealth)
        assert {type(fact) for batch in seen.batches for fact in batch} == {Unavailable, ZooKeeperHealth}
        client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
        seen.wait_for(source, BrokerRegistration, broker=7)
        seen.wait_for(source, PartitionState, topic="t", leader=7)
        seen.wait_for(source, Controller, broker=None)
        seen.wait_for(source, Available)
    assert path in outage.reason
    assert len(seen.outages()) == 1


def test_a_wrong_path_names_those_with_brokers(server: ZooKeeperServer, client: KazooClient) -> None:
    """One level below the root and two; paths without brokers and znodes that we may not list are left out."""
    name, seen = named("clusters"), Seen()
    for path in (f"/{name}", f"/{name}/east", f"/{name}/west"):
        client.ensure_path(f"{path}/brokers/ids")
    client.ensure_path(f"/{name}/flink/jobs")
    client.create(f"/{name}-hidden", acl=[make_digest_acl("kafka", "password", all=True)])
    with _watching(f"{server.address}/{name}/eats", seen) as source:
        outage = seen.wait_for(source, Unavailable)
        found = find_chroots(f"{server.address}/anything", lambda: {"timeout": _SESSION_SECONDS})
    assert f"No broker has ever registered in ZooKeeper at {server.address}/{name}/eats" in outage.reason
    assert ". Brokers have registered below " in outage.reason
    assert [path for path in found if name in path] == [f"/{name}", f"/{name}/east", f"/{name}/west"]


def test_paths_with_brokers_are_named_in_one_sentence() -> None:
    assert describe_chroots([]) == ""
    assert describe_chroots(["/", "/kafka"]) == (
        "Brokers have registered below / (no path after the host names) and /kafka"
    )
    assert describe_chroots([f"/k{number}" for number in range(8)]) == (
        "Brokers have registered below /k0, /k1, /k2, /k3, /k4 and 3 more"
    )


def test_a_server_that_does_not_answer_has_no_paths() -> None:
    assert find_chroots(f"127.0.0.1:{free_port()}", lambda: {"timeout": _SESSION_SECONDS}) == []


def test_an_undecodable_znode_is_unavailable_alone(server: ZooKeeperServer, client: KazooClient) -> None:
    """All other topics and partitions are still read."""
    path, seen = f"/{named('k')}", Seen()
    topics = f"{path}/brokers/topics"
    client.ensure_path(f"{path}/brokers/ids")
    _write(client, f"{topics}/good", {"version": 1, "partitions": {"0": [1], "1": [1]}})
    _write(client, f"{topics}/good/partitions/0/state", _state(1, 0, [1]))
    _write(client, f"{topics}/good/partitions/1/state", b"\xff\xfe")
    _write(client, f"{topics}/bad", b"[]")
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, topic="good", partition=0)
        seen.wait_for(source, Unavailable, topic="good", partition=1)
        seen.wait_for(source, Unavailable, topic="bad", partition=None)
        _write(client, f"{topics}/good/partitions/1/state", _state(1, 0, [1]))
        seen.wait_for(source, PartitionState, topic="good", partition=1)
        seen.wait_for(source, Available, topic="good", partition=1)
        client.delete(f"{topics}/bad")
        seen.wait_for(source, Available, topic="bad")


_HOSTILE = (
    b"[" * 100_000,
    b'{"leader": 1e999, "leader_epoch": 0, "isr": [1]}',
    b'{"leader": 1' + b"0" * 40 + b', "leader_epoch": 0, "isr": [1]}',
    b'{"partitions": {"0": [1]}, "topic_id": "\\ud800"}',
    b"\xff\xfe",
    b"null",
)
"""What Kafka never writes: deep nesting, numbers without end, half characters, other encodings."""


def test_hostile_znodes_are_skipped_and_reported(server: ZooKeeperServer, client: KazooClient) -> None:
    path, seen = f"/{named('k')}", Seen()
    client.ensure_path(f"{path}/brokers/ids/foo")
    client.create(f"{path}/brokers/ids/7", b"{}", ephemeral=True)
    for number, content in enumerate(_HOSTILE):
        _write(client, f"{path}/brokers/topics/bad-{number}", content)
        _write(client, f"{path}/brokers/topics/good/partitions/{number}/state", content)
    _write(client, f"{path}/brokers/topics/good", {"partitions": {str(number): [1] for number in range(7)}})
    _write(client, f"{path}/brokers/topics/good/partitions/6/state", _state(1, 0, [1]))
    _write(client, f"{path}/controller", _HOSTILE[0])
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, BrokerRegistration, broker=7)
        seen.wait_for(source, PartitionState, topic="good", partition=6)
        seen.wait_for(source, Unavailable, topic="/brokers/ids/foo")
        seen.wait_for(source, Unavailable, topic="/controller")
        for number in range(len(_HOSTILE)):
            seen.wait_for(source, Unavailable, topic="good", partition=number)
            seen.wait_for(source, Unavailable, topic=f"bad-{number}")
        client.delete(f"{path}/brokers/ids/foo")
        seen.wait_for(source, Available, topic="/brokers/ids/foo")
        _write(client, f"{path}/brokers/topics/good/partitions/6/state", _state(2, 1, [2]))
        seen.wait_for(source, PartitionState, topic="good", partition=6, leader=2)


def test_unreadable_znodes_are_unavailable_alone(server: ZooKeeperServer, client: KazooClient) -> None:
    path, seen = f"/{named('k')}", Seen()
    topics = f"{path}/brokers/topics"
    client.ensure_path(f"{path}/brokers/ids")
    for topic in ("good", "hidden"):
        _write(client, f"{topics}/{topic}", {"partitions": {"0": [1]}})
        _write(client, f"{topics}/{topic}/partitions/0/state", _state(1, 0, [1]))
    nobody = [make_digest_acl("kafka", "password", all=True)]
    client.set_acls(f"{topics}/hidden", nobody)
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, topic="good", partition=0)
        outage = seen.wait_for(source, Unavailable, topic="hidden")
        assert "/brokers/topics/hidden does not let Backflow read it" in outage.reason
        assert not [fact for fact in seen.all(Unavailable) if fact.is_whole]


def test_reassignments_of_all_versions_are_observed(server: ZooKeeperServer, client: KazooClient) -> None:
    """In the topic since 2.4, dated by it; in a znode of their own before, until that is deleted."""
    path, seen = f"/{named('k')}", Seen()
    topic, reassignments = f"{path}/brokers/topics/t", f"{path}/admin/reassign_partitions"
    client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
    _write(client, topic, {"version": 2, "partitions": {"0": [1, 2]}})
    _write(client, f"{topic}/partitions/0/state", _state(1, 0, [1, 2]))
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, replicas=(1, 2))
        new = {"version": 2, "partitions": {"0": [7, 1, 2]}}
        _write(client, topic, new | {"adding_replicas": {"0": [7]}, "removing_replicas": {"0": [2]}})
        added = seen.wait_for(source, PartitionState, adding=(7,), removing=(2,))
        assert added.at == client.get(topic)[1].mtime
        seen.mark()
        _write(client, topic, new)
        seen.wait_for(source, PartitionState, adding=(), removing=())
        target = {"topic": "t", "partition": 0, "replicas": [7, 1]}
        _write(client, reassignments, {"version": 1, "partitions": [target]})
        seen.wait_for(source, PartitionState, adding=(7,), removing=(2,))
        seen.mark()
        client.delete(reassignments)
        seen.wait_for(source, PartitionState, adding=(), removing=())
    assert seen.all(Unavailable) == []


def test_health_of_a_running_server_is_observed(server: ZooKeeperServer, client: KazooClient) -> None:
    path, seen = f"/{named('k')}", Seen()
    client.ensure_path(path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    with _watching(f"{server.address},{gone}{path}", seen) as source:
        health = seen.wait_for(source, ZooKeeperHealth)
    assert (health.serving, health.not_serving, health.unreachable) == ((server.address,), (), (gone,))
    assert health.expiries == 0


def test_server_without_a_quorum_does_not_serve(tmp_path: Path) -> None:
    """It is one of three, and the others do not run."""
    lonely = ZooKeeperServer(KAFKA["3.9.1"], tmp_path)
    ports = [(free_port(), free_port()) for _ in range(3)]
    with (tmp_path / "zoo.cfg").open("a") as config:
        config.write("initLimit=10\nsyncLimit=5\n")
        config.writelines(
            f"server.{number}=127.0.0.1:{quorum}:{election}\n" for number, (quorum, election) in enumerate(ports, 1)
        )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "myid").write_text("1")
    with lonely:
        asked = Server("127.0.0.1", lonely.port)
        wait_until(lambda: ask_servers([asked])[Answer.NOT_SERVING], "a server that does not serve", seconds=30)


def test_expired_sessions_are_counted(server: ZooKeeperServer, client: KazooClient) -> None:
    """Each ephemeral znode shows when its session has expired; the last one survives a short disconnection."""
    with Proxy("127.0.0.1", server.port) as link:
        session = Session(link.address, lambda: {"timeout": _SESSION_SECONDS})
        session.start()
        try:
            for expiries in range(3):
                wait_until(lambda: session.disconnected_since is None, "a connection", seconds=30)
                assert session.expiries == expiries
                path = f"/{named('session')}"
                session.client.create(path, ephemeral=True)
                link.cut()
                if expiries < 2:
                    wait_until(partial(_is_missing, client, path), "an expired session", seconds=30)
                else:
                    wait_until(lambda: session.disconnected_since is not None, "a lost connection", seconds=30)
                link.heal()
            wait_until(lambda: session.disconnected_since is None, "a connection", seconds=30)
            assert session.expiries == 2
        finally:
            session.close()


def test_changes_during_downtime_are_emitted_at_start(server: ZooKeeperServer, client: KazooClient) -> None:
    """A broker that went down and a changed leader are dated since the last observation."""
    path, seen, at = f"/{named('k')}", Seen(), now() - 60_000
    state = f"{path}/brokers/topics/t/partitions/0/state"
    client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
    _write(client, f"{path}/brokers/topics/t", {"version": 1, "partitions": {"0": [7, 8]}})
    _write(client, state, _state(7, 5, [7]))
    known = (
        BrokerRegistration(at=at, cluster="main", broker=7, session="0x1", epoch=1),
        BrokerRegistration(at=at, cluster="main", broker=8, session="0x2", epoch=2),
        PartitionState(
            at=at, cluster="main", topic="t", partition=0, leader=8, leader_epoch=4, replicas=(7, 8), isr=(7, 8)
        ),
    )
    with _watching(f"{server.address}{path}", seen, known=known) as source:
        back = seen.wait_for(source, BrokerRegistration, broker=7)
        gone = seen.wait_for(source, BrokerRegistration, broker=8)
        moved = seen.wait_for(source, PartitionState, topic="t")
    assert back.at == client.exists(f"{path}/brokers/ids/7").ctime
    assert (gone.session, gone.epoch, gone.since) == (None, None, at)
    assert (moved.leader, moved.since) == (7, at)
