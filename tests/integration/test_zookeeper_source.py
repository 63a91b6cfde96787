"""The ZooKeeper source against real ZooKeeper and brokers: sessions, leaders, topics, and our own link to it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from agent.model.config_types import NameFilter
from agent.model.observations import Available, BrokerRegistration, Controller, Observation, PartitionState, Unavailable
from agent.sources.zookeeper.source import ZooKeeperSource
from testbed.artifacts import KAFKA
from testbed.kafka import Cluster
from testbed.proxy import Proxy
from testbed.waiting import wait_until
from testbed.zookeeper import ZooKeeperServer
from tests.integration.scenes import named, now
from tests.integration.seen import Seen

pytestmark = pytest.mark.integration

_VERSIONS = ("kafka_0_11", "kafka_3_9")
_SESSION_SECONDS = 3
_BROKER = b'{"version":4,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"timestamp":"1"}'


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster whose fixture is named by the test's parameter."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of its own, for znodes that the test writes."""
    with ZooKeeperServer(KAFKA["3.9.1"], tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """A client of that ZooKeeper; its session is what a broker's would be."""
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
        options={"timeout": _SESSION_SECONDS},
    )
    try:
        yield source
    finally:
        source.close()


def _write(client: KazooClient, path: str, content: object) -> None:
    """Make a znode or change it, as a controller does."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    if client.exists(path):
        client.set(path, body)
    else:
        client.create(path, body, makepath=True)


def _replicas(seen: Seen, partition: int) -> list[tuple[int, ...]]:
    """The replicas that the partition has had, one after the other."""
    return [replicas for replicas, _ in groupby(one.replicas for one in seen.all(PartitionState, partition=partition))]


def _state(leader: int, epoch: int, isr: list[int]) -> dict[str, object]:
    return {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": epoch, "isr": isr}


def test_topics_that_are_not_chosen_are_watched_where_another_source_needs_them(kafka_3_9: Cluster) -> None:
    """As the changelogs of Kafka Streams; no others."""
    name, seen = named("also"), Seen()
    for topic in (f"{name}-changelog", f"{name}-other"):
        kafka_3_9.create_topic(topic, assignment={0: [2005]})
    with _watching(kafka_3_9.zookeeper, seen, "no-such-topic", also=lambda one: one.endswith("-changelog")) as source:
        seen.wait_for(source, PartitionState, topic=f"{name}-changelog", leader=2005)
        seen.wait_for(source, Controller)
    assert seen.all(PartitionState, topic=f"{name}-other") == []


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_registrations_controller_and_partitions_are_seen(cluster: Cluster) -> None:
    """As the znodes have them: sessions, broker epochs, leader epochs, the topic's id or its znode's czxid."""
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
    assert {one.topic for one in seen.all(PartitionState)} == {name}
    assert seen.all(Unavailable) == []


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_an_expired_session_is_seen_as_gone_then_back_under_another(cluster: Cluster) -> None:
    """Old session, gone, new session, in this order of time too; its leaderships move in between."""
    name, seen = named("session"), Seen()
    cluster.create_topic(name, assignment={0: [2005, 2011]})
    with _watching(cluster.zookeeper, seen, name) as source:
        seen.wait_for(source, BrokerRegistration, broker=2005)
        seen.wait_for(source, PartitionState, topic=name, leader=2005)
        before, after = cluster.expire_session(2005)
        seen.wait_for(source, BrokerRegistration, broker=2005, session=after.session)
        moved = seen.wait_for(source, PartitionState, topic=name, leader=2011)
    told = seen.all(BrokerRegistration, broker=2005)
    assert [(one.session, one.epoch) for one in told] == [tuple(before), (None, None), tuple(after)]
    assert [one.at for one in told] == sorted(one.at for one in told)
    assert told[1].start <= moved.at <= told[2].at + 60_000
    assert (moved.leader_epoch or 0) > 0


@pytest.mark.parametrize("cluster", _VERSIONS, indirect=True)
def test_a_topic_made_again_has_another_id(cluster: Cluster) -> None:
    """Deleted, then there again under another id: never the same topic with other offsets."""
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


def test_changes_are_told_within_a_moment_and_dated_by_zookeeper(server: ZooKeeperServer, client: KazooClient) -> None:
    """Watches tell, not polls, of which there are none here. Each change is exact: at its znode's mtime."""
    path, seen = f"/{named('k')}", Seen()
    _write(client, f"{path}/brokers/topics/t", {"version": 1, "partitions": {"0": [1, 2]}})
    state = f"{path}/brokers/topics/t/partitions/0/state"
    _write(client, state, _state(1, 0, [1, 2]))
    with _watching(f"{server.address}{path}", seen) as source:
        seen.wait_for(source, PartitionState, leader=1)
        for epoch in range(1, 11):
            _write(client, state, _state(epoch % 2 + 1, epoch, [epoch % 2 + 1]))
            told = partial(seen.all, PartitionState, leader_epoch=epoch)
            (changed,) = wait_until(told, "a change of leader", seconds=10, every=0.002)
            mtime = client.get(state)[1].mtime
            assert changed.at == changed.start == mtime
            assert changed.seen - mtime < 2000
        _write(client, state, _state(-1, 11, []))
        nobody = seen.wait_for(source, PartitionState, leader_epoch=11)
    assert nobody.leader is None


