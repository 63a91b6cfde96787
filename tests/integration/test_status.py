"""`backflow status`, `backflow groups`, the status page and metrics of an agent on a real cluster."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.agent import Agent
from testbed.consumers import SubscribedConsumer
from testbed.kafka import Cluster
from testbed.processes import free_port
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, move_offsets, named

pytestmark = pytest.mark.integration


def run(agent: Agent, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agent", *arguments, "--config", str(agent.config)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        body: bytes = response.read()
        return body.decode()


def samples(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(fetch(port, "/metrics"))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def progress_of(port: int, group: str) -> dict[str, Any]:
    found = json.loads(fetch(port, f"/groups.json?name={quote(group)}"))
    return dict(found[0]) if found else {}


def find_incident(port: int, rule: str) -> str | None:
    """Return the id of the incident whose worst finding is of the rule; None also if nothing listens."""
    try:
        incidents = json.loads(fetch(port, "/status.json"))["incidents"]
    except URLError:
        return None
    return next((str(incident["id"]) for incident in incidents if incident["rule"] == rule), None)


def test_the_running_agent_shows_what_it_sees(kafka_3_9: Cluster, tmp_path: Path, slack: Slack) -> None:
    topic, members, group = named("orders"), named("payments"), f"<b>{named('batch')}</b>&amp;"
    kafka_3_9.create_topic(topic, 2)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0), (topic, 1)], 300)
    port = free_port()
    table = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    with (
        SubscribedConsumer(kafka_3_9.bootstrap_servers, members, [topic]) as consumer,
        Agent(tmp_path / "agent", {"main": addresses(kafka_3_9)}, slack, table) as agent,
    ):
        agent.wait_until_watching()
        move_offsets(kafka_3_9, group, topic, 250, 0, 1)
        for number in range(2):
            consumer.wait_until_at(topic, number, 300)
        wait_until(lambda: progress_of(port, group).get("lag") == 100, "the lag of both partitions")
        wait_until(lambda: progress_of(port, members).get("members") == 1, "the member")
        assert all("@127.0.0.1" in part["member"] for part in progress_of(port, members)["partitions"])

        move_offsets(kafka_3_9, group, topic, 0, 0)
        incident_id = wait_until(lambda: find_incident(port, "rewind"), "the rewind")
        wait_until(slack.messages, "the message")
        status, groups, group_rows = run(agent, "status"), run(agent, "groups", "--lag"), run(agent, "groups", group)
        assert (status.returncode, groups.returncode, group_rows.returncode) == (0, 0, 0), status.stdout
        assert "main/kafka      ok" in status.stdout
        assert incident_id in status.stdout
        assert [group, "main"] in [line.split()[:2] for line in groups.stdout.splitlines()]
        assert group_rows.stdout.splitlines()[-1].split() == [topic, "1", "250", "300", "50"]

        page = fetch(port, "/")
        assert f"/incidents/{incident_id}" in page
        assert group not in page
        assert "&lt;b&gt;batch" in page
        incident_page = fetch(port, f"/incidents/{incident_id}")
        assert "slack: delivered" in incident_page
        assert "&lt;b&gt;batch" in incident_page
        assert fetch(port, "/ready") == fetch(port, "/health") == "ok\n"
        metrics = samples(port)
        assert metrics["backflow_source_last_read_age_seconds", (("cluster", "main"), ("source", "kafka"))] < 30
        assert (
            metrics["backflow_incidents", (("rule", "rewind"), ("status", "open"))]
            + metrics["backflow_incidents", (("rule", "rewind"), ("status", "recovered"))]
            >= 1
        )
        assert metrics["backflow_deliveries_total", (("receiver", "slack"),)] >= 1

        os.kill(agent.pid or 0, signal.SIGHUP)
        agent.wait_for_line(r"configuration_reloading[\s\S]*daemon_ready")
        wait_until(lambda: find_incident(port, "rewind") == incident_id, "the incident after the reload")
        agent.stop()
        after = run(agent, "status")
        assert after.returncode == 3
        assert "no agent runs" in after.stderr
