"""The demo `log-divergence`: two replicas lose power together and differ from then on (KAFKA-3919).

The brokers are Kafka 0.11.0.0 and report no error. Backflow finds the difference on their disks while they run.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.agent import Agent
from testbed.demos.stage import (
    Progress,
    find_message_problems,
    finish,
    prepare_directory,
    report_slack,
    select_unmerged,
    thread_text,
)
from testbed.kafka import Cluster
from testbed.power_loss import PowerLoss, create, power_loss
from testbed.slack import Slack
from testbed.waiting import wait_until

TOPIC = "topic-124"
SURVIVOR, LEADER, FOLLOWER = 2024, 2011, 2005
"""The follower returns first and becomes the leader."""
CHECKS = ("log_segments", "replica_divergence")


def run(directory: Path, seed: int | None) -> int:
    """Damage the replicas, print what Backflow reports and check it. Returns 0 if everything is as expected."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    keep = random.Random(seed).uniform(0.85, 0.93)
    progress = Progress()
    prepare_directory(directory)
    progress(f"seed {seed}: broker {FOLLOWER} will lose {1 - keep:.1%} of {TOPIC}[0]")
    progress("starting ZooKeeper and three Kafka 0.11.0.0 brokers")
    brokers = (SURVIVOR, LEADER, FOLLOWER)
    with (
        Slack() as slack,
        Cluster("0.11.0.0", brokers, workdir=directory / "kafka", offsets_on=[SURVIVOR]) as cluster,
    ):
        truth, incidents = _break(cluster, slack, keep, directory, progress)
        return finish(directory, slack, incidents, list(_find_problems(truth, incidents, slack)))


def _break(
    cluster: Cluster, slack: Slack, keep: float, directory: Path, progress: Progress
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

    def has_both_faults(incident: dict[str, Any]) -> bool:
        return set(CHECKS) <= {finding["kind"] for finding in incident["findings"]}

    def has_both_reports(incident: dict[str, Any]) -> bool:
        return all(f"Spark, {check}:" in thread_text(slack, incident) for check in CHECKS)

    with agent, report_slack(slack, progress):
        agent.wait_until_watching()
        progress("the agent watches; it has the log directories of the brokers")
        truth = power_loss(cluster, TOPIC, keep={FOLLOWER: keep}, leader=FOLLOWER, progress=progress)
        progress("waiting for the Spark checks of the running brokers' disks")
        wait_until(lambda: any(map(has_both_faults, agent.unmerged())), "an incident with both faults", 300, every=1)
        wait_until(lambda: any(map(has_both_reports, agent.unmerged())), "both check results in the thread", 60)
        agent.stop()
    return truth, agent.incidents()


def _find_problems(truth: PowerLoss, incidents: list[dict[str, Any]], slack: Slack) -> Iterator[str]:
    """Yield what is wrong with Backflow's report."""
    damaged = select_unmerged(incidents, *CHECKS)
    if len(damaged) != 1:
        yield f"{len(damaged)} incidents report damaged logs, not 1"
        return
    (incident,) = damaged
    if incident["severity"] != "critical":
        yield f"the incident is {incident['severity']}, not critical"
    if not any(cause["kind"] == "brokers_down_together" for cause in incident["causes"]):
        yield "its causes do not include that brokers were down together"
    yield from _find_wrong_segments(truth, incident)
    yield from _find_wrong_differences(truth, incident)
    yield from find_message_problems(slack, incident, (), others=2)
    thread = thread_text(slack, incident)
    for dip in truth.decreases:
        for text in (dip.file.name, f"{dip.position:,}", f"{dip.previous:,}", f"{dip.current:,}"):
            if text not in thread:
                yield f"its thread does not contain {text}"


def _find_wrong_segments(truth: PowerLoss, incident: dict[str, Any]) -> Iterator[str]:
    reported = [
        (
            finding["subject"]["broker"],
            finding["subject"]["file"],
            finding["position"],
            finding["previous"],
            finding["current"],
        )
        for finding in incident["findings"]
        if finding["kind"] == "log_segments"
    ]
    actual = [
        (
            dip.broker,
            f"{dip.file.parent.name}/{dip.file.name}",
            dip.position,
            {"offset": dip.previous},
            {"offset": dip.current},
        )
        for dip in truth.decreases
    ]
    if reported != actual or not actual:
        yield f"reported decreases of offsets: {reported}; actual: {actual}"


def _find_wrong_differences(truth: PowerLoss, incident: dict[str, Any]) -> Iterator[str]:
    reported = {
        tuple(finding["subject"]["brokers"]): (finding["previous"]["offset"], finding["current"]["offset"])
        for finding in incident["findings"]
        if finding["kind"] == "replica_divergence"
    }
    actual = {pair: (difference.first, difference.first) for pair, difference in truth.diverged.items()}
    if reported != actual or not actual:
        yield f"reported first diverging offsets: {reported}; actual: {actual}"