def test_sessions_are_told_by_owner_and_czxid_not_by_existence(server: ZooKeeperServer, client: KazooClient) -> None:
    """A broker's znode that was replaced while we were away is a new registration, dated when it was made."""
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


def test_a_link_that_is_cut_is_blind_once_and_sighted_when_it_heals(
    server: ZooKeeperServer, client: KazooClient
) -> None:
    """Unavailable when our session may be lost; then all is read anew, and what was missed dates from the last sighting."""
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
        blind = seen.wait_for(source, Unavailable)
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
    assert blind.at - cut > _SESSION_SECONDS * 1000
    assert len(seen.all(Unavailable)) == len(seen.all(Available)) == 1
    assert missed.since is not None
    assert gone.since is not None
    assert missed.since <= cut
    assert gone.since <= cut
    assert again.start == again.at


def test_a_zookeeper_that_starts_later_is_waited_for(tmp_path: Path) -> None:
    """Nothing answers at first: Unavailable, once. Available when a broker has registered."""
    seen = Seen()
    server = ZooKeeperServer(KAFKA["3.9.1"], tmp_path)
    with _watching(f"{server.address}/later", seen) as source:
        blind = seen.wait_for(source, Unavailable)
        with server:
            broker = server.connect()
            broker.create("/later/brokers/ids/1", _BROKER, ephemeral=True, makepath=True)
            seen.wait_for(source, BrokerRegistration, broker=1)
            seen.wait_for(source, Available)
            broker.stop()
            broker.close()
    assert server.address in blind.reason
    assert len(seen.all(Unavailable)) == 1


def test_a_path_without_brokers_is_blind(server: ZooKeeperServer, client: KazooClient) -> None:
    """A wrong chroot, or a cluster that never ran: said, and taken back when the first broker registers."""
    path, seen = f"/{named('k')}", Seen()
    with _watching(f"{server.address}{path}", seen) as source:
        blind = seen.wait_for(source, Unavailable)
        client.create(f"{path}/brokers/ids/7", _BROKER, ephemeral=True, makepath=True)
        seen.wait_for(source, BrokerRegistration, broker=7)
        seen.wait_for(source, Available)
    assert path in blind.reason
    assert len(seen.all(Unavailable)) == 1


def test_what_cannot_be_decoded_is_blind_and_stops_nothing(server: ZooKeeperServer, client: KazooClient) -> None:
    """The topic or partition whose znode is not Kafka's is Unavailable until it is; all others go on."""
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


def test_what_changed_before_this_run_is_told_at_start(server: ZooKeeperServer, client: KazooClient) -> None:
    """A broker lost and a leader moved while the agent was down are changes since the last observation."""
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
