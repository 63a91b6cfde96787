"""The testbed's Flink does what it says: clusters come up, jobs run, faults have the effects that they had in life."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed.artifacts import KAFKA
from testbed.flink.cluster import FlinkCluster
from testbed.flink.programs import kafka_job, sequence_job
from testbed.flink.reset import JobReader, flink_job_reset
from testbed.flink.resurrection import keep, put_back, resurrect
from testbed.kafka import Cluster
from testbed.traffic import Traffic, fill
from testbed.waiting import wait_until
from testbed.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_BOTH = pytest.mark.parametrize("flink", [pytest.param("1.4.2", marks=pytest.mark.acceptance), "1.20.1"], indirect=True)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server for all clusters of the module."""
    with ZooKeeperServer(KAFKA["3.9.1"], tmp_path_factory.mktemp("zookeeper")) as server:
        client = server.connect()  # once it serves
        client.stop()
        client.close()
        yield server


@pytest.fixture(scope="module")
def started(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FlinkCluster]]:
    """Clusters by version, each started when the first test asks for it."""
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
    """The cluster of the version that the test's parameter names; well again afterwards, and without jobs."""
    cluster = started[request.param]
    yield cluster
    cluster.settle()


def _running_job(flink: FlinkCluster, checkpoints: int = 2) -> str:
    """A job that runs and has completed so many checkpoints."""
    job = flink.submit(sequence_job("counter"))
    flink.wait_until_running(job)
    flink.wait_for_checkpoints(job, checkpoints)
    return job


@pytest.mark.parametrize(
    "flink", ["1.4.2", "1.20.1", pytest.param("2.3.0", marks=pytest.mark.acceptance)], indirect=True
)
def test_a_job_runs_under_the_leaders_lock_until_it_is_cancelled(flink: FlinkCluster) -> None:
    """Its graph is in ZooKeeper under a lock of the leader's session; once cancelled it is gone, and so is its file."""
    job = _running_job(flink)
    leader = flink.wait_for_leader()
    assert set(flink.job_graphs()[job].locks.values()) == {leader.session}
    assert list(flink.storage_dir.rglob("submitted*"))
    flink.cancel(job)
    wait_until(lambda: job not in flink.job_graphs(), "the job graph to go")
    wait_until(lambda: not list(flink.storage_dir.rglob("submitted*")), "the job graph's file to go")
    assert flink.jobs()[job].state == "CANCELED"


