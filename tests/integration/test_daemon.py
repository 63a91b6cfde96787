"""The daemon towards service manager and operator: start, watchdog, unreachable clusters, stop."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from agent.model.observations.base import Available, Unavailable
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.processes import free_port
from testbed.slack import Slack
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, committed, findings, has, move_offsets, named, watched

pytestmark = pytest.mark.integration


def test_systemd_is_notified_while_the_cluster_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    down = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "zookeeper": f"127.0.0.1:{free_port()}"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(address)
        service_manager.settimeout(60)
        with Agent(tmp_path / "agent", {"main": down}) as agent:
            received = [service_manager.recv(200) for _ in range(5)]
            assert received[0] == b"READY=1"
            assert b"WATCHDOG=1" in received
            begun = time.monotonic()
            agent.stop(seconds=10)
            assert time.monotonic() - begun < 10
            assert agent.exit_status == 0
            while received[-1] != b"STOPPING=1":
                received.append(service_manager.recv(200))
            assert {state.partition(b"=")[0] for state in received[1:-1]} == {b"WATCHDOG", b"STATUS"}
            assert any(state.startswith(b"STATUS=0 incidents open") for state in received)


def test_agent_stops_in_time_with_frozen_brokers(kafka_3_9: Cluster, tmp_path: Path) -> None:
    with watched(kafka_3_9, tmp_path) as agent:
        agent.wait_for(lambda _: True, "the first observation")
        for broker in kafka_3_9.brokers:
            kafka_3_9.freeze(broker)
        agent.wait_for(lambda fact: isinstance(fact, Unavailable), "a frozen cluster to be noticed", 120)
        begun = time.monotonic()
        agent.stop(seconds=10)
        assert time.monotonic() - begun < 10
        assert agent.exit_status == 0


@pytest.mark.acceptance
def test_cluster_started_after_the_agent_is_reported_once(tmp_path: Path) -> None:
    cluster = Cluster("3.9.1", (1,), workdir=tmp_path / "kafka")
    table = {"bootstrap_servers": cluster.bootstrap_servers, "poll_interval": "1s"}
    with Slack() as slack, Agent(tmp_path / "agent", {"main": table}, slack) as agent:
        incident = agent.wait_for_incident(lambda candidate: has(candidate, "source_unavailable"), "the incident", 120)
        wait_until(slack.messages, "the message")
        with cluster:
            agent.wait_for(lambda fact: isinstance(fact, Available), "the cluster to be available")
            agent.wait_for_incident(
                lambda candidate: candidate["id"] == incident["id"] and candidate["status"] == "recovered",
                "the recovery",
            )
        (message,) = [post for post in slack.messages() if incident["id"] in post.words]
        assert "RECOVERED" in message.words


def test_incident_shows_that_its_subject_is_unavailable(kafka_3_9: Cluster, tmp_path: Path) -> None:
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    with watched(kafka_3_9, tmp_path) as agent:
        move_offsets(kafka_3_9, group, topic, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda candidate: has(candidate, "offset_rewind", group=group), "the rewind")
        assert incident["sighted"]
        for broker in kafka_3_9.brokers:
            kafka_3_9.freeze(broker)
        agent.wait_for_incident(
            lambda candidate: candidate["id"] == incident["id"] and not candidate["sighted"],
            "its subject to be unavailable",
            120,
        )
        kafka_3_9.repair()
        agent.wait_for_incident(
            lambda candidate: candidate["id"] == incident["id"] and candidate["sighted"],
            "its subject to be available again",
            120,
        )
        assert len(findings(agent.unmerged(), "offset_rewind", group=group)) == 1


def test_secrets_are_never_logged(kafka_3_9: Cluster, tmp_path: Path) -> None:
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
            agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
            move_offsets(kafka_3_9, group, topic, 0)
            wait_until(lambda: agent.find_line("invalid_auth"), "the refusal to be logged")
            agent.stop()
        assert "secret-4711" not in agent.log.read_text()


def test_sighup_reloads_a_valid_file_and_refuses_a_bad_one(kafka_3_9: Cluster, tmp_path: Path) -> None:
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    with watched(kafka_3_9, tmp_path) as agent:
        move_offsets(kafka_3_9, group, topic, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda candidate: has(candidate, "offset_rewind", group=group), "the rewind")
        valid = agent.config.read_text(encoding="utf-8")

        agent.config.write_text(valid + "\n[rules.second]\nkind = 'offset_rewound'\n", encoding="utf-8")
        os.kill(agent.pid or 0, signal.SIGHUP)
        agent.wait_for_line("unknown kind.*configuration_refused")

        agent.config.write_text(valid + "\n[rules.second]\nkind = 'offset_rewind'\n", encoding="utf-8")
        os.kill(agent.pid or 0, signal.SIGHUP)
        agent.wait_for_line(r"configuration_reloading[\s\S]*daemon_ready")
        move_offsets(kafka_3_9, group, topic, 6000)
        agent.wait_for(committed(group, 6000), f"{group} to have committed 6000")
        move_offsets(kafka_3_9, group, topic, 0)
        agent.wait_for_incident(
            lambda candidate: any(found["rule"] == "second" for found in candidate["findings"]),
            "the new rule's finding",
        )
        assert incident["id"] in {known["id"] for known in agent.incidents()}
