"""`backflow init` on a real cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.model.name_filter import NameFilter
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from testbed.groups import move_offsets
from testbed.kafka import Cluster
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import named

pytestmark = pytest.mark.integration


def test_the_file_fits_the_cluster_and_is_valid(kafka_3_9: Cluster, tmp_path: Path) -> None:
    topic, group = named("init"), named("init-group")
    kafka_3_9.create_topic(topic, 3, config={"retention.ms": "7200000"})
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 100)
    move_offsets(kafka_3_9.bootstrap_servers, group, topic, 50, [0])
    command = [sys.executable, "-m", "agent"]
    options = ["--bootstrap-servers", kafka_3_9.bootstrap_servers, "--zookeeper", str(kafka_3_9.zookeeper)]
    done = subprocess.run([*command, "init", *options], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rules.toml: written for Kafka 3.9, 3 brokers (2005, 2011, 2024), ")
    text = (tmp_path / "rules.toml").read_text(encoding="utf-8")
    assert f"# - {group} (Empty, 0 members): {topic}\n" in text
    assert f"# - {topic}: 3 partitions, kept for 2h\n" in text
    assert "# - __consumer_offsets (Read): readable\n" in text
    checked = subprocess.run([*command, "check-config"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert checked.returncode == 0, checked.stderr
    again = subprocess.run([*command, "init", *options], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert again.returncode == 2


def test_a_port_of_zookeeper_is_named_and_nothing_is_written(kafka_3_9: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent", "init", "--bootstrap-servers", str(kafka_3_9.zookeeper), "--wait", "15s"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 3
    assert f"{kafka_3_9.zookeeper}: this is a port of ZooKeeper" in done.stderr
    assert not (tmp_path / "rules.toml").exists()


def test_a_pattern_that_matches_nothing_is_logged_once(kafka_3_9: Cluster) -> None:
    topic = named("orders")
    kafka_3_9.create_topic(topic)
    settings = KafkaSourceSettings(
        bootstrap_servers=kafka_3_9.bootstrap_servers,
        topics=NameFilter(include=[f"{topic}s", topic]),
        groups=NameFilter(include=["*"]),
    )
    with capture_logs() as logs:
        source = KafkaSource("main", settings, lambda _: None)

        def has_topics() -> bool:
            source.poll()
            return topic in source.topics()

        wait_until(has_topics, "topics", 30)
        source.poll()
        source.close()
    warnings = [line for line in logs if line["event"] == "pattern_matches_nothing"]
    assert [(line["key"], line["pattern"]) for line in warnings] == [("topics", f"{topic}s")]
    assert topic in warnings[0]["nearest"]
