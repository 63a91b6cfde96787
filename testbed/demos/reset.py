"""The demo `reset`: a consumer of Kafka 0.11.0.0 is silently reset to the log start.

A broker loses its ZooKeeper session before, and an unclean election follows.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent.model.observations.kafka import Commit
from testbed.agent import Agent
from testbed.consumers import ExplicitConsumer
from testbed.demos.stage import (
    Progress,
    find_message_problems,
    finish,
    has_recovered,
    messages_of,
    plots_of,
    prepare_directory,
    report_slack,
    save_plots,
    select_unmerged,
    thread_of,
)
from testbed.faults import UncleanReset, flink_reset
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, fill
from testbed.waiting import wait_until

TOPIC, GROUP, PARTITIONS = "topic-124", "flink-job", 9
BACKLOG = 5_000
# Records per second over all partitions; slow enough for a poll to observe the consumer near the log start.
READ_RATE = 300
BUSY_RATE, QUIET_RATE = 60, 8


class Draw(NamedTuple):
    """The partition that breaks, its leader and follower, and the broker that is not affected."""

    partition: int
    leader: int
    follower: int
    bystander: int

    @classmethod
    def of(cls, seed: int) -> "Draw":
        """Return the draw of a seed."""
        chance = random.Random(seed)
        return cls(chance.randrange(PARTITIONS), *chance.sample((2005, 2011, 2024), 3))

    def assignment(self) -> dict[int, list[int]]:
        """Return the replicas of each partition; only the one that breaks has both failing brokers."""
        quiet = [[self.leader, self.bystander], [self.bystander, self.follower], [self.follower, self.bystander]]
        return {
            number: [self.leader, self.follower] if number == self.partition else quiet[number % len(quiet)]
            for number in range(PARTITIONS)
        }


def start(directory: Path, seed: int | None) -> tuple[Draw, Progress]:
    """Prepare the directory, and draw by the seed, or by a random one that is printed."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    draw = Draw.of(seed)
    progress = Progress()
    prepare_directory(directory)
    progress(f"seed {seed}: {TOPIC}[{draw.partition}] on brokers {draw.leader} and {draw.follower} will break")
    return draw, progress


def run(directory: Path, seed: int | None) -> int:
    """Break the cluster, print what Backflow reports and check it. Returns 0 if everything is as expected."""
    draw, progress = start(directory, seed)
    progress("starting ZooKeeper and three Kafka 0.11.0.0 brokers")
    order = (draw.bystander, draw.leader, draw.follower)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", order, workdir=directory / "kafka", offsets_on=[draw.bystander]) as cluster,
    ):
        truth, incidents = _break(cluster, slack, draw, directory, progress)
        save_plots(directory, slack, select_rewinds(incidents))
        return finish(directory, slack, incidents, list(_find_problems(draw, truth, incidents, slack)))


def _break(
    cluster: Cluster, slack: Slack, draw: Draw, directory: Path, progress: Progress
) -> tuple[UncleanReset, list[dict[str, Any]]]:
    cluster.create_topic(TOPIC, assignment=draw.assignment())
    places: list[Place] = [(TOPIC, number) for number in range(PARTITIONS)]
    broken = (TOPIC, draw.partition)
    fill(cluster.bootstrap_servers, [broken], BACKLOG)
    with ExplicitConsumer(cluster.bootstrap_servers, GROUP, places, rate=50_000) as first:
        first.wait_until_at(*broken, BACKLOG)
        wait_until(lambda: first.committed.get(broken, 0) >= BACKLOG, f"{GROUP} to have committed its backlog")
    agent = Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": cluster.bootstrap_servers, "zookeeper": cluster.zookeeper}},
        slack,
        checks=True,
    )
    with (
        agent,
        report_slack(slack, progress),
        Traffic(cluster.bootstrap_servers, [broken], BUSY_RATE),
        Traffic(cluster.bootstrap_servers, [place for place in places if place != broken], QUIET_RATE),
        ExplicitConsumer(cluster.bootstrap_servers, GROUP, places, rate=READ_RATE) as consumer,
    ):
        agent.wait_until_watching()
        agent.wait_for(lambda fact: isinstance(fact, Commit) and fact.partition == broken[1], "the group's position")
        progress(f"the agent watches; {GROUP} reads {TOPIC} at its end and commits twice a second")
        consumer.wait_until_at(*broken, BACKLOG + 4 * BUSY_RATE)
        truth = flink_reset(cluster, *broken, consumer, unreplicated=200, progress=progress)
        wait_until(lambda: consumer.positions[broken] >= truth.rewind.position, f"{GROUP} to catch up")
        progress(f"{GROUP} has caught up with {truth.rewind.position:,}")
        wait_until(lambda: has_recovered(slack), "the recovery in Slack")
        progress("waiting for the Spark check of the journal")
        wait_until(
            lambda: any(plots_of(slack, incident) for incident in select_rewinds(agent.incidents())),
            "a plot in the thread of the reset",
            180,
            every=1,
        )
        agent.stop()
    return truth, agent.incidents()


