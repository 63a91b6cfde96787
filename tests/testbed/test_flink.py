"""The testbed's Flink clusters start, run jobs, and react to faults as in the reported incidents."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed.artifacts import KAFKA
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import JobReader, flink_job_reset, keep, put_back, resurrect
from testbed.flink.programs import kafka_job, sequence_job
from testbed.kafka import Cluster
from testbed.servers import ZooKeeperServer
from testbed.traffic import Traffic, fill
from testbed.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_BOTH = pytest.mark.parametrize("flink", [pytest.param("1.4.2", marks=pytest.mark.acceptance), "1.20.1"], indirect=True)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(KAFKA["3.9.1"], tmp_path_factory.mktemp("zookeeper")) as server:
        client = server.connect()  # once it serves
        client.stop()
        client.close()
        yield server


@pytest.fixture(scope="module")
def started(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FlinkCluster]]:
    """Clusters by version, started on first use."""
    with ExitStack() as running:

        class Started(dict[str, FlinkCluster]):
            def __missing__(self, version: str) -> FlinkCluster:
                workdir = tmp_path_factory.mktemp("flink")
                cluster = FlinkCluster(version, zookeeper.address, workdir=workdir, name=f"flink-{version}")
                self[version] = running.enter_context(cluster)
                return self[version]

        yield Started()


@pytest.fixture
def flink(request: pytest.FixtureRequest, started: dict[str, FlinkCluster]) -> Iterator[FlinkCluster]:
    """The cluster of the version in the test's parameter; repaired afterwards."""
    cluster = started[request.param]
    yield cluster
    cluster.repair()


def _running_job(flink: FlinkCluster, checkpoints: int = 2) -> str:
    job = flink.submit(sequence_job("counter"))
    flink.wait_until_running(job)
    flink.wait_for_checkpoints(job, checkpoints)
    return job


@pytest.mark.parametrize(
    "flink", ["1.4.2", "1.20.1", pytest.param("2.3.0", marks=pytest.mark.acceptance)], indirect=True
)
def test_a_job_graph_is_locked_by_the_leader_until_cancelled(flink: FlinkCluster) -> None:
    """After the cancellation its znode and its file are gone."""
    job = _running_job(flink)
    leader = flink.wait_for_leader()
    assert set(flink.job_graphs()[job].locks.values()) == {leader.session}
    assert list(flink.storage_dir.rglob("submitted*"))
    flink.cancel(job)
    wait_until(lambda: job not in flink.job_graphs(), "the job graph to disappear")
    wait_until(lambda: not list(flink.storage_dir.rglob("submitted*")), "the job graph's file to disappear")
    assert flink.jobs()[job].state == "CANCELED"


