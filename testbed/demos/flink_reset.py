"""The demo `flink-reset`: one subtask of a Flink 1.4.2 job is silently reset to the log start.

A broker of Kafka 0.11.0.0 loses its ZooKeeper session; no checkpoint fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent, flink_table, logs_table
from testbed.demos.reset import GROUP, PARTITIONS, TOPIC, Draw, select_rewinds, start
from testbed.demos.stage import (
    Progress,
    find_message_problems,
    finish,
    has_recovered,
    report_slack,
    select_critical,
)
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import JobReset, flink_job_reset
from testbed.flink.programs import kafka_job
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, fill
from testbed.waiting import wait_until

NAME, FLINK = "clicks", "jobs"
PARALLELISM = 3
# The job reads about 700 records a second. Flink 1.4 refreshes the metrics that show its position every 10 s, and the
# first one after a pause is old: reprocessing must take longer than 24 s for the position to be seen on its way back.
BACKLOG = 15_000
BUSY_RATE, QUIET_RATE = 200, 16
UNREPLICATED = 500


def run(directory: Path, seed: int | None) -> int:
    """Break the cluster, print what Backflow reports and check it. Returns 0 if everything is as expected."""
    draw, progress = start(directory, seed)
    progress("starting ZooKeeper, three Kafka 0.11.0.0 brokers, and Flink 1.4.2 with two JobManagers")
    order = (draw.bystander, draw.leader, draw.follower)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", order, workdir=directory / "kafka", offsets_on=[draw.bystander]) as kafka,
        FlinkCluster("1.4.2", kafka.zookeeper or "", workdir=directory / "flink", slots=PARALLELISM) as flink,
    ):
        agent = _agent(kafka, flink, slack, directory)
        truth = _break(agent, kafka, flink, draw, slack, progress)
        incidents = agent.incidents()
        return finish(directory, slack, incidents, list(_find_problems(truth, draw, incidents, slack)))


def _agent(kafka: Cluster, flink: FlinkCluster, slack: Slack, directory: Path) -> Agent:
    logs = [str(log.absolute()) for name, log in flink.logs.items() if name.startswith("taskmanager")]
    return Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": kafka.bootstrap_servers, "zookeeper": kafka.zookeeper}},
        slack,
        flink_table(FLINK, flink, kafka="demo") + logs_table("task-managers", logs, cluster="demo", flink=FLINK),
    )


def _break(  # noqa: PLR0917 - all parts of the scene
    agent: Agent, kafka: Cluster, flink: FlinkCluster, draw: Draw, slack: Slack, progress: Progress
) -> JobReset:
    kafka.create_topic(TOPIC, assignment=draw.assignment())
    places: list[Place] = [(TOPIC, number) for number in range(PARTITIONS)]
    broken = (TOPIC, draw.partition)
    fill(kafka.bootstrap_servers, [broken], BACKLOG)
    with (
        agent,
        report_slack(slack, progress),
        Traffic(kafka.bootstrap_servers, [broken], BUSY_RATE),
        Traffic(kafka.bootstrap_servers, [place for place in places if place != broken], QUIET_RATE),
    ):
        agent.wait_until_watching()
        job = flink.submit(kafka_job(NAME, kafka.bootstrap_servers, TOPIC, GROUP, parallelism=PARALLELISM))
        flink.wait_until_running(job)
        progress(f"the agent watches; job {job}, {NAME}, reads {TOPIC} with {PARALLELISM} subtasks")
        truth = flink_job_reset(kafka, flink, job, *broken, group=GROUP, unreplicated=UNREPLICATED, progress=progress)
        wait_until(lambda: has_recovered(slack), "the recovery in Slack")
        agent.stop()
    return truth


def _find_problems(truth: JobReset, draw: Draw, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with Backflow's report."""
    critical = select_critical(incidents)
    rewinds = select_rewinds(incidents)
    if len(critical) != 1 or rewinds != critical:
        yield f"{len(critical)} critical incidents and {len(rewinds)} with a rewind, not one that is both"
        return
    (incident,) = critical
    yield from _find_wrong_rewinds(truth, draw, incident)
    yield from _find_wrong_causes(truth, draw, incident)
    expected = (
        NAME,
        f"subtask {truth.subtask}",
        f"{TOPIC}[{draw.partition}]",
        "was reset to the log start",
        "checkpoint restore",
    )
    yield from find_message_problems(slack, incident, expected, others=2)


def _find_wrong_rewinds(truth: JobReset, draw: Draw, incident: dict[str, Any]) -> Iterator[str]:
    rewinds = [finding for finding in incident["findings"] if finding["kind"] == "offset_rewind"]
    subtasks = [finding["subject"] for finding in rewinds if "job" in finding["subject"]]
    groups = [finding["subject"] for finding in rewinds if "group" in finding["subject"]]
    if [(subject["job"], subject.get("subtask")) for subject in subtasks] != [(truth.job, truth.subtask)]:
        yield f"reported positions that moved backwards: {subtasks}, not subtask {truth.subtask} alone"
    if [subject.get("group") for subject in groups] != [GROUP]:
        yield f"reported committed offsets that moved backwards: {groups}, not those of {GROUP} alone"
    for finding in rewinds:
        old, new = finding["previous"]["offset"], finding["current"]["offset"]
        place = (finding["subject"]["topic"], finding["subject"]["partition"])
        if place != (TOPIC, draw.partition) or not truth.fault.rewind.to <= new < old <= truth.fault.rewind.position:
            yield f"reported {place} {old} -> {new}; actual {truth.fault.rewind}"
        if "to_earliest" not in finding["labels"] or "checkpoint_restore" in finding["labels"]:
            yield f"a reset to the log start is labelled {finding['labels']}"


def _find_wrong_causes(truth: JobReset, draw: Draw, incident: dict[str, Any]) -> Iterator[str]:
    findings = incident["causes"] + incident["findings"]
    logged = [finding for finding in findings if finding["kind"] == "offset_reset"]
    if {(finding["subject"]["partition"], finding["previous"]["offset"]) for finding in logged} != {
        (reset.partition, reset.position) for reset in truth.resets
    }:
        details = [finding["detail"] for finding in logged]
        yield f"reported resets in the TaskManager's log: {details}; actual {truth.resets}"
    expired = [cause for cause in incident["causes"] if cause["subject"].get("broker") == draw.leader]
    sessions = [(cause["previous"].get("session"), cause["current"].get("session")) for cause in expired]
    actual = tuple(registration.session for registration in truth.fault.leader_sessions)
    if actual not in sessions:
        yield f"reported sessions of broker {draw.leader}: {sessions}; actual {actual}"
