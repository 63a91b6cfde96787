"""What Backflow makes of real Flink 1.20.1: failovers, restores and cancelled jobs are no alarm, a dead job is one."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints, FlinkJob, JobManagerLeader, Position
from testbed.agent import Agent, flink_table
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import keep, put_back
from testbed.flink.programs import kafka_job, sequence_job
from testbed.kafka import Cluster
from testbed.traffic import Traffic, fill
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, findings, named, now

pytestmark = [pytest.mark.integration, pytest.mark.acceptance]

QUIET = {"jobmanager_moved", "leader_moved", "broker_session_lost", "controller_moved"}
"""What may be told as info of a cluster that is well."""


@pytest.fixture(scope="module")
def flink(kafka_3_9: Cluster) -> Iterator[FlinkCluster]:
    """Two JobManagers and a TaskManager of Flink 1.20.1, beside the ZooKeeper of Kafka 3.9.1."""
    with (
        tempfile.TemporaryDirectory(prefix="backflow-flink-") as folder,
        FlinkCluster("1.20.1", kafka_3_9.zookeeper or "", workdir=Path(folder, "flink"), slots=4) as cluster,
    ):
        yield cluster


@pytest.fixture(autouse=True)
def _settled_jobs(flink: FlinkCluster) -> Iterator[None]:
    """No job of one test is there in the next, and both JobManagers are."""
    yield
    flink.repair()


@pytest.fixture
def agent(kafka_3_9: Cluster, flink: FlinkCluster, tmp_path: Path) -> Iterator[Agent]:
    """The agent with the shipped rules, on both."""
    with Agent(tmp_path, {"main": addresses(kafka_3_9)}, tables=flink_table("jobs", flink, kafka="main")) as agent:
        agent.wait_until_watching()
        yield agent


@pytest.fixture
def reading(kafka_3_9: Cluster, flink: FlinkCluster, agent: Agent) -> Iterator[str]:
    """The id of a job that reads a topic which is written all the time; the agent has seen where it reads."""
    topic, group = named("clicks"), named("flink")
    kafka_3_9.create_topic(topic, 2)
    places = [(topic, 0), (topic, 1)]
    fill(kafka_3_9.bootstrap_servers, places, 4000)
    job = flink.submit(kafka_job(named("job"), kafka_3_9.bootstrap_servers, topic, group, parallelism=2))
    with Traffic(kafka_3_9.bootstrap_servers, places, 200):
        flink.wait_until_running(job)
        agent.wait_for(lambda one: isinstance(one, Position) and one.job == job and one.offset > 3000, "positions", 120)
        flink.wait_for_checkpoints(job, 2)
        agent.wait_for(lambda one: isinstance(one, Checkpoints) and one.job == job and one.completed > 1, "checkpoints")
        yield job


def quiet(agent: Agent) -> None:
    """Nothing about jobs or offsets was told but causes and what a restore explains."""
    told = [one for incident in agent.unmerged() for one in incident["causes"] + incident["findings"]]
    loud = [one for one in told if one["kind"] not in QUIET and "checkpoint_restore" not in one["labels"]]
    assert not loud
    assert {one["severity"] for one in told} <= {"info"}


def kill(flink: FlinkCluster, leader: int) -> None:
    """The leader dies; it is started again when the other leads."""
    flink.kill(leader)


def stop(flink: FlinkCluster, leader: int) -> None:
    """An operator stops the leader."""
    flink.stop(leader)


def cut(flink: FlinkCluster, leader: int) -> None:
    """The leader's link to ZooKeeper is away for 1.5 s."""
    flink.cut_link(leader)


def both(flink: FlinkCluster, leader: int) -> None:
    """All JobManagers are restarted."""
    other = next(one for one in flink.job_managers if one != leader)
    for number in (other, leader):
        flink.stop(number)
    for number in (other, leader):
        flink.start(number)


