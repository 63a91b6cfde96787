"""The Flink source against real clusters: 1.4.2, 1.20.1 and 2.3.0, failovers, and metrics that are stale."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.config.flink_section import Flink
from agent.model.observations import (
    Available,
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
    Unavailable,
)
from agent.sources.flink.source import FlinkSource
from testbed import traffic
from testbed.artifacts import KAFKA
from testbed.flink.cluster import FlinkCluster
from testbed.flink.programs import kafka_job, sequence_job
from testbed.kafka import Cluster
from testbed.proxy import Proxy
from testbed.waiting import wait_until
from testbed.zookeeper import ZooKeeperServer
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
    """What a test has killed, cut or left running is well again, or gone, before the next one begins."""
    yield
    if "flink" in request.fixturenames:
        request.getfixturevalue("flink").settle()


@contextmanager
def _started(version: str, zookeeper: str, workdir: Path) -> Iterator[FlinkCluster]:
    with FlinkCluster(version, zookeeper, workdir=workdir, name=named("flink")) as cluster:
        yield cluster


@contextmanager
def _watching(flink: FlinkCluster, seen: Seen, **fields: Any) -> Iterator[FlinkSource]:
    """A source on the cluster: REST, ZooKeeper and storage directory unless told otherwise."""
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
    """So many seconds in ms, as settings hold them."""
    return number * 1000


def test_a_jobs_whole_life_is_seen(flink: FlinkCluster) -> None:
    """Its graph under the leader's lock, the graph's file, its states and checkpoints; after it is cancelled, none."""
    seen = Seen()
    with _watching(flink, seen) as source:
        told = seen.wait_for(source, JobManagerLeader)
        leader = flink.leader()
        assert leader is not None
        assert (told.session, told.address is None) == (leader.session, False)
        job = flink.submit(sequence_job("counter"))
        running = seen.wait_for(source, FlinkJob, job=job, state="RUNNING", tasks_running=1)
        graph = seen.wait_for(source, JobGraph, job=job, locks=(leader.session,))
        file = seen.wait_for(source, JobGraphFile, file=graph.file)
        counted = seen.wait_for(source, Checkpoints, lambda one: one.completed >= 2, job=job)
        seen.wait_for(source, JobListing, lambda one: job in one.jobs, address=flink.rest[leader.job_manager])
        stands = flink.job_graphs()[job]
        flink.cancel(job)
        seen.wait_for(source, FlinkJob, job=job, state="CANCELED")
        seen.wait_for(source, JobGraph, job=job, made_at=None)
        seen.wait_for(source, JobGraphFile, file=graph.file, modified_at=None)
    assert (running.name, running.ended_at, running.tasks) == ("counter", None, 1)
    assert graph.made_at == stands.ctime
    assert file.size > 0
    assert (counted.restored, counted.restored_id) == (0, None)
    assert seen.all(Unavailable) == []


def test_a_wrong_path_in_zookeeper_is_told_with_the_settings_that_make_it(flink: FlinkCluster) -> None:
    """REST is seen; that no listing is the leader's is not its fault."""
    seen = Seen()
    with _watching(flink, seen, cluster_id="/elsewhere") as source:
        blind = seen.wait_for(source, Unavailable, lambda one: one.source == "flink_zookeeper")
    assert "`zookeeper_root` and `cluster_id`" in blind.reason
    assert seen.all(JobListing) == []


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", ["kill", "stop", "cut_link"])
def test_a_failover_is_seen_as_what_it_is(flink: FlinkCluster, fault: str) -> None:
    """Another leadership; the job, restored, under the same id; at no moment a listing without it."""
    seen = Seen()
    with _watching(flink, seen) as source:
        job = flink.submit(sequence_job("counter"))
        flink.wait_for_checkpoints(job, 3)
        first = seen.wait_for(source, FlinkJob, job=job, state="RUNNING", tasks_running=1)
        seen.wait_for(source, JobListing, lambda one: job in one.jobs)
        before = seen.wait_for(source, JobManagerLeader)
        checkpoints = seen.wait_for(source, Checkpoints, job=job)
        seen.mark()
        leader = flink.leader()
        assert leader is not None
        getattr(flink, fault)(leader.job_manager)
        after = seen.wait_for(source, JobManagerLeader, lambda one: one.address is not None, seconds=120)
        seen.wait_for(source, FlinkJob, lambda one: one.started_at > first.started_at, job=job, seconds=120)
        restored = seen.wait_for(source, Checkpoints, lambda one: one.restored_id is not None, job=job, seconds=120)
        flink.wait_until_running(job)
        seen.wait_for(source, FlinkJob, state="RUNNING", tasks_running=1)
        leads = flink.leader()
    assert leads is not None
    assert after.leader_id != before.leader_id
    assert after.start >= before.start
    assert not restored.restored_savepoint
    assert (restored.restored_id or 0) >= (checkpoints.last or 0)
    assert all(job in one.jobs for one in seen.all(JobListing))
    assert last(seen.all(JobManagerLeader)).session == leads.session
    assert len(seen.all(Unavailable)) == len(seen.all(Available))


