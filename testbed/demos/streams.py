"""The demo `streams-state`: a task of Kafka Streams 2.1.0 starts with an empty store after a rebalance (KAFKA-7672).

It overwrites good values. Backflow detects that in the changelog, and a Spark check proves it key by key.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from testbed.agent import Agent
from testbed.demos.stage import (
    Progress,
    find_message_problems,
    finish,
    plots_of,
    prepare_directory,
    report_slack,
    save_plots,
    select_critical,
    thread_text,
)
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.streams.app import streams_broker
from testbed.streams.faults import Outcome, instances, lose_state
from testbed.waiting import wait_until

APPLICATION, STORE, INPUT = "shop", "counts", "orders"
RULE, CHECK = "state_not_restored", "changelog_restore"
FAILED = f"{CHECK} failed: "
DECLARED = f'[{{ application = "{APPLICATION}", store = "{STORE}" }}]'


def run(directory: Path, seed: int | None) -> int:  # noqa: ARG001 - nothing is random here
    """Lose state, print what Backflow reports and check it. Returns 0 if everything is as expected."""
    progress = Progress()
    prepare_directory(directory)
    progress("starting a Kafka 3.9.1 broker")
    with Slack() as slack, streams_broker(directory / "kafka") as kafka:
        kafka.create_topic(INPUT, 4)
        truth, incidents = _break(kafka, slack, directory, progress)
        save_plots(directory, slack, incidents)
        return finish(directory, slack, incidents, list(_find_problems(truth, incidents, slack)))


def _break(kafka: Cluster, slack: Slack, directory: Path, progress: Progress) -> tuple[Outcome, list[dict[str, Any]]]:
    agent = Agent(
        directory / "agent",
        {"demo": {"bootstrap_servers": kafka.bootstrap_servers, "zookeeper": kafka.zookeeper}},
        slack,
        checks=True,
        options={"rules.state_not_restored.stores": DECLARED},
    )
    first, second = instances(
        "empty", "2.1.0", kafka.bootstrap_servers, APPLICATION, directory / "streams", input_topic=INPUT
    )

    def has_check_result(incident: dict[str, Any]) -> bool:
        return bool(plots_of(slack, incident)) or FAILED in thread_text(slack, incident)

    with agent, report_slack(slack, progress):
        agent.wait_until_watching()
        progress(f"the agent watches; values of store {STORE} of {APPLICATION} are declared never to decrease")
        try:
            truth = lose_state(first, second, "empty", progress=progress)
        finally:
            first.kill()
            second.kill()
        affected = {decrease.partition for decrease in truth.decreases}
        progress(f"{len(truth.decreases)} keys of partitions {sorted(affected)} decreased")
        wait_until(
            lambda: affected == {finding["subject"]["partition"] for finding in _decreases(agent.unmerged(), RULE)},
            "an incident with all affected partitions",
            60,
            every=0.5,
        )
        progress("waiting for the Spark check of the changelog; its first run downloads Spark's Kafka connector")
        wait_until(lambda: any(map(has_check_result, agent.unmerged())), "the check result", 240, every=1)
        agent.stop()
    return truth, agent.incidents()


def _decreases(incidents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the findings of decreased values, of the rule or of the check."""
    return [
        finding
        for incident in incidents
        if incident["merged_into"] is None
        for finding in incident["findings"]
        if finding["kind"] == kind and "values_fell" in finding["labels"]
    ]


def _find_problems(truth: Outcome, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with Backflow's report."""
    critical = select_critical(incidents)
    if len(critical) != 1:
        yield f"{len(critical)} critical incidents, not 1"
        return
    (incident,) = critical
    if not any(cause["kind"] == "rebalancing" for cause in incident["causes"]):
        yield "its causes do not include the rebalance"
    yield from _find_wrong_keys(truth, incident, RULE)
    yield from _find_wrong_check_result(truth, incident, slack)
    keys = len(truth.decreases)
    expected = (APPLICATION, STORE, truth.changelog, f"{keys} keys decreased", f"{keys} of {keys} keys")
    yield from find_message_problems(slack, incident, expected)


def _find_wrong_keys(truth: Outcome, incident: dict[str, Any], kind: str) -> Iterator[str]:
    """Yield the difference in the number of keys by partition, as the rule or the check reports it."""
    actual = Counter(decrease.partition for decrease in truth.decreases)
    reported = {finding["subject"]["partition"]: finding["current"]["keys"] for finding in _decreases([incident], kind)}
    if reported != actual:
        yield f"{kind}: decreased keys by partition: {reported}; actual {dict(actual)}"


def _find_wrong_check_result(truth: Outcome, incident: dict[str, Any], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with the check result in the thread and with its list of keys."""
    thread = thread_text(slack, incident)
    if FAILED in thread:
        yield (
            "the check failed, so nothing is proven. Its first run downloads Spark's Kafka connector and needs the "
            f"network for that (docs/spark.md). Reason: {thread.partition(FAILED)[2].partition(chr(10))[0]}"
        )
        return
    yield from _find_wrong_keys(truth, incident, CHECK)
    if len(plots_of(slack, incident)) != 1:
        yield f"its thread has {len(plots_of(slack, incident))} plots, not 1"
    result = thread.partition(f"Spark, {CHECK}:")[2]
    for partition, keys in Counter(decrease.partition for decrease in truth.decreases).items():
        if f"{truth.changelog}[{partition}]: {keys} of " not in result:
            yield f"the check result does not report {keys} keys of {truth.changelog}[{partition}]"
    files = {finding["current"].get("listed_in") for finding in _decreases([incident], CHECK)}
    if len(files) != 1 or None in files:
        yield f"the keys are listed in {files}, not in one file"
        return
    (file,) = files
    if file not in result:
        yield f"the check result does not name the file that lists the keys, {file}"
    columns = ("partition", "key", "before", "before_offset", "after", "after_offset")
    listed = [tuple(row[name] for name in columns) for row in parquet.read_table(file).to_pylist()]
    actual = [tuple(getattr(decrease, name) for name in columns) for decrease in truth.decreases]
    if sorted(listed) != sorted(actual):
        yield f"keys listed in {file}: {sorted(listed)}; actual: {sorted(actual)}"
