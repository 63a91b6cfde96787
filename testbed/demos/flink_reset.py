"""The demo `flink-reset`: one subtask of a Flink 1.4.2 job silently goes back to the log's start after a broker of
Kafka 0.11.0.0 lost its ZooKeeper session, while no checkpoint fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent, flink_table, logs_table
from testbed.demos.reset import GROUP, PARTITIONS, TOPIC, Draw, begin, resets
from testbed.demos.stage import Say, conclude, messages_of, telling
from testbed.flink.cluster import FlinkCluster
from testbed.flink.faults import JobReset, flink_job_reset
from testbed.flink.programs import kafka_job
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, fill
from testbed.waiting import wait_until

NAME, FLINK = "clicks", "jobs"
PARALLELISM = 3
BACKLOG = 6_000
BUSY_RATE, QUIET_RATE = 200, 16
UNSEEN = 500


def run(directory: Path, seed: int | None) -> int:
    """Break the cluster, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    draw, say = begin(directory, seed)
    say("starting ZooKeeper, three Kafka 0.11.0.0 brokers, and Flink 1.4.2 with two JobManagers")
    order = (draw.bystander, draw.leader, draw.follower)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", order, workdir=directory / "kafka", offsets_on=[draw.bystander], in_order=True) as kafka,
        FlinkCluster("1.4.2", kafka.zookeeper or "", workdir=directory / "flink", slots=PARALLELISM) as flink,
    ):
        agent = _agent(kafka, flink, slack, directory)
        truth = _break(agent, kafka, flink, draw, slack, say)
        incidents = agent.incidents()
        return conclude(directory, slack, incidents, list(_problems(truth, draw, incidents, slack)))


def _agent(kafka: Cluster, flink: FlinkCluster, slack: Slack, directory: Path) -> Agent:
    logs = [str(log.absolute()) for name, log in flink.logs.items() if name.startswith("taskmanager")]
    return Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": kafka.bootstrap_servers, "zookeeper": kafka.zookeeper}},
        slack,
        flink_table(FLINK, flink, kafka="demo") + logs_table("task-managers", logs, cluster="demo", flink=FLINK),
    )


def _break(  # noqa: PLR0917 - the whole stage
    agent: Agent, kafka: Cluster, flink: FlinkCluster, draw: Draw, slack: Slack, say: Say
) -> JobReset:
    kafka.create_topic(TOPIC, assignment=draw.assignment())
    places: list[Place] = [(TOPIC, number) for number in range(PARTITIONS)]
    broken = (TOPIC, draw.partition)
    fill(kafka.bootstrap_servers, [broken], BACKLOG)
    with (
        agent,
        telling(slack, say),
        Traffic(kafka.bootstrap_servers, [broken], BUSY_RATE),
        Traffic(kafka.bootstrap_servers, [one for one in places if one != broken], QUIET_RATE),
    ):
        agent.wait_until_watching()
        job = flink.submit(kafka_job(NAME, kafka.bootstrap_servers, TOPIC, GROUP, parallelism=PARALLELISM))
        flink.wait_until_running(job)
        say(f"the agent watches; job {job}, {NAME}, reads {TOPIC} with {PARALLELISM} subtasks")
        truth = flink_job_reset(kafka, flink, job, *broken, group=GROUP, unreplicated=UNSEEN, progress=say)
        wait_until(
            lambda: any("RECOVERED" in one.words for one in slack.messages()), "Slack to be told of the recovery"
        )
        agent.stop()
    return truth


def _problems(truth: JobReset, draw: Draw, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    critical = [one for one in incidents if one["merged_into"] is None and one["severity"] == "critical"]
    told = resets(incidents)
    if len(critical) != 1 or told != critical:
        yield f"{len(critical)} critical incidents and {len(told)} of resets stand, not one that is both"
        return
    (incident,) = critical
    yield from _wrong_rewinds(truth, draw, incident)
    yield from _wrong_causes(truth, draw, incident)
    own = messages_of(slack, incident)
    if len(own) != 1:
        yield f"{len(own)} messages stand for it, not one"
        return
    if len(slack.messages()) > 3:
        yield f"{len(slack.messages()) - 1} other messages stand in the channel, not two at most"
    for what in (NAME, f"subtask {truth.subtask}", f"{TOPIC}[{draw.partition}]", "checkpoint restore"):
        if what not in own[0].words:
            yield f"its message does not say {what!r}"


def _wrong_rewinds(truth: JobReset, draw: Draw, incident: dict[str, Any]) -> Iterator[str]:
    rewinds = [one for one in incident["findings"] if one["kind"] == "offset_rewind"]
    read = [one for one in rewinds if "job" in one["subject"]]
    committed = [one for one in rewinds if "group" in one["subject"]]
    if [(one["subject"]["job"], one["subject"].get("subtask")) for one in read] != [(truth.job, truth.subtask)]:
        yield f"positions that went back: {[one['subject'] for one in read]}, not subtask {truth.subtask}'s alone"
    if [one["subject"].get("group") for one in committed] != [GROUP]:
        yield f"committed offsets that went back: {[one['subject'] for one in committed]}, not {GROUP}'s alone"
    for one in rewinds:
        old, new = one["previous"]["offset"], one["current"]["offset"]
        where = (one["subject"]["topic"], one["subject"]["partition"])
        if where != (TOPIC, draw.partition) or not truth.fault.rewind.to <= new < old <= truth.fault.rewind.position:
            yield f"it says {where} {old} -> {new}; truly {truth.fault.rewind}"
        if "to_earliest" not in one["labels"] or "checkpoint_restore" in one["labels"]:
            yield f"a reset is labelled {one['labels']}"


def _wrong_causes(truth: JobReset, draw: Draw, incident: dict[str, Any]) -> Iterator[str]:
    parts = incident["causes"] + incident["findings"]
    logged = [one for one in parts if one["kind"] == "offset_reset"]
    if {(one["subject"]["partition"], one["previous"]["offset"]) for one in logged} != {
        (one.partition, one.position) for one in truth.resets
    }:
        yield f"resets in the TaskManager's log: {[one['detail'] for one in logged]}; truly {truth.resets}"
    losses = [one for one in incident["causes"] if one["subject"].get("broker") == draw.leader]
    sessions = [(one["previous"].get("session"), one["current"].get("session")) for one in losses]
    really = tuple(one.session for one in truth.fault.leader_sessions)
    if really not in sessions:
        yield f"broker {draw.leader}'s sessions are {sessions}, not {really}"
