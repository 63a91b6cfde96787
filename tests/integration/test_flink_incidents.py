"""Incidents of real Flink 1.20.1: failovers, restores and cancelled jobs raise no alarm, a dead job does."""

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

EXPECTED = {"jobmanager_moved", "leader_moved", "broker_session_lost", "controller_moved"}
"""Info findings that a healthy cluster may have."""


@pytest.fixture(scope="module")
def flink(kafka_3_9: Cluster) -> Iterator[FlinkCluster]:
    """Two JobManagers and a TaskManager of Flink 1.20.1 on the ZooKeeper of Kafka 3.9.1."""
    with (
        tempfile.TemporaryDirectory(prefix="backflow-flink-") as folder,
        FlinkCluster("1.20.1", kafka_3_9.zookeeper or "", workdir=Path(folder, "flink"), slots=4) as cluster,
    ):
        yield cluster


@pytest.fixture(autouse=True)
def _clean_up_jobs(flink: FlinkCluster) -> Iterator[None]:
    """Remove the jobs of the test and restore both JobManagers."""
    yield
    flink.repair()


@pytest.fixture
def agent(kafka_3_9: Cluster, flink: FlinkCluster, tmp_path: Path) -> Iterator[Agent]:
    """The agent with the shipped rules, on the Kafka and the Flink cluster."""
    with Agent(tmp_path, {"main": addresses(kafka_3_9)}, tables=flink_table("jobs", flink, kafka="main")) as agent:
        agent.wait_until_watching()
        yield agent


@pytest.fixture
def reading(kafka_3_9: Cluster, flink: FlinkCluster, agent: Agent) -> Iterator[str]:
    """The id of a job that reads a topic under load; the agent has observed its positions and checkpoints."""
    topic, group = named("clicks"), named("flink")
    kafka_3_9.create_topic(topic, 2)
    places = [(topic, 0), (topic, 1)]
    fill(kafka_3_9.bootstrap_servers, places, 4000)
    job = flink.submit(kafka_job(named("job"), kafka_3_9.bootstrap_servers, topic, group, parallelism=2))
    with Traffic(kafka_3_9.bootstrap_servers, places, 200):
        flink.wait_until_running(job)
        agent.wait_for(
            lambda fact: isinstance(fact, Position) and fact.job == job and fact.offset > 3000, "positions", 120
        )
        flink.wait_for_checkpoints(job, 2)
        agent.wait_for(
            lambda fact: isinstance(fact, Checkpoints) and fact.job == job and fact.completed > 1, "checkpoints"
        )
        yield job


def assert_no_alarm(agent: Agent) -> None:
    """Assert that all findings are info: causes, and rewinds that a restore explains."""
    found = [finding for incident in agent.unmerged() for finding in incident["causes"] + incident["findings"]]
    assert not [
        finding
        for finding in found
        if finding["kind"] not in EXPECTED and "checkpoint_restore" not in finding["labels"]
    ]
    assert {finding["severity"] for finding in found} <= {"info"}


def kill(flink: FlinkCluster, leader: int) -> None:
    flink.kill(leader)


def stop(flink: FlinkCluster, leader: int) -> None:
    flink.stop(leader)


def cut_link(flink: FlinkCluster, leader: int) -> None:
    """Cut the leader's link to ZooKeeper for 1.5 s."""
    flink.cut_link(leader)


def restart_all(flink: FlinkCluster, leader: int) -> None:
    other = next(number for number in flink.job_managers if number != leader)
    for number in (other, leader):
        flink.stop(number)
    for number in (other, leader):
        flink.start(number)


@pytest.mark.parametrize("fault", [kill, stop, cut_link, restart_all])
def test_failover_raises_no_alarm(
    flink: FlinkCluster, agent: Agent, reading: str, fault: Callable[[FlinkCluster, int], None]
) -> None:
    before = flink.wait_for_leader()
    fault(flink, before.job_manager)
    flink.wait_for_leader(other_than=before)
    flink.wait_until_running(reading)
    agent.wait_for(
        lambda fact: isinstance(fact, Checkpoints) and fact.job == reading and fact.restored_id is not None,
        "the restore",
        120,
    )
    agent.wait_for(
        lambda fact: isinstance(fact, JobManagerLeader) and fact.leader_id not in (None, before.id), "a leader"
    )
    restored = now()
    agent.wait_for(
        lambda fact: isinstance(fact, Position) and fact.job == reading and fact.at > restored,
        "positions after it",
        120,
    )
    agent.wait_until_evaluated(now() + 75_000, 120)  # rules that wait a minute have fired by then
    assert findings(agent.unmerged(), "jobmanager_moved", cluster="jobs")
    assert_no_alarm(agent)


def test_cancelled_job_raises_no_alarm(flink: FlinkCluster, agent: Agent, reading: str) -> None:
    flink.cancel(reading)
    agent.wait_for(lambda fact: isinstance(fact, FlinkJob) and fact.job == reading and fact.ended, "its end")
    agent.wait_until_evaluated(now() + 45_000, 120)
    assert_no_alarm(agent)