def _find_problems(draw: Draw, truth: UncleanReset, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with Backflow's report."""
    resets = select_rewinds(incidents)
    if len(resets) != 1:
        yield f"{len(resets)} incidents report the reset, not 1"
        return
    (incident,) = resets
    if incident["severity"] != "critical" or incident["status"] != "recovered":
        yield f"it is {incident['severity']} and {incident['status']}, not critical and recovered"
    yield from _find_wrong_rewind(draw, truth, incident)
    yield from _find_wrong_causes(draw, truth, incident)
    expected = (f"{GROUP} on {TOPIC}[{draw.partition}] was reset to the log start", "caught up at")
    yield from find_message_problems(slack, incident, expected, others=2)
    if not all(message.edits for message in messages_of(slack, incident)):
        yield "its message was not edited as the incident developed"
    reports = [reply.words for reply in thread_of(slack, incident) if "offset_history" in reply.words]
    if not any(f"{TOPIC}[{draw.partition}]" in report for report in reports):
        yield f"the check result in its thread is {reports}"
    for finding in (finding for incident in incidents for finding in incident["findings"]):
        if finding["kind"] == "offset_history" and finding["severity"] != "info":
            yield f"the check's finding is a {finding['severity']} as if no rule had found it: {finding['detail']}"
    if len(plots_of(slack, incident)) != 1:
        yield f"its thread has {len(plots_of(slack, incident))} plots, not 1"


def _find_wrong_rewind(draw: Draw, truth: UncleanReset, incident: dict[str, Any]) -> Iterator[str]:
    rewinds = [finding for finding in incident["findings"] if finding["kind"] == "offset_rewind"]
    subject = {"cluster": "demo", "group": GROUP, "topic": TOPIC, "partition": draw.partition}
    if [finding["subject"] for finding in rewinds] != [subject]:
        yield f"reported rewinds of {[finding['subject'] for finding in rewinds]}, not of {subject} alone"
    rewind = rewinds[0]
    if "to_earliest" not in rewind["labels"]:
        yield f"the reset is labelled {rewind['labels']}, not to_earliest"
    old, new = rewind["previous"]["offset"], rewind["current"]["offset"]
    if not (
        truth.rewind.to <= new < old <= truth.rewind.position
        and rewind["records"]["reread"] + rewind["records"]["lost"] == old - new
    ):
        yield f"reported {old} -> {new}, {rewind['records']}; actual {truth.rewind.position} -> {truth.rewind.to}"


def _find_wrong_causes(draw: Draw, truth: UncleanReset, incident: dict[str, Any]) -> Iterator[str]:
    expired = [cause for cause in incident["causes"] if cause["subject"].get("broker") == draw.leader]
    sessions = [(cause["previous"]["session"], cause["current"]["session"]) for cause in expired]
    actual = [tuple(registration.session for registration in truth.leader_sessions)]
    if sessions != actual:
        yield f"reported sessions of broker {draw.leader}: {sessions}; actual {actual}"
    changes = [
        (cause["previous"]["leader"], cause["current"]["leader"])
        for cause in incident["causes"]
        if cause["kind"] == "leader_moved" and cause["subject"]["partition"] == draw.partition
    ]
    if changes != [(draw.leader, draw.follower), (draw.follower, draw.leader)]:
        yield f"reported leader changes: {changes}"


def select_rewinds(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the unmerged incidents with a rewind."""
    return select_unmerged(incidents, "offset_rewind")
