"""`backflow init`: the file that it writes, and what it refuses."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.cli.init import Seen, render
from agent.config.loading import load, loads
from agent.config.shipped import shipped
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    BrokerRegistration,
    ClusterSettings,
    Commit,
    GroupState,
    LogOffsets,
    Member,
    TopicSettings,
)
from agent.model.observations.streams import StreamsApplication

AT = 1_795_000_000_000
COMMON: dict[str, Any] = {"at": AT, "cluster": "main"}
TABLE = {"bootstrap_servers": "kafka-1:9092", "zookeeper": "zk-1:2181/kafka"}
FACTS: list[Observation] = [
    ClusterSettings(**COMMON, offsets_retention_ms=7 * 86_400_000, version="3.9"),
    *(BrokerRegistration(**COMMON, broker=broker, session="0x1", epoch=1) for broker in (1, 2)),
    *(LogOffsets(**COMMON, topic="orders", partition=number, log_start=0, log_end=9) for number in range(3)),
    LogOffsets(**COMMON, topic="shop-counts-changelog", partition=0, log_start=0, log_end=9),
    TopicSettings(**COMMON, topic="orders", cleanup_policy="delete", retention_ms=3_600_000, retention_bytes=1_000),
    GroupState(**COMMON, group="billing", state="Stable", members=(Member(id="a"), Member(id="b"))),
    GroupState(**COMMON, group="gone", state="Dead"),
    Commit(**COMMON, group="billing", topic="orders", partition=0, offset=7),
    Commit(**COMMON, group='two\nlines"', topic="orders", partition=0, offset=7),
    StreamsApplication(**COMMON, application="shop", stores=(("counts", 1),), instances=2),
]


def seen(**changes: Any) -> Seen:
    return Seen(TABLE, FACTS, [], "readable", AT)._replace(**changes)


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines()[:60] if line.startswith("#")]


def test_the_file_is_valid_and_has_the_shipped_rules() -> None:
    settings = loads(render(seen()), "rules.toml", need_clusters=True)
    assert settings.rules == load(shipped(), need_clusters=False).rules
    cluster = settings.clusters["main"]
    assert (cluster.bootstrap_servers, cluster.zookeeper) == ("kafka-1:9092", "zk-1:2181/kafka")
    assert not cluster.groups.match("console-consumer-1")
    assert (settings.flink, settings.streams, settings.logs, settings.slack) == ({}, {}, {}, None)


def test_comments_say_what_was_seen() -> None:
    lines = comments(render(seen()))
    assert lines[1] == "# Seen: Kafka 3.9, 2 brokers (1, 2), 2 topics, 2 groups."
    for line in (
        "# - __consumer_offsets (Read): readable",
        "# 2 consumer groups:",
        "# - billing (Stable, 2 members): orders",
        '# - two\\nlines" (state unknown): orders',
        "# 1 topic, and internal ones: shop-counts-changelog",
        "# - orders: 3 partitions, kept for 1h, at most 1,000 bytes",
        "# Committed offsets of a group without members expire after 7d.",
        "# - shop (2 instances): changelogs shop-counts-changelog",
    ):
        assert line in lines
    assert any(line.startswith("# Kept for less than a day, ") and "orders" in line for line in lines)


def test_what_is_not_permitted_is_said_with_its_command() -> None:
    command = "kafka-acls --bootstrap-server kafka-1:9092 " + "--operation Describe " * 9 + "--topic '*'"
    facts = [fact for fact in FACTS if not isinstance(fact, ClusterSettings | TopicSettings)]
    text = render(seen(unreadable=[f"Kafka does not permit it. Allow it: {command}"], facts=facts))
    lines = comments(text)
    assert "# - brokers' settings (DescribeConfigs on the cluster): not readable" in lines
    assert command in " ".join(line.removeprefix("#").strip() for line in lines)
    assert all(len(line) <= 120 for line in text[: text.index("# [flink.jobs]")].splitlines())
    loads(text, "rules.toml", need_clusters=True)


def test_client_properties_are_written_with_sources_of_secrets() -> None:
    properties = {"sasl.mechanism": "PLAIN", "sasl.password": {"file": '/etc/a "b"'}}
    cluster = loads(render(seen(table={**TABLE, "kafka": properties})), "rules.toml", need_clusters=True).clusters[
        "main"
    ]
    assert cluster.kafka["sasl.mechanism"] == "PLAIN"
    assert [str(source.file) for _, source in cluster.secrets()] == ['/etc/a "b"']


def run(directory: Path, *options: str) -> tuple[int, str]:
    output = str(directory / "rules.toml")
    command = [sys.executable, "-m", "agent", "init", "-o", output, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("mine", encoding="utf-8")
    status, output = run(tmp_path, "--bootstrap-servers", "127.0.0.1:1")
    assert (status, "--force" in output) == (2, True)
    assert (tmp_path / "rules.toml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--bootstrap-servers", "kafka:port"], "[clusters.main] bootstrap_servers: expected servers such as"),
        (["--zookeeper", "zk:2181,kafka"], 'did you mean the chroot "zk:2181/kafka"?'),
        (["--kafka-property", "sasl.password=hunter2"], "a secret must not be written in this file"),
        (
            ["--kafka-property", "sasl.password=hunter2"],
            "must not be written in this file; use sasl.password=file:PATH, =env:NAME or =credential:NAME\n",
        ),
        (
            ["--kafka-property", "sasl.password = file:/nowhere "],
            'kafka."sasl.password": file /nowhere cannot be read: No such file or directory',
        ),
        (["--kafka-property", "sasl.mechanims=PLAIN"], "rejected by the Kafka client"),
        (["--kafka-property", "plain"], "expected KEY=VALUE"),
        (["--kafka-property", "sasl.password=file:/nowhere"], "/nowhere cannot be read: No such file or directory"),
    ],
)
def test_wrong_options_are_refused_with_their_reason(tmp_path: Path, options: list[str], reason: str) -> None:
    servers = [] if "--bootstrap-servers" in options else ["--bootstrap-servers", "127.0.0.1:1"]
    status, output = run(tmp_path, *servers, *options)
    assert reason in output
    assert "hunter2" not in output
    assert status == 2
    assert not (tmp_path / "rules.toml").exists()
