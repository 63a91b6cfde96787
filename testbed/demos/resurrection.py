"""The demo `job-resurrected`: a job of Flink 1.4.2 that was cancelled comes back when the leading JobManager dies, and
starves its successor (FLINK-10011); Backflow warns before that happens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent, flink_table
from testbed.artifacts import KAFKA
from testbed.demos.stage import Say, conclude, messages_of, sweep, telling
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import Resurrection, resurrect
from testbed.flink.programs import sequence_job
from testbed.servers import ZooKeeperServer
from testbed.slack import Slack
from testbed.waiting import wait_until

FLINK = "jobs"
NAME = "clicks"
RESTORED = "with no checkpoint restored"


def run(directory: Path, seed: int | None) -> int:  # noqa: ARG001 - nothing is drawn here
    """Bring a job back, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    say = Say()
    sweep(directory)
    say("starting ZooKeeper, two JobManagers and two TaskManagers of Flink 1.4.2")
    with (
        Slack() as slack,
        ZooKeeperServer(KAFKA["0.11.0.0"], directory / "zookeeper") as zookeeper,
        FlinkCluster("1.4.2", zookeeper.address, workdir=directory / "flink", task_managers=2, slots=1) as flink,
    ):
        truth, incidents = _break(flink, slack, directory, say)
        return conclude(directory, slack, incidents, list(_problems(truth, incidents, slack)))


def _break(flink: FlinkCluster, slack: Slack, directory: Path, say: Say) -> tuple[Resurrection, list[dict[str, Any]]]:
    agent = Agent(directory / "agent", {}, slack, flink_table(FLINK, flink))
    with agent, telling(slack, say):
        agent.wait_until_watching()
        say("the agent watches; it knows the JobManagers' REST, ZooKeeper and the HA storage directory")

        def warned() -> None:
            say("waiting for the warning: nothing has come back yet")
            wait_until(lambda: _about(agent.unmerged()), "an incident that warns of the job graph", 120, every=0.5)
            wait_until(slack.messages, "Slack to be told of it")

        truth = resurrect(
            flink, sequence_job(NAME), sequence_job(NAME, parallelism=2), progress=say, before_failover=warned
        )
        wait_until(
            lambda: any(one["severity"] == "critical" for one in _about(agent.unmerged())),
            "a critical incident",
            60,
            every=0.5,
        )
        wait_until(
            lambda: any("CRITICAL" in one.words and RESTORED in one.words for one in slack.messages()),
            "Slack to be told that the job runs again, from nothing",
        )
        agent.stop()
    return truth, agent.incidents()


def _about(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents that stand and tell of a job that came back, or may."""
    return [
        one
        for one in incidents
        if one["merged_into"] is None and any(part["kind"] == "job_resurrected" for part in one["findings"])
    ]


def _problems(truth: Resurrection, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    standing = [one for one in incidents if one["merged_into"] is None]
    critical = [one for one in standing if one["severity"] == "critical"]
    if len(critical) != 1:
        yield f"{len(critical)} critical incidents stand, not 1"
        return
    (incident,) = critical
    found = [one for one in incident["findings"] if one["kind"] == "job_resurrected"]
    running = [one for one in found if "running" in one["labels"]]
    if [one["subject"]["job"] for one in running] != [truth.job]:
        yield f"it says that {[one['subject']['job'] for one in running]} came back, not {truth.job}"
    if not any(one["kind"] == "jobmanager_moved" for one in incident["causes"]):
        yield "the failover is none of its causes"
    warnings = [
        one
        for incident in incidents
        for one in incident["findings"] + incident["causes"]
        if one["kind"] == "job_resurrected" and "running" not in one["labels"] and one["subject"]["job"] == truth.job
    ]
    if not warnings:
        yield "no warning came before the job ran again"
    own = messages_of(slack, incident)
    if len(own) != 1:
        yield f"{len(own)} messages stand for it, not one"
        return
    said = own[0].words
    for what in (truth.job, truth.successor, "submittedJobGraph", "jobgraphs", RESTORED):
        if what not in said:
            yield f"its message does not name {what}"
    first = float(min(slack.messages(), key=lambda one: one.ts).ts) * 1000
    if first >= truth.back.start:
        yield f"the first message came at {first:.0f}, after the job ran again at {truth.back.start}"
