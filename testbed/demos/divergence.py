"""The demo `log-divergence`: two replicas of Kafka 0.11.0.0 lose power together and silently differ ever after
(KAFKA-3919); Backflow looks for that by itself, on the brokers' own disks while they run.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent
from testbed.demos.stage import Say, conclude, messages_of, sweep, telling, thread_of
from testbed.kafka import Cluster
from testbed.power_loss import PowerLoss, create, power_loss
from testbed.slack import Slack
from testbed.waiting import wait_until

TOPIC = "topic-124"
SURVIVOR, LEADER, FOLLOWER = 2024, 2011, 2005
"""The follower comes back first and so takes the leadership over."""


def run(directory: Path, seed: int | None) -> int:
    """Break replicas, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    keep = random.Random(seed).uniform(0.85, 0.93)
    say = Say()
    sweep(directory)
    say(f"seed {seed}: broker {FOLLOWER} will lose {1 - keep:.1%} of {TOPIC}[0]")
    say("starting ZooKeeper and three Kafka 0.11.0.0 brokers")
    brokers = (SURVIVOR, LEADER, FOLLOWER)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", brokers, workdir=directory / "kafka", offsets_on=[SURVIVOR]) as cluster,
    ):
        truth, incidents = _break(cluster, slack, keep, directory, say)
        return conclude(directory, slack, incidents, list(_problems(truth, incidents, slack)))


def _break(
    cluster: Cluster, slack: Slack, keep: float, directory: Path, say: Say
) -> tuple[PowerLoss, list[dict[str, Any]]]:
    create(cluster, TOPIC, [LEADER, FOLLOWER])
    disks = "".join(f'{broker} = "{cluster.log_directory(broker).absolute()}"\n' for broker in sorted(cluster.brokers))
    agent = Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": cluster.bootstrap_servers, "zookeeper": cluster.zookeeper}},
        slack,
        f"[clusters.demo.log_directories]\n{disks}",
        checks=True,
    )
    with agent, telling(slack, say):
        agent.wait_until_watching()
        say("the agent watches; it knows where the brokers' disks are")
        truth = power_loss(cluster, TOPIC, keep={FOLLOWER: keep}, leader=FOLLOWER, progress=say)
        say("waiting until the agent has had Spark look at the disks of the running brokers")
        wanted = {"log_segments", "replica_divergence"}
        wait_until(
            lambda: any(wanted <= {part["kind"] for part in one["findings"]} for one in agent.unmerged()),
            "an incident that names both faults",
            120,
            every=1,
        )
        wait_until(
            lambda: any(all(f"Spark, {check}:" in _words(slack, one) for check in wanted) for one in agent.unmerged()),
            "both answers in the thread",
            60,
        )
        agent.stop()
    return truth, agent.incidents()


def _problems(truth: PowerLoss, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    standing = [one for one in incidents if one["merged_into"] is None]
    about = [
        one
        for one in standing
        if any(part["kind"] in {"log_segments", "replica_divergence"} for part in one["findings"])
    ]
    if len(about) != 1:
        yield f"{len(about)} incidents tell of damaged logs, not 1"
        return
    (incident,) = about
    if incident["severity"] != "critical":
        yield f"it is {incident['severity']}, not critical"
    if not any(one["kind"] == "brokers_down_together" for one in incident["causes"]):
        yield "that brokers were lost together is none of its causes"
    yield from _wrong_faults(truth, incident)
    yield from _wrong_differences(truth, incident)
    own = messages_of(slack, incident)
    if len(own) != 1:
        yield f"{len(own)} messages stand for it, not one"
    elif len(slack.messages()) > 3:
        yield f"{len(slack.messages()) - 1} other messages stand in the channel, not two at most"
    said = _words(slack, incident)
    for dip in truth.decreases:
        for word in (dip.file.name, f"{dip.position:,}", f"{dip.previous:,}", f"{dip.current:,}"):
            if word not in said:
                yield f"its thread does not tell {word}"


def _wrong_faults(truth: PowerLoss, incident: dict[str, Any]) -> Iterator[str]:
    told = [
        (one["subject"]["broker"], one["subject"]["file"], one["position"], one["previous"], one["current"])
        for one in incident["findings"]
        if one["kind"] == "log_segments"
    ]
    really = [
        (
            dip.broker,
            f"{dip.file.parent.name}/{dip.file.name}",
            dip.position,
            {"offset": dip.previous},
            {"offset": dip.current},
        )
        for dip in truth.decreases
    ]
    if told != really or not really:
        yield f"it says that offsets go back at {told}; they do at {really}"


def _wrong_differences(truth: PowerLoss, incident: dict[str, Any]) -> Iterator[str]:
    told = {
        tuple(one["subject"]["brokers"]): (one["previous"]["offset"], one["current"]["offset"])
        for one in incident["findings"]
        if one["kind"] == "replica_divergence"
    }
    really = {pair: (one.first, one.first) for pair, one in truth.diverged.items()}
    if told != really or not really:
        yield f"it says that replicas differ from {told}; they do from {really}"


def _words(slack: Slack, incident: dict[str, Any]) -> str:
    """All that the incident's thread says."""
    return "\n".join(one.words for one in thread_of(slack, incident))