@_BOTH
def test_the_standby_recovers_jobs_of_a_killed_leader(flink: FlinkCluster) -> None:
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.kill(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    assert after.job_manager != before.job_manager
    assert after.session != before.session
    flink.wait_until_running(job)
    recovered = flink.wait_for_checkpoints(job, 1)
    assert recovered.restored == 1
    assert recovered.restored_id is not None
    assert recovered.latest is not None
    assert recovered.restored_id < recovered.latest


@pytest.mark.parametrize("flink", ["1.4.2"], indirect=True)
def test_a_cut_link_moves_leadership_and_leaves_a_lock_on_1_4(flink: FlinkCluster) -> None:
    """Cut for 1.5 s, the leader keeps its session and therefore its lock on the job graph."""
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.cut_link(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    assert after.job_manager != before.job_manager
    flink.wait_until_running(job)
    assert set(flink.job_graphs()[job].locks.values()) == {before.session, after.session}
    assert flink.wait_for_checkpoints(job, 1).restored == 1


@pytest.mark.acceptance
@pytest.mark.parametrize("flink", ["1.20.1"], indirect=True)
def test_a_cut_link_leaves_no_foreign_lock_on_1_20(flink: FlinkCluster) -> None:
    """A leader that gives up its leadership releases its locks."""
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.cut_link(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    flink.wait_until_running(job)
    assert flink.wait_for_checkpoints(job, 1).restored == 1
    assert set(flink.job_graphs()[job].locks.values()) == {after.session}


@_BOTH
def test_a_frozen_leaders_session_expires(flink: FlinkCluster) -> None:
    """When it is thawed it does not lead again."""
    before = flink.wait_for_leader()
    flink.freeze(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    flink.thaw(before.job_manager)
    assert after.job_manager != before.job_manager
    assert flink.leader() == after


@pytest.mark.acceptance
@_BOTH
def test_a_job_restarts_with_its_task_manager(flink: FlinkCluster) -> None:
    job = _running_job(flink)
    flink.kill_task_manager(1)
    flink.wait_until_in_state(job, "RESTARTING")
    flink.start_task_manager(1)
    flink.wait_until_running(job)
    wait_until(lambda: flink.checkpoints(job).restored == 1, "a checkpoint to be restored")


@pytest.mark.acceptance
@_BOTH
def test_a_job_starts_from_a_savepoint(flink: FlinkCluster) -> None:
    job = _running_job(flink)
    path = flink.savepoint(job)
    flink.cancel(job)
    successor = flink.submit(sequence_job("counter"), path)
    flink.wait_until_running(successor)
    started = flink.wait_for_checkpoints(successor, 1)
    assert successor != job
    assert started.restored == 1
    assert started.latest is not None
    assert started.latest > 2


@pytest.mark.acceptance
@_BOTH
def test_restarted_job_managers_recover_their_jobs(flink: FlinkCluster) -> None:
    job = _running_job(flink)
    before = flink.wait_for_leader()
    for number in flink.job_managers:
        flink.stop(number)
    for number in flink.job_managers:
        flink.start(number)
    flink.wait_for_leader(other_than=before)
    flink.wait_until_running(job)
    assert flink.wait_for_checkpoints(job, 1).restored == 1


@pytest.mark.acceptance
def test_a_cancelled_job_returns_and_starves_its_successor(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """FLINK-10011: the old job restores nothing; its successor, which had checkpoints, gets no slots."""
    with FlinkCluster("1.4.2", zookeeper.address, workdir=tmp_path, task_managers=2, slots=1, name="dead") as flink:
        truth = resurrect(flink, sequence_job("clicks"), sequence_job("clicks", parallelism=2))
        assert set(flink.live_jobs()) == {truth.job, truth.successor}
    first, second, third = truth.leaders
    assert first.job_manager == third.job_manager != second.job_manager
    assert first.session == third.session != second.session
    assert truth.ended.state == "CANCELED"
    assert (truth.restored.restored, truth.restored.latest) == (0, 1)
    assert truth.lost.completed >= 3
    assert truth.starved.running == 0


@pytest.mark.acceptance
@pytest.mark.parametrize("flink", ["1.20.1"], indirect=True)
@pytest.mark.parametrize("failover", [False, True], ids=["at once", "at failover"])
def test_a_job_that_is_put_back_runs_again_on_1_20(flink: FlinkCluster, *, failover: bool) -> None:
    """The current leader runs it at once, or else the next leader does."""
    job = _running_job(flink)
    kept = keep(flink, job)
    flink.cancel(job)
    leader = flink.wait_for_leader()
    if failover:
        flink.kill(leader.job_manager)
    put_back(flink, kept)
    assert flink.wait_for_leader(other_than=leader if failover else None).job_manager in flink.job_managers
    flink.wait_until_running(job)
    started = flink.wait_for_checkpoints(job, 1)
    assert started.restored == 0
    assert started.latest == started.completed


@pytest.mark.acceptance
def test_a_subtask_on_1_4_is_reset_to_the_log_start_offset(tmp_path: Path) -> None:
    """The flink-reset report: no checkpoint fails, none is restored, and the job keeps running."""
    topic, group, broken = "topic-124", "flink-job", 8
    quiet = [[2005, 2024], [2024, 2011], [2011, 2024]]
    places = [(topic, number) for number in range(9)]
    with (
        Cluster("0.11.0.0", (2024, 2005, 2011), workdir=tmp_path / "kafka", offsets_on=[2024]) as kafka,
        FlinkCluster("1.4.2", str(kafka.zookeeper), workdir=tmp_path / "flink") as flink,
        JobReader(kafka, flink, group) as reader,
    ):
        assignment = {number: [2005, 2011] if number == broken else quiet[number % 3] for _, number in places}
        kafka.create_topic(topic, assignment=assignment)
        fill(kafka.bootstrap_servers, places, 5000)
        job = flink.submit(kafka_job("clicks", kafka.bootstrap_servers, topic, group, parallelism=3))
        with Traffic(kafka.bootstrap_servers, places, rate=60):
            reader.wait_until_at(topic, broken, 5000)
            truth = flink_job_reset(kafka, flink, job, topic, broken, group=group, unreplicated=200)
        alive = flink.jobs()[job]
    assert [(reset.partition, reset.to) for reset in truth.resets] == [(broken, 0)]
    assert truth.fault.rewind.position > 5000
    assert truth.fault.leader_sessions[0].session != truth.fault.leader_sessions[1].session
    assert (truth.checkpoints.failed, truth.checkpoints.restored) == (0, 0)
    assert (alive.state, alive.running) == ("RUNNING", 3)


@pytest.mark.acceptance
@pytest.mark.parametrize("flink", ["1.20.1"], indirect=True)
def test_a_job_on_1_20_reads_kafka_and_commits(flink: FlinkCluster, tmp_path: Path) -> None:
    with (
        Cluster("3.9.1", (2024,), workdir=tmp_path / "kafka") as kafka,
        JobReader(kafka, flink, "counters") as reader,
    ):
        kafka.create_topic("clicks", partitions=2)
        fill(kafka.bootstrap_servers, [("clicks", 0), ("clicks", 1)], 500)
        job = flink.submit(kafka_job("clicks", kafka.bootstrap_servers, "clicks", "counters", parallelism=2))
        flink.wait_until_running(job)
        for partition in (0, 1):
            reader.wait_until_at("clicks", partition, 500)
        flink.cancel(job)
