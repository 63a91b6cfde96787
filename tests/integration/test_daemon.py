"""The daemon as the service manager and the operator meet it: start, watchdog, clusters that are away, stop."""

import os
import socket
import time
from pathlib import Path

import pytest

from agent.model.observations import Available, Unavailable
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.processes import free_port
from testbed.slack import Slack
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, committed, findings, has, move_offsets, named, watched

pytestmark = pytest.mark.integration


def test_systemd_hears_ready_then_the_watchdog_then_stopping_whatever_the_cluster_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers at the cluster's address: that is normal operation. SIGTERM ends it within ten seconds, with 0."""
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    down = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "zookeeper": f"127.0.0.1:{free_port()}"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(address)
        service_manager.settimeout(60)
        with Agent(tmp_path / "agent", {"main": down}) as agent:
            assert service_manager.recv(100) == b"READY=1"
            for _ in range(3):
                assert service_manager.recv(100) == b"WATCHDOG=1"
            begun = time.monotonic()
            agent.stop(seconds=10)
            assert time.monotonic() - begun < 10
            assert agent.exit_status == 0
            told = [service_manager.recv(100)]
            while told[-1] == b"WATCHDOG=1":
                told.append(service_manager.recv(100))
            assert told[-1] == b"STOPPING=1"


def test_frozen_brokers_do_not_keep_it_from_stopping(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """Calls that hang are left behind."""
    with watched(kafka_3_9, tmp_path) as agent:
        agent.wait_for(lambda _: True, "the first observation")
        for broker in kafka_3_9.brokers:
            kafka_3_9.freeze(broker)
        agent.wait_for(lambda one: isinstance(one, Unavailable), "a frozen cluster to be noticed", 120)
        begun = time.monotonic()
        agent.stop(seconds=10)
        assert time.monotonic() - begun < 10
        assert agent.exit_status == 0


@pytest.mark.acceptance
def test_a_cluster_that_starts_later_than_the_agent_is_said_once_and_then_seen(tmp_path: Path) -> None:
    """Unavailable after a minute, one message; recovered when the cluster is there."""
    cluster = Cluster("3.9.1", (1,), workdir=tmp_path / "kafka")
    table = {"bootstrap_servers": cluster.bootstrap_servers, "poll_interval": "1s"}
    with Slack() as slack, Agent(tmp_path / "agent", {"main": table}, slack) as agent:
        incident = agent.wait_for_incident(lambda one: has(one, "source_unavailable"), "the blindness", 120)
        wait_until(slack.messages, "the message")
        with cluster:
            agent.wait_for(lambda one: isinstance(one, Available), "the cluster to be seen")
            agent.wait_for_incident(
                lambda one: one["id"] == incident["id"] and one["status"] == "recovered", "the recovery"
            )
        (message,) = [one for one in slack.messages() if incident["id"] in one.words]
        assert "RECOVERED" in message.words


def test_an_incident_whose_subject_is_out_of_sight_says_so(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """The cluster freezes while a rewind is open: nobody knows whether it has recovered."""
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    with watched(kafka_3_9, tmp_path) as agent:
        move_offsets(kafka_3_9, group, topic, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the rewind")
        assert incident["sighted"]
        for broker in kafka_3_9.brokers:
            kafka_3_9.freeze(broker)
        agent.wait_for_incident(lambda one: one["id"] == incident["id"] and not one["sighted"], "out of sight", 120)
        kafka_3_9.settle()
        agent.wait_for_incident(lambda one: one["id"] == incident["id"] and one["sighted"], "in sight again", 120)
        assert len(findings(agent.standing(), "offset_rewind", group=group)) == 1


def test_secrets_are_never_logged(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """Neither Slack's token, refused or not, nor a Kafka password."""
    os.environ["BACKFLOW_TEST_PASSWORD"] = "kafka-secret-4711"
    tables = (
        '[clusters.secured]\nbootstrap_servers = "127.0.0.1:9"\n[clusters.secured.kafka]\n'
        '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n"sasl.username" = "backflow"\n'
        '"sasl.password" = { env = "BACKFLOW_TEST_PASSWORD" }\n'
    )
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    with Slack(token="xoxb-slack-secret-4711") as slack:
        slack.refuse("invalid_auth", times=None)
        with Agent(tmp_path / "agent", {"main": addresses(kafka_3_9)}, slack, tables) as agent:
            agent.wait_until_watching()
            move_offsets(kafka_3_9, group, topic, 5000)
            agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
            move_offsets(kafka_3_9, group, topic, 0)
            wait_until(lambda: agent.printed("invalid_auth"), "the refusal to be logged")
            agent.stop()
        assert "secret-4711" not in agent.log.read_text()
