"""The demo `reset`: a consumer of Kafka 0.11.0.0 silently goes back to the log's start after a broker lost its
ZooKeeper session.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from testbed.agent import Agent
from testbed.consumers import ExplicitConsumer
from testbed.demos.stage import Say, conclude, messages_of, plots_of, sweep, telling, thread_of
from testbed.faults import UncleanReset, flink_reset
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, fill
from testbed.waiting import wait_until

TOPIC, GROUP, PARTITIONS = "topic-124", "flink-job", 9
BACKLOG = 5_000
# Records per second, all partitions together. Slow enough that a poll still sees where the consumer went back to.
READ_RATE = 300
BUSY_RATE, QUIET_RATE = 60, 8


class Draw(NamedTuple):
    """Which partition breaks, who leads and follows it, and the broker that nothing happens to."""

    partition: int
    leader: int
    follower: int
    bystander: int

    @classmethod
    def of(cls, seed: int) -> "Draw":
        """The draw that the seed gives."""
        chance = random.Random(seed)
        return cls(chance.randrange(PARTITIONS), *chance.sample((2005, 2011, 2024), 3))

    def assignment(self) -> dict[int, list[int]]:
        """The replicas of each partition: only the broken one has both brokers that fail."""
        quiet = [[self.leader, self.bystander], [self.bystander, self.follower], [self.follower, self.bystander]]
        return {
            number: [self.leader, self.follower] if number == self.partition else quiet[number % len(quiet)]
            for number in range(PARTITIONS)
        }


def begin(directory: Path, seed: int | None) -> tuple[Draw, Say]:
    """The stage swept and what will break drawn: by the seed, or by one that is drawn too and told."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    draw = Draw.of(seed)
    say = Say()
    sweep(directory)
    say(f"seed {seed}: {TOPIC}[{draw.partition}] on brokers {draw.leader} and {draw.follower} will break")
    return draw, say


def run(directory: Path, seed: int | None) -> int:
    """Break the cluster, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    draw, say = begin(directory, seed)
    say("starting ZooKeeper and three Kafka 0.11.0.0 brokers")
    order = (draw.bystander, draw.leader, draw.follower)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", order, workdir=directory / "kafka", offsets_on=[draw.bystander], in_order=True) as cluster,
    ):
        done, incidents = _break(cluster, slack, draw, directory, say)
        problems = list(_problems(draw, done, incidents, slack))
        for plot in (plot for incident in resets(incidents) for plot in plots_of(slack, incident)):
            (directory / "evidence.png").write_bytes(plot)
        return conclude(directory, slack, incidents, problems)


def _break(
    cluster: Cluster, slack: Slack, draw: Draw, directory: Path, say: Say
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
        telling(slack, say),
        Traffic(cluster.bootstrap_servers, [broken], BUSY_RATE),
        Traffic(cluster.bootstrap_servers, [one for one in places if one != broken], QUIET_RATE),
        ExplicitConsumer(cluster.bootstrap_servers, GROUP, places, rate=READ_RATE) as consumer,
    ):
        agent.wait_until_watching()
        say(f"the agent watches; {GROUP} reads {TOPIC} at its end and commits twice a second")
        consumer.wait_until_at(*broken, BACKLOG + 4 * BUSY_RATE)
        done = flink_reset(cluster, *broken, consumer, unreplicated=200, progress=say)
        wait_until(lambda: consumer.positions[broken] >= done.rewind.position, f"{GROUP} to be back where it was")
        say(f"{GROUP} is back at {done.rewind.position:,}")
        wait_until(
            lambda: any("RECOVERED" in one.words for one in slack.messages()), "Slack to be told of the recovery"
        )
        say("waiting for what Spark finds in the journal")
        wait_until(
            lambda: any(plots_of(slack, one) for one in resets(agent.incidents())),
            "a plot in the thread of the reset",
            180,
            every=1,
        )
        agent.stop()
    return done, agent.incidents()


def _problems(draw: Draw, done: UncleanReset, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    told = resets(incidents)
    if len(told) != 1:
        yield f"{len(told)} incidents stand for the reset, not 1"
        return
    (incident,) = told
    rewinds = [one for one in incident["findings"] if one["kind"] == "offset_rewind"]
    subject = {"cluster": "demo", "group": GROUP, "topic": TOPIC, "partition": draw.partition}
    if [one["subject"] for one in rewinds] != [subject]:
        yield f"it tells of {[one['subject'] for one in rewinds]}, not of {subject} alone"
    rewind = rewinds[0]
    if incident["severity"] != "critical" or incident["status"] != "recovered":
        yield f"it is {incident['severity']} and {incident['status']}, not critical and recovered"
    if "to_earliest" not in rewind["labels"]:
        yield f"the reset is labelled {rewind['labels']}, not to_earliest"
    old, new = rewind["previous"]["offset"], rewind["current"]["offset"]
    if not (done.rewind.to <= new < old <= done.rewind.position and rewind["records"]["reread"] == old - new):
        truth = f"{done.rewind.position} -> {done.rewind.to}"
        yield f"it says {old} -> {new}, {rewind['records']} where the consumer went {truth}"
    losses = [one for one in incident["causes"] if one["subject"].get("broker") == draw.leader]
    sessions = [(one["previous"]["session"], one["current"]["session"]) for one in losses]
    if sessions != [tuple(one.session for one in done.leader_sessions)]:
        yield f"broker {draw.leader}'s sessions are {sessions}, not {[one.session for one in done.leader_sessions]}"
    moves = [
        (one["previous"]["leader"], one["current"]["leader"])
        for one in incident["causes"]
        if one["kind"] == "leader_moved" and one["subject"]["partition"] == draw.partition
    ]
    if moves != [(draw.leader, draw.follower), (draw.follower, draw.leader)]:
        yield f"its leader moves are {moves}"
    messages = slack.messages()
    own = messages_of(slack, incident)
    if len(own) != 1 or not own[0].edits:
        yield f"{len(own)} messages stand for it, not one that was edited as it developed"
    if len(messages) > 3:
        yield f"{len(messages) - 1} other messages stand in the channel, not two at most"
    evidence = [reply.words for reply in thread_of(slack, incident) if "offset_history" in reply.words]
    if not any(f"{TOPIC}[{draw.partition}]" in words for words in evidence):
        yield f"what Spark found in the journal stands in its thread as {evidence}"
    for found in (found for one in incidents for found in one["findings"] if found["kind"] == "offset_history"):
        if found["severity"] != "info":
            yield f"the check's finding is a {found['severity']}, as if no rule had told it: {found['detail']}"
    if len(plots_of(slack, incident)) != 1:
        yield f"{len(plots_of(slack, incident))} plots stand in its thread, not 1"


def resets(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents that stand and tell of a rewind."""
    return [
        one
        for one in incidents
        if one["merged_into"] is None and any(part["kind"] == "offset_rewind" for part in one["findings"])
    ]
