"""The demo `streams-state`: a task of Kafka Streams 2.1.0 comes back from a rebalance with an empty store and
overwrites good values (KAFKA-7672); Backflow follows the changelog, and Spark proves it key by key.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from testbed.agent import Agent
from testbed.demos.stage import Say, conclude, messages_of, plots_of, sweep, telling, thread_of
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.streams.app import streams_broker
from testbed.streams.faults import Outcome, instances, lose_state
from testbed.waiting import wait_until

APPLICATION, STORE, INPUT = "shop", "counts", "orders"
CHECK = "changelog_restore"
FAILED = f"{CHECK} failed: "
DECLARED = f'[{{ application = "{APPLICATION}", store = "{STORE}" }}]'


def run(directory: Path, seed: int | None) -> int:  # noqa: ARG001 - nothing is drawn here
    """Lose state, show what Backflow says of it and check that. Returns 0 where all of it is as it should be."""
    say = Say()
    sweep(directory)
    say("starting a Kafka 3.9.1 broker")
    with Slack() as slack, streams_broker(directory / "kafka") as kafka:
        kafka.create_topic(INPUT, 4)
        truth, incidents = _break(kafka, slack, directory, say)
        for plot in (plot for incident in incidents for plot in plots_of(slack, incident)):
            (directory / "evidence.png").write_bytes(plot)
        return conclude(directory, slack, incidents, list(_problems(truth, incidents, slack)))


def _break(kafka: Cluster, slack: Slack, directory: Path, say: Say) -> tuple[Outcome, list[dict[str, Any]]]:
    agent = Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": kafka.bootstrap_servers, "zookeeper": kafka.zookeeper}},
        slack,
        checks=True,
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
        struck = {one.partition for one in truth.decreases}
        say(f"{len(truth.decreases)} keys of partitions {sorted(struck)} began again")
        wait_until(
            lambda: struck == {one["subject"]["partition"] for one in _lost(agent.unmerged())},
            "an incident that names them all",
            60,
            every=0.5,
        )
        say("waiting for what Spark finds in the changelog; its first run fetches Spark's Kafka connector")
        wait_until(
            lambda: any(plots_of(slack, one) or FAILED in _words(slack, one) for one in agent.unmerged()),
            "Spark's answer in the thread",
            240,
            every=1,
        )
        agent.stop()
    return truth, agent.incidents()


def _lost(incidents: list[dict[str, Any]], kind: str = "state_not_restored") -> list[dict[str, Any]]:
    """The findings of values that fell: of the rule that follows changelogs, or of the check."""
    return [
        one
        for incident in incidents
        if incident["merged_into"] is None
        for one in incident["findings"]
        if one["kind"] == kind and "values_fell" in one["labels"]
    ]


def _words(slack: Slack, incident: dict[str, Any]) -> str:
    """All that the incident's thread says."""
    return "\n".join(one.words for one in thread_of(slack, incident))


def _problems(truth: Outcome, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """What is wrong with what Backflow said, in sentences."""
    critical = [one for one in incidents if one["merged_into"] is None and one["severity"] == "critical"]
    if len(critical) != 1:
        yield f"{len(critical)} critical incidents stand, not 1"
        return
    (incident,) = critical
    if not any(one["kind"] == "rebalancing" for one in incident["causes"]):
        yield "the rebalance is none of its causes"
    yield from _wrong_keys(truth, incident, "state_not_restored")
    yield from _wrong_proof(truth, incident, slack)
    own = messages_of(slack, incident)
    if len(own) != 1:
        yield f"{len(own)} messages stand for it, not one"
        return
    for what in (APPLICATION, STORE, truth.changelog, f"{len(truth.decreases)} keys decreased"):
        if what not in own[0].words:
            yield f"its message does not name {what}"


def _wrong_keys(truth: Outcome, incident: dict[str, Any], kind: str) -> Iterator[str]:
    """What is wrong with the partitions and numbers of keys that the rule or the check tells."""
    really = Counter(one.partition for one in truth.decreases)
    told = {one["subject"]["partition"]: one["current"]["keys"] for one in _lost([incident], kind)}
    if told != really:
        yield f"{kind} says that so many keys fell by partition: {told}; they are {dict(really)}"


def _wrong_proof(truth: Outcome, incident: dict[str, Any], slack: Slack) -> Iterator[str]:
    """What is wrong with the check's answer in the thread, and with its list of keys."""
    said = _words(slack, incident)
    if FAILED in said:
        yield (
            "the check failed, so nothing is proven; its first run fetches Spark's Kafka connector, for which it needs "
            "the network once (docs/how-to/spark-on-a-cluster.md). It says: "
            f"{said.partition(FAILED)[2].partition(chr(10))[0]}"
        )
        return
    yield from _wrong_keys(truth, incident, CHECK)
    if len(plots_of(slack, incident)) != 1:
        yield f"{len(plots_of(slack, incident))} pictures are in its thread, not one"
    answer = said.partition(f"Spark, {CHECK}:")[2]
    for partition, keys in Counter(one.partition for one in truth.decreases).items():
        if f"{truth.changelog}[{partition}]: {keys} of " not in answer:
            yield f"Spark's answer does not tell of {keys} keys of {truth.changelog}[{partition}]"
    files = {one["current"].get("listed_in") for one in _lost([incident], CHECK)}
    if len(files) != 1 or None in files:
        yield f"the keys are listed in {files}, not in one file"
        return
    (file,) = files
    if file not in answer:
        yield f"Spark's answer does not say that the keys are listed in {file}"
    columns = ("partition", "key", "before", "before_offset", "after", "after_offset")
    listed = [tuple(row[name] for name in columns) for row in parquet.read_table(file).to_pylist()]
    fell = [tuple(getattr(one, name) for name in columns) for one in truth.decreases]
    if sorted(listed) != sorted(fell):
        yield f"the keys listed in {file} are {sorted(listed)}; those that fell are {sorted(fell)}"