def test_rewind_by_a_savepoint_is_labelled_checkpoint_restore(
    flink: FlinkCluster, kafka_3_9: Cluster, agent: Agent
) -> None:
    topic, group, name = named("clicks"), named("flink"), named("job")
    kafka_3_9.create_topic(topic, 1)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 30_000)
    program = kafka_job(name, kafka_3_9.bootstrap_servers, topic, group, delay_ms=2)
    first = flink.submit(program)
    flink.wait_until_running(first)
    agent.wait_for(lambda fact: isinstance(fact, Position) and fact.job == first, "positions", 120)
    savepoint, taken = flink.savepoint(first), now()

    def is_at(fact: Observation, job: str, least: int) -> bool:
        return isinstance(fact, Position) and fact.job == job and fact.at > taken and fact.offset >= least

    position = agent.wait_for(lambda fact: is_at(fact, first, 0), "its position", 60)
    assert isinstance(position, Position)
    agent.wait_for(lambda fact: is_at(fact, first, position.offset + 4000), "4,000 more records", 120)
    flink.cancel(first)
    second = flink.submit(program, savepoint)
    flink.wait_until_running(second)
    agent.wait_for(
        lambda fact: isinstance(fact, Checkpoints) and fact.job == second and fact.restored_savepoint,
        "the restore",
        120,
    )
    agent.wait_for(lambda fact: is_at(fact, second, position.offset + 4000), "it to catch up", 180)
    agent.wait_until_evaluated(now() + 15_000, 120)
    rewinds = findings(agent.unmerged(), "offset_rewind", topic=topic)
    assert rewinds
    assert {(rewind["severity"], "checkpoint_restore" in rewind["labels"]) for rewind in rewinds} == {("info", True)}
    assert_no_alarm(agent)


def test_job_started_from_an_old_savepoint_is_reported(flink: FlinkCluster, kafka_3_9: Cluster, tmp_path: Path) -> None:
    topic, group, name = named("clicks"), named("flink"), named("job")
    kafka_3_9.create_topic(topic, 1)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 30_000)
    program = kafka_job(name, kafka_3_9.bootstrap_servers, topic, group, delay_ms=2)
    tables, options = flink_table("jobs", flink, kafka="main"), {"rules.restored_from_old.min_age": '"5s"'}
    with Agent(tmp_path, {"main": addresses(kafka_3_9)}, tables=tables, options=options) as agent:
        agent.wait_until_watching()

        def wait_for_checkpoint(job: str, is_wanted: Callable[[Checkpoints], bool]) -> Checkpoints:
            fact = agent.wait_for(
                lambda fact: isinstance(fact, Checkpoints) and fact.job == job and is_wanted(fact), "checkpoints", 120
            )
            assert isinstance(fact, Checkpoints)
            return fact

        first = flink.submit(program)
        wait_for_checkpoint(first, lambda fact: fact.completed > 1)
        savepoint = flink.savepoint(first)
        taken = wait_for_checkpoint(first, lambda fact: fact.savepoint is not None)
        wait_for_checkpoint(first, lambda fact: (fact.last or 0) > (taken.savepoint or 0) + 5)
        flink.cancel(first)
        second = flink.submit(program, savepoint)
        restored = wait_for_checkpoint(second, lambda fact: fact.restored_savepoint)
        incident = agent.wait_for_incident(
            lambda incident: all(findings([incident], kind) for kind in ("restored_from_old", "offset_rewind")),
            "the restore and the rewind in one incident",
            120,
        )
    (finding,) = findings([incident], "restored_from_old")
    assert (incident["severity"], incident["title"]) == ("warning", f"{name} was restored from an old savepoint")
    assert finding["labels"] == ["savepoint", "resubmitted"]
    assert (finding["subject"]["job"], finding["previous"]["jobs"]) == (second, [first])
    assert finding["current"]["id"] == restored.restored_id == taken.savepoint
    assert finding["current"]["triggered_at"] == taken.savepoint_triggered_at
    assert finding["previous"]["id"] > finding["current"]["id"] + 5
    assert finding["previous"]["path"].endswith(f"{first}/chk-{finding['previous']['id']}")
    assert savepoint.endswith(finding["current"]["path"].rpartition("/")[2])


def test_dead_job_put_back_is_found_at_the_failover(flink: FlinkCluster, agent: Agent) -> None:
    """Znode, file and blob of a cancelled job return while there is no leader (FLINK-10011)."""
    job = flink.submit(sequence_job(named("counter")))
    flink.wait_until_running(job)
    flink.wait_for_checkpoints(job, 2)
    agent.wait_for(
        lambda fact: isinstance(fact, Checkpoints) and fact.job == job and fact.completed > 1, "checkpoints", 60
    )
    kept = keep(flink, job)
    flink.cancel(job)
    agent.wait_for(lambda fact: isinstance(fact, FlinkJob) and fact.job == job and fact.ended, "its end", 60)
    leader = flink.wait_for_leader()
    flink.kill(leader.job_manager)
    put_back(flink, kept)
    flink.wait_for_leader(other_than=leader)
    flink.wait_until_running(job)

    def running() -> list[dict[str, Any]]:
        return [
            finding
            for finding in findings(agent.unmerged(), "job_resurrected", job=job)
            if "running" in finding["labels"]
        ]

    agent.wait_for_incident(lambda incident: incident["severity"] == "critical", "a critical incident", 120)
    # The checkpoint it was restored from is known some seconds after it runs.
    (finding,) = wait_until(
        lambda: [finding for finding in running() if "no checkpoint restored" in finding["detail"]], "its restore"
    )
    assert any(path.name == finding["current"]["file"] for path in kept.storage.rglob("submittedJobGraph*"))
    assert [incident["severity"] for incident in agent.unmerged()].count("critical") == 1