@pytest.mark.acceptance
def test_a_former_leader_keeps_its_lock_in_1_4(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """FLINK-10011: two sessions hold the graph; the job is cancelled, and its graph stays under the old one's lock."""
    seen = Seen()
    with (
        _started("1.4.2", zookeeper.address, tmp_path_factory.mktemp("flink")) as flink,
        _watching(flink, seen) as source,
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


def test_positions_are_those_of_the_log(
    kafka_3_9: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Read to its end, each partition's position is its log end; topic, subtask and host have their own names."""
    _read_to_the_end("1.20.1", kafka_3_9, zookeeper, tmp_path_factory.mktemp("flink"))


@pytest.mark.acceptance
def test_positions_are_those_of_the_log_in_1_4(
    kafka_0_11: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As reported in the incident: Flink 1.4.2, Kafka 0.11."""
    _read_to_the_end("1.4.2", kafka_0_11, zookeeper, tmp_path_factory.mktemp("flink"))


def _read_to_the_end(version: str, kafka: Cluster, zookeeper: ZooKeeperServer, workdir: Path) -> None:
    if "in.put" not in kafka.admin.list_topics(timeout=30).topics:
        kafka.create_topic("in.put", 3)
    ends = {0: 500, 1: 2000, 2: 1000}
    ends = {one: (kafka.log_end("in.put", one) or 0) + records for one, records in ends.items()}
    for partition, end in ends.items():
        traffic.fill(kafka.bootstrap_servers, [("in.put", partition)], end - (kafka.log_end("in.put", partition) or 0))
    seen = Seen()
    with (
        _started(version, zookeeper.address, workdir) as flink,
        _watching(flink, seen, kafka="main", metrics_interval=_seconds(1)) as source,
    ):
        program = kafka_job("reader", kafka.bootstrap_servers, "in.put", named("g"), parallelism=2)
        job = flink.submit(program)
        for partition, end in ends.items():
            seen.wait_for(source, Position, partition=partition, offset=end, committed=end, seconds=120)
    told = seen.all(Position)
    assert {(one.topic, one.job, one.cluster, one.flink) for one in told} == {("in.put", job, "main", "f")}
    assert {(one.task, one.attempt) for one in told} == {("Source: kafka-source", 0)}
    assert {one.subtask for one in told} == {0, 1}
    assert {one.host for one in told} <= {"localhost", "127.0.0.1"}
    assert _falls(told) == []


@pytest.mark.acceptance
def test_alternating_job_managers_make_no_rewind(
    kafka_3_9: Cluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each JobManager is cut off in turn while a job reads on. What they have kept is stale (1328, then 1321, on
    1.20), and asked for in turn by others: no position that is told ever goes back.
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
            rest = tuple(f"http://{one.address}" for one in (first, second))
            alone = {"rest": rest, "zookeeper": None, "kafka": "main", "metrics_interval": _seconds(1)}
            with _watching(flink, seen, **alone) as source:
                for turn, (cut, healed) in zip(range(8), cycle([(first, second), (second, first)]), strict=False):
                    healed.heal()
                    cut.cut()
                    wanted = len(seen.all(Position, partition=turn % 2)) + 2
                    wait_until(lambda: _polled(source, seen, turn % 2) >= wanted, "two more positions", 120)  # noqa: B023
    told = seen.all(Position)
    assert {one.address for one in seen.all(JobListing)} == set(rest)
    assert _falls(told) == []
    assert all(one.since is None or one.since <= one.at for one in told)


def _polled(source: FlinkSource, seen: Seen, partition: int) -> int:
    source.poll()
    return len(seen.all(Position, partition=partition))


def _falls(told: list[Position]) -> list[tuple[int, int]]:
    """Positions below the one told before of the same partition."""
    by_partition = groupby(sorted(told, key=lambda one: (one.partition, one.at)), key=lambda one: one.partition)
    found = []
    for _, group in by_partition:
        offsets = [one.offset for one in group]
        found += [(old, new) for old, new in pairwise(offsets) if new < old]
    return found