@pytest.mark.parametrize("fault", [kill, stop, cut, both])
def test_a_failover_is_no_alarm(
    flink: FlinkCluster, agent: Agent, reading: str, fault: Callable[[FlinkCluster, int], None]
) -> None:
    """The job is restored from its last checkpoint under another leadership, and reads on."""
    before = flink.wait_for_leader()
    fault(flink, before.job_manager)
    flink.wait_for_leader(other_than=before)
    flink.wait_until_running(reading)
    agent.wait_for(
        lambda one: isinstance(one, Checkpoints) and one.job == reading and one.restored_id is not None,
        "the restore",
        120,
    )
    agent.wait_for(lambda one: isinstance(one, JobManagerLeader) and one.leader_id not in (None, before.id), "a leader")
    restored = now()
    agent.wait_for(
        lambda one: isinstance(one, Position) and one.job == reading and one.at > restored, "positions after it", 120
    )
    agent.wait_until_evaluated(now() + 75_000, 120)  # what needs a minute to be an alarm has had it
    assert findings(agent.unmerged(), "jobmanager_moved", cluster="jobs")
    quiet(agent)


def test_a_job_that_is_cancelled_is_no_alarm(flink: FlinkCluster, agent: Agent, reading: str) -> None:
    """Its graph goes with it."""
    flink.cancel(reading)
    agent.wait_for(lambda one: isinstance(one, FlinkJob) and one.job == reading and one.ended, "its end")
    agent.wait_until_evaluated(now() + 45_000, 120)
    quiet(agent)


def test_a_savepoint_restored_is_labelled_as_what_it_is(flink: FlinkCluster, kafka_3_9: Cluster, agent: Agent) -> None:
    """A job restored from a savepoint that lies thousands of records back commits offsets below those before: info."""
    topic, group, name = named("clicks"), named("flink"), named("job")
    kafka_3_9.create_topic(topic, 1)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 30_000)
    program = kafka_job(name, kafka_3_9.bootstrap_servers, topic, group, delay_ms=2)
    first = flink.submit(program)
    flink.wait_until_running(first)
    agent.wait_for(lambda one: isinstance(one, Position) and one.job == first, "positions", 120)
    savepoint, taken = flink.savepoint(first), now()

    def seen(one: Observation, job: str, least: int) -> bool:
        return isinstance(one, Position) and one.job == job and one.at > taken and one.offset >= least

    at_least = agent.wait_for(lambda one: seen(one, first, 0), "where it reads then", 60)
    assert isinstance(at_least, Position)
    agent.wait_for(lambda one: seen(one, first, at_least.offset + 4000), "4,000 records more", 120)
    flink.cancel(first)
    second = flink.submit(program, savepoint)
    flink.wait_until_running(second)
    agent.wait_for(
        lambda one: isinstance(one, Checkpoints) and one.job == second and one.restored_savepoint, "the restore", 120
    )
    agent.wait_for(lambda one: seen(one, second, at_least.offset + 4000), "the job to be where it was", 180)
    agent.wait_until_evaluated(now() + 15_000, 120)
    rewinds = findings(agent.unmerged(), "offset_rewind", topic=topic)
    assert rewinds
    assert {(one["severity"], "checkpoint_restore" in one["labels"]) for one in rewinds} == {("info", True)}
    quiet(agent)


def test_a_dead_job_put_back_is_found_at_the_failover(flink: FlinkCluster, agent: Agent) -> None:
    """Znode, file and blob of a cancelled job come back while nobody leads: one critical incident that names it."""
    job = flink.submit(sequence_job(named("counter")))
    flink.wait_until_running(job)
    flink.wait_for_checkpoints(job, 2)
    agent.wait_for(lambda one: isinstance(one, Checkpoints) and one.job == job and one.completed > 1, "checkpoints", 60)
    kept = keep(flink, job)
    flink.cancel(job)
    agent.wait_for(lambda one: isinstance(one, FlinkJob) and one.job == job and one.ended, "its end", 60)
    leader = flink.wait_for_leader()
    flink.kill(leader.job_manager)
    put_back(flink, kept)
    flink.wait_for_leader(other_than=leader)
    flink.wait_until_running(job)

    def critical() -> list[dict[str, Any]]:
        return [one for one in findings(agent.unmerged(), "job_resurrected", job=job) if "running" in one["labels"]]

    agent.wait_for_incident(lambda one: one["severity"] == "critical", "a critical incident", 120)
    # What it was restored from is known some seconds after it runs.
    (found,) = wait_until(
        lambda: [one for one in critical() if "with no checkpoint restored" in one["detail"]], "what it began with"
    )
    assert any(path.name == found["current"]["file"] for path in kept.storage.rglob("submittedJobGraph*"))
    assert [one["severity"] for one in agent.unmerged()].count("critical") == 1