@_BOTH
def test_a_leader_killed_is_followed_by_the_other_one(flink: FlinkCluster) -> None:
    """After SIGKILL the other JobManager leads and takes the job up at its latest checkpoint."""
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.kill(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    assert after.job_manager != before.job_manager
    assert after.session != before.session
    flink.wait_until_running(job)
    taken_up = flink.wait_for_checkpoints(job, 1)
    assert taken_up.restored == 1
    assert taken_up.restored_id is not None
    assert taken_up.latest is not None
    assert taken_up.restored_id < taken_up.latest


@pytest.mark.parametrize("flink", ["1.4.2"], indirect=True)
def test_a_cut_link_costs_leadership_on_1_4_and_leaves_a_lock(flink: FlinkCluster) -> None:
    """Cut for 1.5 s the leader keeps its session and so its lock on the job graph, beside that of the new leader."""
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.cut_link(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    assert after.job_manager != before.job_manager
    flink.wait_until_running(job)
    assert set(flink.job_graphs()[job].locks.values()) == {before.session, after.session}
    assert flink.wait_for_checkpoints(job, 1).restored == 1


@pytest.mark.parametrize("flink", ["1.20.1"], indirect=True)
def test_a_cut_link_leaves_no_foreign_lock_on_1_20(flink: FlinkCluster) -> None:
    """A leader that gives up releases its locks: only the session that leads then holds the job graph."""
    job = _running_job(flink)
    before = flink.wait_for_leader()
    flink.cut_link(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    flink.wait_until_running(job)
    assert flink.wait_for_checkpoints(job, 1).restored == 1
    assert set(flink.job_graphs()[job].locks.values()) == {after.session}


@_BOTH
def test_a_frozen_leader_loses_its_session(flink: FlinkCluster) -> None:
    """Frozen for longer than its session it is succeeded by the other one; thawed it does not lead again by itself."""
    before = flink.wait_for_leader()
    flink.freeze(before.job_manager)
    after = flink.wait_for_leader(other_than=before)
    flink.thaw(before.job_manager)
    assert after.job_manager != before.job_manager
    assert flink.leader() == after


@_BOTH
def test_a_job_restarts_with_its_task_manager(flink: FlinkCluster) -> None:
    """Without slots it does not run; with the TaskManager back it goes on from its latest checkpoint."""
    job = _running_job(flink)
    flink.kill_task_manager(1)
    flink.wait_until_in_state(job, "RESTARTING")
    flink.start_task_manager(1)
    flink.wait_until_running(job)
    wait_until(lambda: flink.checkpoints(job).restored == 1, "a checkpoint to be restored")


@_BOTH
def test_a_savepoint_is_what_another_job_begins_with(flink: FlinkCluster) -> None:
    """A job submitted from a savepoint has restored it, and counts its checkpoints on."""
    job = _running_job(flink)
    path = flink.savepoint(job)
    flink.cancel(job)
    successor = flink.submit(sequence_job("counter"), path)
    flink.wait_until_running(successor)
    begun = flink.wait_for_checkpoints(successor, 1)
    assert successor != job
    assert begun.restored == 1
    assert begun.latest is not None
    assert begun.latest > 2


@_BOTH
def test_job_managers_stopped_and_started_take_their_jobs_up(flink: FlinkCluster) -> None:
    """After SIGTERM of all JobManagers and a new start the job runs again, from its latest checkpoint."""
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
def test_a_cancelled_job_comes_back_and_starves_its_successor_on_1_4(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """FLINK-10011: the dead job begins with nothing, and its successor, which had checkpoints, gets no slots."""
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
    """Its znode and files put back, a cancelled job is run by the leader that lives, or else by the next one."""
    job = _running_job(flink)
    kept = keep(flink, job)
    flink.cancel(job)
    leader = flink.wait_for_leader()
    if failover:
        flink.kill(leader.job_manager)
    put_back(flink, kept)
    assert flink.wait_for_leader(other_than=leader if failover else None).job_manager in flink.job_managers
    flink.wait_until_running(job)
    begun = flink.wait_for_checkpoints(job, 1)
    assert begun.restored == 0
    assert begun.latest == begun.completed


@pytest.mark.acceptance
def test_one_subtask_of_a_job_on_1_4_is_reset_to_the_logs_start(tmp_path: Path) -> None:
    """The flink-reset report: one partition goes back to 0; no checkpoint fails, none is restored, the job runs on."""
    topic, group, broken = "topic-124", "flink-job", 8
    quiet = [[2005, 2024], [2024, 2011], [2011, 2024]]
    places = [(topic, number) for number in range(9)]
    with (
        Cluster("0.11.0.0", (2024, 2005, 2011), workdir=tmp_path / "kafka", offsets_on=[2024], in_order=True) as kafka,
        FlinkCluster("1.4.2", str(kafka.zookeeper), workdir=tmp_path / "flink") as flink,
        JobReader(kafka, flink, group) as reader,
    ):
        assignment = {number: [2005, 2011] if number == broken else quiet[number % 3] for _, number in places}
        kafka.create_topic(topic, assignment=assignment)
        fill(kafka.bootstrap_servers, places, 5000)
        job = flink.submit(kafka_job("clicks", kafka.bootstrap_servers, topic, group, parallelism=3))
        with Traffic(kafka.bootstrap_servers, places, rate=60):
            reader.wait_until_at(topic, broken, 5000)
            truth = flink_job_reset(kafka, flink, job, topic, broken, group=group, unseen=200)
        alive = flink.jobs()[job]
    assert [(one.partition, one.to) for one in truth.resets] == [(broken, 0)]
    assert truth.fault.rewind.position > 5000
    assert truth.fault.leader_sessions[0].session != truth.fault.leader_sessions[1].session
    assert (truth.checkpoints.failed, truth.checkpoints.restored) == (0, 0)
    assert (alive.state, alive.running) == ("RUNNING", 3)


@pytest.mark.acceptance
@pytest.mark.parametrize("flink", ["1.20.1"], indirect=True)
def test_a_job_on_1_20_reads_kafka_and_commits(flink: FlinkCluster, tmp_path: Path) -> None:
    """KafkaSource begins at the log's start and commits what its checkpoints hold, to the log's end."""
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
