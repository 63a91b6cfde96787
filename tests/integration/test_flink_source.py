"""The Flink source on real clusters: 1.4.2, 1.20.1 and 2.3.0, failovers, and stale metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.config.sources import Flink
from agent.model.observations.base import Available, Unavailable
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.sources.flink.source import FlinkSource
from testbed import traffic
from testbed.artifacts import KAFKA
from testbed.flink.cluster import FlinkCluster
from testbed.flink.programs import kafka_job, sequence_job
from testbed.kafka import Cluster
from testbed.proxy import Proxy
from testbed.servers import ZooKeeperServer
from testbed.waiting import wait_until
from tests.integration.scenes import named
from tests.integration.seen import Seen, last

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_RECORDS = 100_000


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for high availability."""
    with ZooKeeperServer(KAFKA["3.9.1"], tmp_path_factory.mktemp("zookeeper")) as running:
        client = running.connect()
        client.stop()
        client.close()
        yield running


@pytest.fixture(scope="module", params=["1.4.2", "1.20.1", "2.3.0"])
def flink(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlinkCluster]:
    """A cluster of each version, one after the other."""
    with _started(request.param, zookeeper.address, tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _settled_flink(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore what a test has killed or cut, and cancel what it left running, before the next test."""
    yield
    if "flink" in request.fixturenames:
        request.getfixturevalue("flink").repair()


@contextmanager
def _started(version: str, zookeeper: str, workdir: Path) -> Iterator[FlinkCluster]:
    with FlinkCluster(version, zookeeper, workdir=workdir, name=named("flink")) as cluster:
        yield cluster


@contextmanager
def _open_source(flink: FlinkCluster, seen: Seen, **fields: Any) -> Iterator[FlinkSource]:
    """A source on the cluster: REST, ZooKeeper and storage directory unless `fields` say otherwise."""
    root, _, cluster_id = flink.zookeeper_path.rpartition("/")
    settings = {
        "rest": tuple(flink.rest.values()),
        "zookeeper": flink.zookeeper,
        "zookeeper_root": root,
        "cluster_id": cluster_id,
        "storage_directory": flink.storage_dir,
        **fields,
    }
    source = FlinkSource("f", Flink.model_construct(**settings), seen, topics=lambda: ["in.put"])
    try:
        yield source
    finally:
        source.close()


def _seconds(number: int) -> int:
    return number * 1000


def test_job_is_observed_from_start_to_cancellation(flink: FlinkCluster) -> None:
    """Its graph under the leader's lock, the graph's file, its states and checkpoints."""
    seen = Seen()
    with _open_source(flink, seen) as source:
        observed = seen.wait_for(source, JobManagerLeader)
        leader = flink.leader()
        assert leader is not None
        assert (observed.session, observed.address is None) == (leader.session, False)
        job = flink.submit(sequence_job("counter"))
        running = seen.wait_for(source, FlinkJob, job=job, state="RUNNING", tasks_running=1)
        graph = seen.wait_for(source, JobGraph, job=job, locks=(leader.session,))
        file = seen.wait_for(source, JobGraphFile, file=graph.file)
        checkpoints = seen.wait_for(source, Checkpoints, lambda checkpoints: checkpoints.completed >= 2, job=job)
        seen.wait_for(source, JobListing, lambda listing: job in listing.jobs, address=flink.rest[leader.job_manager])
        znode = flink.job_graphs()[job]
        flink.cancel(job)
        seen.wait_for(source, FlinkJob, job=job, state="CANCELED")
        seen.wait_for(source, JobGraph, job=job, made_at=None)
        seen.wait_for(source, JobGraphFile, file=graph.file, modified_at=None)
    assert (running.name, running.ended_at, running.tasks) == ("counter", None, 1)
    assert graph.made_at == znode.ctime
    assert file.size > 0
    assert (checkpoints.restored, checkpoints.restored_id) == (0, None)
    assert seen.all(Unavailable) == []


def test_wrong_znode_path_names_the_settings_to_fix(flink: FlinkCluster) -> None:
    """Without a known leader no listing is the leader's."""
    seen = Seen()
    with _open_source(flink, seen, cluster_id="/elsewhere") as source:
        unavailable = seen.wait_for(source, Unavailable, lambda reported: reported.source == "flink_zookeeper")
    assert "`zookeeper_root` and `cluster_id`" in unavailable.reason
    assert seen.all(JobListing) == []


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", ["kill", "stop", "cut_link"])
def test_failover_restores_the_job_and_keeps_it_listed(flink: FlinkCluster, fault: str) -> None:
    seen = Seen()
    with _open_source(flink, seen) as source:
        job = flink.submit(sequence_job("counter"))
        flink.wait_for_checkpoints(job, 3)
        first = seen.wait_for(source, FlinkJob, job=job, state="RUNNING", tasks_running=1)
        seen.wait_for(source, JobListing, lambda listing: job in listing.jobs)
        before = seen.wait_for(source, JobManagerLeader)
        checkpoints = seen.wait_for(source, Checkpoints, job=job)
        seen.mark()
        leader = flink.leader()
        assert leader is not None
        getattr(flink, fault)(leader.job_manager)
        after = seen.wait_for(source, JobManagerLeader, lambda leader: leader.address is not None, seconds=120)
        seen.wait_for(source, FlinkJob, lambda running: running.started_at > first.started_at, job=job, seconds=120)
        restored = seen.wait_for(
            source, Checkpoints, lambda restored: restored.restored_id is not None, job=job, seconds=120
        )
        flink.wait_until_running(job)
        seen.wait_for(source, FlinkJob, state="RUNNING", tasks_running=1)
        new_leader = flink.leader()
    assert new_leader is not None
    assert after.leader_id != before.leader_id
    assert after.start >= before.start
    assert not restored.restored_savepoint
    assert (restored.restored_id or 0) >= (checkpoints.last or 0)
    assert all(job in listing.jobs for listing in seen.all(JobListing))
    assert last(seen.all(JobManagerLeader)).session == new_leader.session
    assert len(seen.outages()) == len(seen.all(Available))


@pytest.mark.acceptance
def test_former_leader_keeps_its_lock_in_1_4(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """FLINK-10011: two sessions hold the graph; the job is cancelled, and its graph stays under the old one's lock."""
    seen = Seen()
    with (
        _started("1.4.2", zookeeper.address, tmp_path_factory.mktemp("flink")) as flink,
        _open_source(flink, seen) as source,
    ):
        job = flink.submit(sequence_job("counter"))
        flink.wait_for_checkpoints(job, 2)
        old = flink.leader()
        assert old is not None
        flink.cut_link(old.job_manager)
        new = flink.wait_for_leader(old)
        both = tuple(sorted((old.session, new.session)))
        seen.wait_for(source, JobGraph, job=job, locks=both, seconds=120)
        flink.wait_until_running(job)
        flink.cancel(job)
        seen.wait_for(source, FlinkJob, job=job, state="CANCELED")
        left = seen.wait_for(source, JobGraph, job=job, locks=(old.session,))
        source.poll()
        assert left.made_at is not None
        assert seen.all(JobGraph, job=job, made_at=None) == []
        assert seen.all(JobGraphFile, file=left.file, modified_at=None) == []


def test_positions_reach_the_log_end(
    kafka_3_9: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Topic, subtask and host have their original names."""
    _read_to_the_end("1.20.1", kafka_3_9, zookeeper, tmp_path_factory.mktemp("flink"))


@pytest.mark.acceptance
def test_positions_reach_the_log_end_in_1_4(
    kafka_0_11: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The versions of the original incident: Flink 1.4.2, Kafka 0.11."""
    _read_to_the_end("1.4.2", kafka_0_11, zookeeper, tmp_path_factory.mktemp("flink"))


def _read_to_the_end(version: str, kafka: Cluster, zookeeper: ZooKeeperServer, workdir: Path) -> None:
    if "in.put" not in kafka.admin.list_topics(timeout=30).topics:
        kafka.create_topic("in.put", 3)
    ends = {0: 500, 1: 2000, 2: 1000}
    ends = {partition: (kafka.log_end("in.put", partition) or 0) + records for partition, records in ends.items()}
    for partition, end in ends.items():
        traffic.fill(kafka.bootstrap_servers, [("in.put", partition)], end - (kafka.log_end("in.put", partition) or 0))
    seen = Seen()
    with (
        _started(version, zookeeper.address, workdir) as flink,
        _open_source(flink, seen, kafka="main", metrics_interval=_seconds(1)) as source,
    ):
        program = kafka_job("reader", kafka.bootstrap_servers, "in.put", named("g"), parallelism=2)
        job = flink.submit(program)
        for partition, end in ends.items():
            seen.wait_for(source, Position, partition=partition, offset=end, committed=end, seconds=120)
    positions = seen.all(Position)
    subjects = {(position.topic, position.job, position.cluster, position.flink) for position in positions}
    assert subjects == {("in.put", job, "main", "f")}
    assert {(position.task, position.attempt) for position in positions} == {("Source: kafka-source", 0)}
    assert {position.subtask for position in positions} == {0, 1}
    assert {position.host for position in positions} <= {"localhost", "127.0.0.1"}
    assert _find_rewinds(positions) == []


@pytest.mark.acceptance
def test_alternating_job_managers_make_no_rewind(
    kafka_3_9: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each JobManager is cut off in turn while a job reads on.

    Their cached metrics are stale (1328, then 1321, on 1.20), but no reported position moves backwards.
    """
    topic, seen = named("stale"), Seen()
    kafka_3_9.create_topic(topic, 2)
    traffic.fill(kafka_3_9.bootstrap_servers, [(topic, 0), (topic, 1)], _RECORDS)
    with _started("1.20.1", zookeeper.address, tmp_path_factory.mktemp("flink")) as flink:
        job = flink.submit(
            kafka_job("reader", kafka_3_9.bootstrap_servers, topic, named("g"), parallelism=2, delay_ms=2)
        )
        flink.wait_until_running(job)
        ports = [int(url.rpartition(":")[2]) for url in flink.rest.values()]
        with Proxy("127.0.0.1", ports[0]) as first, Proxy("127.0.0.1", ports[1]) as second:
            rest = tuple(f"http://{proxy.address}" for proxy in (first, second))
            without_zookeeper = {"rest": rest, "zookeeper": None, "kafka": "main", "metrics_interval": _seconds(1)}
            with _open_source(flink, seen, **without_zookeeper) as source:
                for turn, (cut, healed) in zip(range(8), cycle([(first, second), (second, first)]), strict=False):
                    healed.heal()
                    cut.cut()
                    wanted = len(seen.all(Position, partition=turn % 2)) + 2
                    wait_until(lambda: _polled(source, seen, turn % 2) >= wanted, "two more positions", 120)  # noqa: B023
    positions = seen.all(Position)
    assert {listing.address for listing in seen.all(JobListing)} == set(rest)
    assert _find_rewinds(positions) == []
    assert all(position.since is None or position.since <= position.at for position in positions)


def _polled(source: FlinkSource, seen: Seen, partition: int) -> int:
    source.poll()
    return len(seen.all(Position, partition=partition))


def _find_rewinds(positions: list[Position]) -> list[tuple[int, int]]:
    """Return positions lower than the one before of the same partition, with that one."""
    ordered = sorted(positions, key=lambda position: (position.partition, position.at))
    rewinds = []
    for _, group in groupby(ordered, key=lambda position: position.partition):
        offsets = [position.offset for position in group]
        rewinds += [(old, new) for old, new in pairwise(offsets) if new < old]
    return rewinds
