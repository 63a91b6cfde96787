"""Clusters with TLS, SASL and ACLs: what Backflow sees with the documented permissions, and what it says without."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from agent.model.observations.base import Available, Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.security import (
    PLAIN_PASSWORD,
    Security,
    client_properties,
    grant,
    run_kafka_acls,
    set_password,
    withdraw,
)
from tests.integration.scenes import committed, findings, move_offsets, named, now

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(600)]

_DOCUMENT = Path(__file__).parents[2] / "docs/how-to/secured-clusters.md"
_GROUP, _OFFSET = "orders-group", 5_000


class Secured(NamedTuple):
    """A cluster with an authorizer, and the file with the password of the agent's user."""

    cluster: Cluster
    security: Security
    directory: Path
    password: Path

    def set_password(self, password: str) -> None:
        """Set the password, in the cluster and in the file."""
        set_password(self.cluster.admin, password)
        self.password.write_text(f"{password}\n")

    def table(self, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Return the cluster's table in rules.toml, whose user authenticates by the mechanism, or by TLS."""
        is_tls = mechanism == "TLS"
        table: dict[str, Any] = {
            "bootstrap_servers": self.cluster.servers("SSL" if is_tls else "SASL_SSL"),
            "poll_interval": "1s",
            "kafka": self.security.tls_properties()
            if is_tls
            else self.security.sasl_properties(mechanism, self.password),
        }
        return table if self.cluster.zookeeper is None else {**table, "zookeeper": self.cluster.zookeeper}


@pytest.fixture(scope="module", params=["4.1.1", "3.9.1"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two brokers; the documented permissions are granted, a group has committed offsets."""
    directory = tmp_path_factory.mktemp(f"secured-{request.param}")
    security = Security(directory / "security")
    with Cluster(request.param, (1, 2), workdir=directory / "kafka", security=security, offsets_on=(1,)) as cluster:
        secured = Secured(cluster, security, directory, directory / "password")
        secured.set_password("first-password")
        for command in _documented_commands():
            run_kafka_acls(command, cluster.bootstrap_servers, directory)
            run_kafka_acls(command.replace("User:backflow", "User:CN=backflow"), cluster.bootstrap_servers, directory)
        yield secured


@pytest.fixture
def topic(secured: Secured) -> str:
    """A topic with records, and the committed offset of the group on it."""
    name = named("orders")  # not `shop-`, where the documented Read implies Describe
    secured.cluster.create_topic(name, 2, replication=2)
    producer = Producer({"bootstrap.servers": secured.cluster.bootstrap_servers})
    for partition in (0, 1):
        for _ in range(_OFFSET):
            producer.produce(name, b"record", partition=partition)
    assert producer.flush(60) == 0
    move_offsets(secured.cluster, _GROUP, name, _OFFSET, 0, 1)
    return name


def _documented_commands() -> list[str]:
    """Return the arguments of the commands for all topics and groups."""
    blocks = re.findall(r"^```\n(kafka-acls .*?)^```", _DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [command for command in re.split(r"^kafka-acls ", blocks[0], flags=re.MULTILINE) if command]


def _outage(agent: Agent, what: str, *words: str, seconds: float = 90) -> dict[str, Any]:
    """Wait for the incident about what the Kafka source cannot read, which must be the only one and have the words."""
    found = agent.wait_for_incident(
        lambda incident: incident["status"] == "open" and bool(findings([incident], "source_unavailable")),
        what,
        seconds,
    )
    texts = [finding["detail"] for finding in findings([found], "source_unavailable", source="kafka")]
    for word in words:
        assert word in texts[0]
    outages = [incident for incident in agent.unmerged() if findings([incident], "source_unavailable")]
    assert [outage["id"] for outage in outages if outage["status"] == "open"] == [found["id"]]
    return found


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN", "TLS"])
def test_a_rewind_is_reported_with_the_documented_acls(
    secured: Secured, topic: str, mechanism: str, tmp_path: Path
) -> None:
    if mechanism == "PLAIN":
        secured.password.write_text(f"{PLAIN_PASSWORD}\n")
    else:
        secured.set_password("first-password")
    with Agent(tmp_path, {"main": secured.table(mechanism)}) as agent:
        agent.wait_for(committed(_GROUP, _OFFSET), "the commit to be seen")
        move_offsets(secured.cluster, _GROUP, topic, 10, 0)
        found = agent.wait_for_incident(
            lambda incident: bool(findings([incident], "offset_rewind", topic=topic)), "the rewind to be reported", 90
        )
    rewind = findings([found], "offset_rewind", topic=topic)[0]
    assert (rewind["previous"]["offset"], rewind["current"]["offset"]) == (_OFFSET, 10)


def test_the_agents_user_can_change_nothing(secured: Secured, topic: str) -> None:
    secured.set_password("first-password")
    properties = client_properties(secured.security.sasl_properties("SCRAM-SHA-512", secured.password))
    properties["bootstrap.servers"] = secured.cluster.servers("SASL_SSL")
    refused: list[int] = []
    producer = Producer(properties)
    producer.produce(
        topic, b"x", partition=0, on_delivery=lambda error, _: refused.append(error.code() if error else 0)
    )
    producer.flush(30)
    consumer = Consumer({**properties, "group.id": _GROUP})
    with pytest.raises(KafkaException) as commit:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert commit.value.args[0].code() in {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}


@pytest.mark.usefixtures("topic")
def test_a_rotated_password_is_one_incident_until_it_is_written(secured: Secured, tmp_path: Path) -> None:
    secured.set_password("first-password")
    with Agent(tmp_path, {"main": secured.table()}) as agent:
        agent.wait_for(committed(_GROUP, _OFFSET), "the commit to be seen")
        set_password(secured.cluster.admin, "second-password")
        secured.cluster.rolling_restart()  # connections that are authenticated stay so
        _outage(agent, "the refused password to be reported", "cluster main", "SASL authentication error")
        written_at = now()
        secured.password.write_text("second-password\n")
        agent.wait_for(
            lambda fact: isinstance(fact, Available) and fact.is_whole and fact.at > written_at,
            "the cluster to be visible with the new password",
        )


@pytest.mark.usefixtures("topic")
def test_an_expired_certificate_is_one_incident(secured: Secured, tmp_path: Path) -> None:
    secured.set_password("first-password")
    with Agent(tmp_path, {"main": secured.table()}) as agent:
        agent.wait_for(committed(_GROUP, _OFFSET), "the commit to be seen")
        secured.security.issue_broker_certificate(2, expired=True)
        try:
            secured.cluster.restart(2)
            _outage(agent, "the expired certificate to be reported", "certificate has expired")
        finally:
            secured.security.issue_broker_certificate(2)
            secured.cluster.restart(2)


@pytest.mark.usefixtures("topic")
def test_a_withdrawn_permission_is_one_incident_and_no_deletion(secured: Secured, tmp_path: Path) -> None:
    secured.set_password("first-password")
    deleted: list[Observation] = []

    def is_visible_again(fact: Observation) -> bool:
        if isinstance(fact, Commit) and fact.offset is None:
            deleted.append(fact)
        return isinstance(fact, Available) and fact.topic == "*" and fact.at > granted_at

    with Agent(tmp_path, {"main": secured.table()}) as agent:
        agent.wait_for(committed(_GROUP, _OFFSET), "the commit to be seen")
        withdraw(secured.cluster.admin, "TOPIC", "*", "DESCRIBE")
        withdraw(secured.cluster.admin, "TOPIC", "*", "DESCRIBE_CONFIGS")
        try:
            _outage(agent, "the missing permission to be reported", "topics *", "--operation Describe --topic '*'")
        finally:
            granted_at = now()
            grant(secured.cluster.admin, "TOPIC", "*", "DESCRIBE")
            grant(secured.cluster.admin, "TOPIC", "*", "DESCRIBE_CONFIGS")
        agent.wait_for(is_visible_again, "the topics to be visible again", 90)
    assert deleted == []


@pytest.mark.usefixtures("topic")
def test_an_offsets_topic_that_is_hidden_is_one_incident(secured: Secured, tmp_path: Path) -> None:
    """The cluster does not refuse it to the agent: it does not mention it."""
    secured.set_password("first-password")
    hiding = "--bootstrap-server - --command-config - --deny-principal User:backflow --operation Describe --topic"
    table = {**secured.table(), "commits": "tail"}
    run_kafka_acls(f"--add {hiding} {OFFSETS_TOPIC}", secured.cluster.bootstrap_servers, secured.directory)
    try:
        with Agent(tmp_path, {"main": table}) as agent:
            agent.wait_for(committed(_GROUP, _OFFSET), "the commit to be polled")
            _outage(agent, "the hidden topic to be reported", OFFSETS_TOPIC, "does not show it", "--operation Read")
    finally:
        run_kafka_acls(
            f"--remove --force {hiding} {OFFSETS_TOPIC}", secured.cluster.bootstrap_servers, secured.directory
        )


def test_a_wrong_password_is_one_incident(secured: Secured, tmp_path: Path) -> None:
    secured.set_password("first-password")
    secured.password.write_text("wrong\n")
    with Agent(tmp_path, {"main": secured.table()}) as agent:
        _outage(agent, "the wrong password to be reported", "cluster main", "SASL authentication error", seconds=120)
