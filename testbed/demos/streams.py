"""The demo `streams-state`: a task of Kafka Streams 2.1.0 comes back from a rebalance with an empty store and
overwrites good values (KAFKA-7672); Backflow follows the changelog.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent
from testbed.demos.stage import Say, conclude, messages_of, sweep, telling
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.streams.faults import Outcome, instances, lose_state
from testbed.waiting import wait_until

APPLICATION, STORE, INPUT = "shop", "counts", "orders"
DECLARED = f'[{{ application = "{APPLICATION}", store = "{STORE}" }}]'


def run(directory: Path, seed: int | None) -> int:  # noqa: ARG001 - nothing is drawn here
    """Lose state, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    say = Say()
    sweep(directory)
    say("starting a Kafka 3.9.1 broker")
    config = {"transaction.state.log.num.partitions": 4}
    with Slack() as slack, Cluster("3.9.1", [2005], workdir=directory / "kafka", config=config) as kafka:
        kafka.create_topic(INPUT, 4)
        truth, incidents = _break(kafka, slack, directory, say)
        return conclude(directory, slack, incidents, list(_problems(truth, incidents, slack)))


def _break(kafka: Cluster, slack: Slack, directory: Path, say: Say) -> tuple[Outcome, list[dict[str, Any]]]:
    agent = Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": kafka.bootstrap_servers, "zookeeper": kafka.zookeeper}},
        slack,
        edits={"stores = []": f"stores = {DECLARED}"},
    )
    first, second = instances(
        "empty", "2.1.0", kafka.bootstrap_servers, APPLICATION, directory / "streams", input_topic=INPUT
    )
    with agent, telling(slack, say):
        agent.wait_until_watching()
        say(f"the agent watches; {STORE} of {APPLICATION} is declared never to decrease")
        try:
            truth = lose_state(first, second, "empty", progress=say)
        finally:
            first.kill()
            second.kill()
        struck = {one.partition for one in truth.falls}
        say(f"{len(truth.falls)} keys of partitions {sorted(struck)} began again")
        wait_until(
            lambda: struck == {one["subject"]["partition"] for one in _lost(agent.standing())},
            "an incident that names them all",
            60,
            every=0.5,
        )
        wait_until(lambda: any("CRITICAL" in one.words for one in slack.messages()), "Slack to be told")
        agent.stop()
    return truth, agent.incidents()


def _lost(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of values that fell."""
    return [
        one
        for incident in incidents
        if incident["merged_into"] is None
        for one in incident["findings"]
        if one["kind"] == "state_not_restored" and "values_fell" in one["labels"]
    ]


def _problems(truth: Outcome, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    critical = [one for one in incidents if one["merged_into"] is None and one["severity"] == "critical"]
    if len(critical) != 1:
        yield f"{len(critical)} critical incidents stand, not 1"
        return
    (incident,) = critical
    if not any(one["kind"] == "rebalancing" for one in incident["causes"]):
        yield "the rebalance is none of its causes"
    told = {one["subject"]["partition"]: one["current"]["keys"] for one in _lost([incident])}
    really: dict[int, int] = {}
    for fall in truth.falls:
        really[fall.partition] = really.get(fall.partition, 0) + 1
    if told != really:
        yield f"it says that so many keys fell by partition: {told}; they are {really}"
    own = messages_of(slack, incident)
    if len(own) != 1:
        yield f"{len(own)} messages stand for it, not one"
        return
    for what in (APPLICATION, STORE, truth.changelog):
        if what not in own[0].words:
            yield f"its message does not name {what}"
