"""Steps shared by several integration tests: an agent on a cluster, its findings, and offset resets."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from testbed import groups
from testbed.agent import Agent
from testbed.consumers import AutoCommitConsumer, ExplicitConsumer, RecordingConsumer, SubscribedConsumer
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Traffic, fill
from testbed.workspace import Message

LATE_MS = 20_000
"""How long after an event a false alarm about it would have come."""


@contextmanager
def watched(
    cluster: Cluster,
    directory: Path,
    slack: Slack | None = None,
    options: Mapping[str, str] | None = None,
    *,
    only: Mapping[str, str] | None = None,
) -> Iterator[Agent]:
    """An agent with the shipped rules that watches the cluster.

    options: see Agent. only: the topic and the group to watch, as other tests leave some on the cluster; none: all.
    """
    filters = {name: {"include": [pattern]} for name, pattern in (only or {}).items()}
    agent = Agent(directory, {"main": {**addresses(cluster), **filters}}, slack, options=options)
    with agent:
        agent.wait_until_watching()
        yield agent


def open_transaction(cluster: Cluster, topic: str, partition: int) -> Producer:
    """Write a record in a transaction that stays open, and five more after it; return its producer."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=partition)
    producer.flush(30)
    fill(cluster.bootstrap_servers, [(topic, partition)], records=5)
    return producer


@contextmanager
def bystanders(cluster: Cluster) -> Iterator[list[RecordingConsumer]]:
    """Three groups of different kinds that read a topic of their own, which loses nothing with one broker left."""
    topic, (first, second, third) = named("calm"), cluster.brokers
    rings = [[first, second, third], [second, third, first], [third, first, second]]
    cluster.create_topic(topic, assignment=dict(enumerate(rings)))
    places = [(topic, number) for number in range(3)]
    with (
        Traffic(cluster.bootstrap_servers, places, 20),
        SubscribedConsumer(cluster.bootstrap_servers, named("calm-members"), [topic]) as members,
        ExplicitConsumer(cluster.bootstrap_servers, named("calm-assigned"), places) as assigned,
        AutoCommitConsumer(cluster.bootstrap_servers, named("calm-auto"), [topic]) as automatic,
    ):
        consumers: list[RecordingConsumer] = [members, assigned, automatic]
        for consumer in consumers:
            for number in range(3):
                consumer.wait_until_at(topic, number, 20)
        yield consumers


def assert_only_message(slack: Slack, incident: Mapping[str, Any]) -> Message:
    """Assert that the channel holds one message, which is the incident's, and return it."""
    (message,) = slack.messages()
    assert incident["id"] in message.words
    return message


def assert_nothing_reported(agent: Agent, slack: Slack) -> None:
    """Assert that no incident is above info, and that nothing was posted."""
    assert [incident["title"] for incident in agent.unmerged() if incident["severity"] != "info"] == []
    assert slack.messages() == []


def addresses(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster's table in rules.toml."""
    table: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "poll_interval": "1s"}
    return table if cluster.zookeeper is None else {**table, "zookeeper": cluster.zookeeper}


def named(what: str) -> str:
    """Return a name that no other test uses."""
    return f"{what}-{uuid4().hex[:6]}"


def findings(incidents: list[dict[str, Any]], kind: str, **subject: Any) -> list[dict[str, Any]]:
    """Return all findings of a kind about a subject, including causes."""
    return [
        finding
        for incident in incidents
        for finding in incident["causes"] + incident["findings"]
        if finding["kind"] == kind and all(finding["subject"].get(key) == value for key, value in subject.items())
    ]


def has(incident: Mapping[str, Any], kind: str, **subject: Any) -> bool:
    """Return whether the incident has such a finding."""
    return bool(findings([dict(incident)], kind, **subject))


def committed(group: str, at_least: int) -> Callable[[Observation], bool]:
    """Return a predicate: a commit of the group at or above an offset."""

    def matches(observation: Observation) -> bool:
        return isinstance(observation, Commit) and observation.group == group and (observation.offset or 0) >= at_least

    return matches


def move_offsets(cluster: Cluster, group: str, topic: str, offset: int, *partitions: int) -> None:
    """Set a group's committed offsets, as kafka-consumer-groups --reset-offsets does; partition 0 by default."""
    groups.move_offsets(cluster.bootstrap_servers, group, topic, offset, partitions or (0,))


def now() -> int:
    """Return the wall clock, ms."""
    return time.time_ns() // 1_000_000
