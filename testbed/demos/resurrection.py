"""The demo `job-resurrected`: a cancelled job of Flink 1.4.2 runs again when the leading JobManager dies (FLINK-10011).

It takes the slots of its successor. Backflow warns before that happens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent, flink_table
from testbed.artifacts import KAFKA
from testbed.demos.stage import (
    Progress,
    find_message_problems,
    finish,
    prepare_directory,
    report_slack,
    select_critical,
    select_unmerged,
)
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import Resurrection, resurrect
from testbed.flink.programs import sequence_job
from testbed.servers import ZooKeeperServer
from testbed.slack import Slack
from testbed.waiting import wait_until

FLINK = "jobs"
NAME = "clicks"
RUNS_AGAIN, RESTORED = "runs again since", "no checkpoint restored"


def run(directory: Path, seed: int | None) -> int:  # noqa: ARG001 - nothing is random here
    """Resurrect a job, print what Backflow reports and check it. Returns 0 if everything is as expected."""
    progress = Progress()
    prepare_directory(directory)
    progress("starting ZooKeeper, two JobManagers and two TaskManagers of Flink 1.4.2")
    with (
        Slack() as slack,
        ZooKeeperServer(KAFKA["0.11.0.0"], directory / "zookeeper") as zookeeper,
        FlinkCluster("1.4.2", zookeeper.address, workdir=directory / "flink", task_managers=2, slots=1) as flink,
    ):
        truth, incidents = _break(flink, slack, directory, progress)
        return finish(directory, slack, incidents, list(_find_problems(truth, incidents, slack)))


def _break(
    flink: FlinkCluster, slack: Slack, directory: Path, progress: Progress
) -> tuple[Resurrection, list[dict[str, Any]]]:
    agent = Agent(directory / "agent", {}, slack, flink_table(FLINK, flink))

    def wait_for_warning() -> None:
        progress("waiting for the warning; the job has not run again yet")
        wait_until(lambda: _select_resurrections(agent.unmerged()), "a warning about the job graph", 120, every=0.5)
        wait_until(slack.messages, "the warning in Slack")

    def is_reported() -> bool:
        texts = [message.words for message in slack.messages()]
        return any("CRITICAL" in text and RUNS_AGAIN in text and RESTORED in text for text in texts)

    with agent, report_slack(slack, progress):
        agent.wait_until_watching()
        progress("the agent watches the JobManagers' REST API, ZooKeeper and the HA storage directory")
        jobs = sequence_job(NAME), sequence_job(NAME, parallelism=2)
        truth = resurrect(flink, *jobs, progress=progress, before_failover=wait_for_warning)
        wait_until(
            lambda: select_critical(_select_resurrections(agent.unmerged())), "a critical incident", 60, every=0.5
        )
        wait_until(is_reported, "the message in Slack that the job runs again, no checkpoint restored")
        agent.stop()
    return truth, agent.incidents()


def _select_resurrections(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return select_unmerged(incidents, "job_resurrected")


def _find_problems(truth: Resurrection, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with Backflow's report."""
    critical = select_critical(incidents)
    if len(critical) != 1:
        yield f"{len(critical)} critical incidents, not 1"
        return
    (incident,) = critical
    running = [
        finding["subject"]["job"]
        for finding in incident["findings"]
        if finding["kind"] == "job_resurrected" and "running" in finding["labels"]
    ]
    if running != [truth.job]:
        yield f"reported that {running} runs again, not {truth.job}"
    if not any(cause["kind"] == "jobmanager_moved" for cause in incident["causes"]):
        yield "its causes do not include the failover"
    warnings = [
        finding
        for incident in incidents
        for finding in incident["findings"] + incident["causes"]
        if finding["kind"] == "job_resurrected"
        and "running" not in finding["labels"]
        and finding["subject"]["job"] == truth.job
    ]
    if not warnings:
        yield "there was no warning before the job ran again"
    expected = (truth.job, truth.successor, "submittedJobGraph", "jobgraphs", RUNS_AGAIN, RESTORED)
    yield from find_message_problems(slack, incident, expected)
    posted = min(float(message.ts) for message in slack.messages()) * 1000
    if posted >= truth.back.start:
        yield f"the first message was posted at {posted:.0f}, after the job ran again at {truth.back.start}"
