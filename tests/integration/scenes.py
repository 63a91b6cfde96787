"""What the scenes of several integration tests share: an agent on a cluster, and looking at what it says."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from testbed import groups
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack


@contextmanager
def watched(cluster: Cluster, directory: Path, slack: Slack | None = None) -> Iterator[Agent]:
    """An agent with the shipped rules that watches the cluster."""
    agent = Agent(directory, {"main": addresses(cluster)}, slack)
    with agent:
        agent.wait_until_watching()
        yield agent


def addresses(cluster: Cluster) -> dict[str, Any]:
    """The cluster's table in rules.toml."""
    table: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "poll_interval": "1s"}
    return table if cluster.zookeeper is None else {**table, "zookeeper": cluster.zookeeper}


def named(what: str) -> str:
    """A name that no other test uses."""
    return f"{what}-{uuid4().hex[:6]}"


def findings(incidents: list[dict[str, Any]], kind: str, **subject: Any) -> list[dict[str, Any]]:
    """All findings of a kind about a subject, causes included."""
    return [
        one
        for incident in incidents
        for one in incident["causes"] + incident["findings"]
        if one["kind"] == kind and all(one["subject"].get(key) == value for key, value in subject.items())
    ]


def has(incident: Mapping[str, Any], kind: str, **subject: Any) -> bool:
    """Whether the incident has such a finding."""
    return bool(findings([dict(incident)], kind, **subject))


def committed(group: str, at_least: int) -> Callable[[Observation], bool]:
    """Describes a commit of the group at or above an offset."""
    return lambda one: isinstance(one, Commit) and one.group == group and (one.offset or 0) >= at_least


def move_offsets(cluster: Cluster, group: str, topic: str, offset: int, *partitions: int) -> None:
    """Set a group's committed offset of partitions (0 unless given), as kafka-consumer-groups --reset-offsets does."""
    groups.move_offsets(cluster.bootstrap_servers, group, topic, offset, partitions or (0,))


def now() -> int:
    """The wall clock, ms."""
    return time.time_ns() // 1_000_000
