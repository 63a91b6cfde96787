"""A group moves between two clusters that MirrorMaker 2 mirrors: cluster_failover says what it skips and repeats."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from testbed import groups
from testbed.agent import Agent
from testbed.consumers import SubscribedConsumer
from testbed.kafka import Cluster
from testbed.mirror import MirrorMaker
from testbed.traffic import Traffic
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, committed, named, now

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.acceptance]  # six JVMs for five minutes

TOPIC, MIRRORED = "orders", "main.orders"
RATE, AHEAD = 200, 6_000


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster("4.1.1", (1,), workdir=tmp_path / "main") as cluster:
        yield cluster


@pytest.fixture
def backup(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster("4.1.1", (1,), workdir=tmp_path / "backup") as cluster:
        yield cluster


def check(agent: Agent, cluster: str) -> list[dict[str, Any]]:
    """Return the findings about moves to a cluster."""
    command = [sys.executable, "-m", "agent", "check", "cluster_failover", "--config", str(agent.config), "--json"]
    limits = ["--min-records", "500", "--delay", "2s", "--tolerance", "5s"]
    done = subprocess.run(
        [*command, "--cluster", cluster, *limits], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [finding for finding in found if "projected" not in finding["labels"]]


def wait_for_records(cluster: Cluster, count: int) -> None:
    """Wait until the topic has so many records more."""
    end = wait_until(lambda: cluster.log_end(TOPIC, 0), "the log end")
    wait_until(lambda: (cluster.log_end(TOPIC, 0) or 0) >= end + count, f"{count:,} records", 120)


def is_on(cluster: str, group: str, state: str) -> Any:
    """Return a predicate: the group has this state on the cluster."""

    def matches(observation: Observation) -> bool:
        return (
            isinstance(observation, GroupState)
            and (observation.cluster, observation.group, observation.state) == (cluster, group, state)
            and observation.at > began
        )

    began = now()
    return matches


def test_what_a_group_skips_and_repeats_on_real_clusters(main: Cluster, backup: Cluster, tmp_path: Path) -> None:
    group = named("billing")
    main.create_topic(TOPIC, assignment={0: [1]})
    sides = (("main", main.bootstrap_servers), ("backup", backup.bootstrap_servers))
    with (
        MirrorMaker(*sides, TOPIC, tmp_path / "mirror"),
        Agent(tmp_path / "agent", {"main": addresses(main), "backup": addresses(backup)}) as agent,
        Traffic(main.bootstrap_servers, [(TOPIC, 0)], RATE),
    ):
        agent.wait_until_watching()
        with SubscribedConsumer(main.bootstrap_servers, group, [TOPIC]) as consumer:
            consumer.wait_until_at(TOPIC, 0, 1_000)
            agent.wait_for(
                lambda seen: isinstance(seen, Commit) and seen.cluster == "backup" and seen.group == group,
                "translated offsets",
                180,
            )
            for _ in range(2):  # how late the mirror is shows when traffic varies
                with Traffic(main.bootstrap_servers, [(TOPIC, 0)], 4 * RATE):
                    wait_for_records(main, 15 * 5 * RATE)
                wait_for_records(main, 25 * RATE)
        agent.wait_for(is_on("main", group, "Empty"), "the group to leave")
        left = consumer.committed[TOPIC, 0]
        agent.wait_for(
            lambda seen: (
                isinstance(seen, LogOffsets)
                and (seen.cluster, seen.topic) == ("backup", MIRRORED)
                and seen.log_end > left + AHEAD + 1_000
            ),
            "a backlog on the mirror",
            120,
        )
        groups.move_offsets(backup.bootstrap_servers, group, MIRRORED, left + AHEAD, (0,))
        agent.wait_for(committed(group, left + AHEAD), "the wrong offset")
        wait_for_records(main, 10 * RATE)  # meanwhile MirrorMaker does not move it back

        with SubscribedConsumer(backup.bootstrap_servers, group, [MIRRORED]) as moved:
            agent.wait_for(is_on("backup", group, "Stable"), "the group to move")
            agent.wait_for(committed(group, left + AHEAD + 2_000), "commits on the other cluster")
            wait_for_records(main, 20 * RATE)
        agent.wait_for(is_on("backup", group, "Empty"), "the group to leave again")
        assert moved.commits[0].offset > left + AHEAD
        reached = moved.committed[MIRRORED, 0]
        (skip,) = check(agent, "backup")
        assert (skip["severity"], skip["labels"]) == ("critical", ["skipped"])
        assert skip["current"]["offset"] == left + AHEAD
        assert AHEAD - 20 * RATE <= skip["records"]["skipped"] <= AHEAD <= skip["current"]["at_most"]
        assert skip["current"]["resume_at"] <= left

        with SubscribedConsumer(main.bootstrap_servers, group, [TOPIC]) as returned:
            agent.wait_for(is_on("main", group, "Stable"), "the group to return")
            returned.wait_until_at(TOPIC, 0, reached + 1_000)
            wait_for_records(main, 5 * RATE)
        (repetition,) = check(agent, "main")
        assert (repetition["severity"], repetition["labels"]) == ("warning", ["reprocessed"])
        least, most = repetition["records"]["reread"], repetition["current"]["at_most"]
        assert reached - left - 20 * RATE <= least <= reached - left <= most
