"""Shipped patterns on lines that real versions wrote (samples/README.md says how)."""

import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent.config.sources import Logs
from agent.model.observations.base import Observation
from agent.model.observations.logs import LogLine
from agent.model.times import millis
from agent.sources.logs.matcher import Matcher
from agent.sources.logs.patterns import SHIPPED, find_component
from agent.sources.logs.source import LogSource
from agent.sources.logs.timestamps import begins_entry, parse_timestamp

SAMPLES = Path(__file__).parent / "samples"
EXPECTED: dict[str, list[tuple[str, dict[str, str]]]] = {
    "consumer-0.11.0.0": [
        ("fetch_offset_out_of_range", {"offset": "999999", "topic": "my-topic-2", "partition": "2"}),
        ("fetch_offset_out_of_range", {"offset": "4596", "topic": "topic-124", "partition": "0"}),
    ],
    "consumer-3.9.1": [
        (
            "fetch_offset_out_of_range",
            {"group": "java-job", "offset": "999999", "topic": "my-topic-2", "partition": "2"},
        ),
        ("offset_reset", {"group": "java-job", "topic": "my-topic-2", "partition": "2", "to": "0"}),
        ("offset_reset", {"group": "java-job", "topic": "topic-124", "partition": "0", "to": "0"}),
        (
            "truncation_detected",
            {"group": "java-job", "topic": "topic-124", "partition": "0", "offset": "4892", "to": "2000"},
        ),
    ],
    "consumer-4.1.1": [
        (
            "fetch_offset_out_of_range",
            {"group": "java-job", "offset": "999999", "topic": "my-topic-2", "partition": "2"},
        ),
        ("offset_reset", {"group": "java-job", "topic": "topic-124", "partition": "0", "to": "0"}),
        ("offset_reset", {"group": "java-job", "topic": "my-topic-2", "partition": "2", "to": "0"}),
    ],
    "flink-1.20.1": [
        ("session_established", {"server": "localhost/127.0.0.1:55991", "session": "0x100018d163f0003"}),
        (
            "leadership_granted",
            {"address": "http://127.0.0.1:28092", "leader_id": "f46233a8-1d09-4db1-b98b-c8eeb2c27eec"},
        ),
        ("job_graphs_recovered", {"jobs": "0"}),
        ("checkpoints_found", {"checkpoints": "0", "job": "f58da914275b2e2de818d701ad27020a"}),
        ("no_checkpoint_found", {}),
        ("leadership_revoked", {"address": "http://127.0.0.1:28092"}),
        ("job_terminal", {"job": "f58da914275b2e2de818d701ad27020a", "state": "SUSPENDED"}),
        ("session_established", {"server": "localhost/127.0.0.1:55991", "session": "0x100018d163f0003"}),
        (
            "leadership_granted",
            {"address": "http://127.0.0.1:28092", "leader_id": "f04d38cb-7785-42ec-904e-c68e53a1d1dc"},
        ),
        ("job_recovered", {"job": "f58da914275b2e2de818d701ad27020a"}),
        ("job_graphs_recovered", {"jobs": "1"}),
        ("checkpoints_found", {"checkpoints": "1", "job": "f58da914275b2e2de818d701ad27020a"}),
        ("restoring_job", {"job": "f58da914275b2e2de818d701ad27020a", "what": "Checkpoint", "checkpoint": "3"}),
        ("job_recovered", {"job": "f58da914275b2e2de818d701ad27020a"}),
        ("restoring_job", {"job": "f58da914275b2e2de818d701ad27020a", "what": "Checkpoint", "checkpoint": "6"}),
        ("job_terminal", {"job": "f58da914275b2e2de818d701ad27020a", "state": "CANCELED"}),
    ],
    "flink-1.4.2": [
        ("session_established", {"server": "127.0.0.1/127.0.0.1:30945", "session": "0x1a1fcdc76010005"}),
        ("fetch_offset_out_of_range", {"offset": "6306", "topic": "topic-124", "partition": "8"}),
        ("session_established", {"server": "127.0.0.1/127.0.0.1:53847", "session": "0x100018c4e6f0004"}),
        (
            "leadership_granted",
            {
                "address": "akka.tcp://flink@127.0.0.1:26915/user/jobmanager",
                "leader_id": "d3c26c9e-5c1c-4659-ad77-5508dfca0eec",
            },
        ),
        ("job_graphs_to_recover", {"jobs": "1"}),
        ("job_recovered", {"job": "8a077a662d6f7e72e07e4056533107ca"}),
        ("checkpoints_found", {"checkpoints": "1"}),
        ("restoring_job", {"what": "Checkpoint", "checkpoint": "3", "job": "8a077a662d6f7e72e07e4056533107ca"}),
        (
            "leadership_granted",
            {
                "address": "akka.tcp://flink@127.0.0.1:22113/user/jobmanager",
                "leader_id": "f0902a64-37fb-468c-bdb5-1b1cd3f8e455",
            },
        ),
        ("leadership_revoked", {"address": "akka://flink/user/jobmanager#1241725884"}),
        ("job_graphs_to_recover", {"jobs": "1"}),
        ("job_recovered", {"job": "8a077a662d6f7e72e07e4056533107ca"}),
        ("checkpoints_found", {"checkpoints": "2"}),
        ("restoring_job", {"what": "Checkpoint", "checkpoint": "5", "job": "8a077a662d6f7e72e07e4056533107ca"}),
        ("job_graph_removed", {"job": "8a077a662d6f7e72e07e4056533107ca"}),
    ],
    "kafka-0.11.0.0": [
        ("session_established", {"server": "127.0.0.1/127.0.0.1:52237", "session": "0x1a1fcc446230001"}),
        ("zookeeper_state", {"state": "SyncConnected"}),
        ("broker_registered", {"broker": "2005"}),
        ("brokers_changed", {"added": "2005", "deleted": "", "live": "2005"}),
        ("brokers_changed", {"added": "2011", "deleted": "", "live": "2005,2011"}),
        ("isr_shrunk", {"topic": "topic-124", "partition": "0", "broker": "2005", "from": "2005,2011", "to": "2005"}),
        ("zookeeper_state", {"state": "Disconnected"}),
        ("session_expired", {"session": "0x1a1fcc446230001"}),
        ("session_established", {"server": "127.0.0.1/127.0.0.1:52237", "session": "0x1a1fcc446230005"}),
        ("broker_reregistering", {"broker": "2005"}),
        ("broker_registered", {"broker": "2005"}),
        ("log_truncated", {"topic": "topic-124", "partition": "0", "offset": "2029"}),
        ("session_expired", {"session": "0x1a1fcc446230002"}),
        ("broker_reregistering", {"broker": "2011"}),
        ("segment_recovered", {"segment": "0", "topic": "topic-124", "partition": "0"}),
        ("segment_recovered", {"segment": "0", "topic": "__consumer_offsets", "partition": "2"}),
    ],
    "kafka-3.9.1": [
        ("session_established", {"server": "/127.0.0.1:58265", "session": "0x1000174ba160001"}),
        ("broker_registered", {"broker": "2005", "epoch": "61"}),
        ("isr_shrunk", {"topic": "topic-124", "partition": "0", "broker": "2005", "from": "2005,2011", "to": "2005"}),
        ("session_expired", {"session": "0x1000174ba160001"}),
        ("zookeeper_client_expired", {"client": "Kafka server"}),
        ("session_established", {"server": "/127.0.0.1:58265", "session": "0x1000174ba160005"}),
        ("broker_registered", {"broker": "2005", "epoch": "102"}),
        ("log_truncated", {"topic": "topic-124", "partition": "0", "offset": "2000"}),
        ("brokers_changed", {"added": "2024", "deleted": "", "bounced": "", "live": "2005,2011,2024"}),
        ("brokers_changed", {"added": "2005", "deleted": "", "bounced": "", "live": "2005,2024"}),
        ("segment_recovered", {"topic": "topic-124", "partition": "0", "segment": "0"}),
        ("segment_recovered", {"topic": "__consumer_offsets", "partition": "2", "segment": "0"}),
    ],
    "kafka-4.1.1": [
        ("isr_shrunk", {"topic": "topic-124", "partition": "0", "broker": "2005", "from": "2005,2011", "to": "2005"}),
        ("log_truncated", {"topic": "topic-124", "partition": "0", "offset": "2057"}),
        ("segment_recovered", {"topic": "__cluster_metadata", "partition": "0", "segment": "0"}),
        ("segment_recovered", {"topic": "topic-124", "partition": "0", "segment": "0"}),
    ],
    "librdkafka-2.16.1": [
        (
            "offset_reset",
            {"topic": "my-topic-2", "partition": "2", "offset": "999999", "broker": "2005", "to": "BEGINNING"},
        ),
        (
            "offset_reset",
            {"topic": "topic-124", "partition": "0", "offset": "4586", "broker": "2011", "to": "BEGINNING"},
        ),
    ],
    "streams-2.1.0": [
        ("streams_state", {"client": "a-StreamThread-1", "from": "CREATED", "to": "RUNNING"}),
        ("streams_state", {"client": "a-StreamThread-1", "from": "RUNNING", "to": "PARTITIONS_REVOKED"}),
        ("offset_reset", {"group": "app210empty130149", "topic": "in-app210empty130149", "partition": "3", "to": "0"}),
        ("offset_reset", {"group": "app210empty130149", "topic": "in-app210empty130149", "partition": "0", "to": "0"}),
        (
            "store_without_checkpoint",
            {"task": "0_2", "store": "counts", "topic": "app210empty130149-counts-changelog", "partition": "2"},
        ),
        (
            "store_without_checkpoint",
            {"task": "0_3", "store": "counts", "topic": "app210empty130149-counts-changelog", "partition": "3"},
        ),
        ("streams_state", {"client": "a-StreamThread-1", "from": "PARTITIONS_ASSIGNED", "to": "RUNNING"}),
        (
            "store_without_checkpoint",
            {"task": "0_3", "store": "counts", "topic": "app210empty130367-counts-changelog", "partition": "3"},
        ),
    ],
    "streams-3.9.1": [
        ("streams_state", {"client": "a", "from": "CREATED", "to": "REBALANCING"}),
        ("streams_state", {"client": "a-StreamThread-1", "from": "CREATED", "to": "STARTING"}),
        ("offset_reset", {"group": "app391empty130210", "topic": "in-app391empty130210", "partition": "2", "to": "0"}),
        ("offset_reset", {"group": "app391empty130210", "topic": "in-app391empty130210", "partition": "3", "to": "0"}),
        (
            "store_without_checkpoint",
            {"store": "counts", "topic": "app391empty130210-counts-changelog", "partition": "2"},
        ),
        ("offset_reset", {"topic": "app391empty130210-counts-changelog", "partition": "2", "to": "0"}),
        (
            "store_restored",
            {"topic": "app391empty130210-counts-changelog", "partition": "2", "store": "counts", "records": "0"},
        ),
        (
            "store_without_checkpoint",
            {"store": "counts", "topic": "app391empty130210-counts-changelog", "partition": "0"},
        ),
        ("offset_reset", {"topic": "app391empty130210-counts-changelog", "partition": "0", "to": "0"}),
        (
            "store_restored",
            {"topic": "app391empty130210-counts-changelog", "partition": "0", "store": "counts", "records": "0"},
        ),
    ],
    "zookeeper-3.4.10": [
        ("session_expiring", {"session": "0x1a1fcc446230002", "timeout": "6000"}),
        ("session_expiring", {"session": "0x1a1fcc446230001", "timeout": "6000"}),
    ],
    "zookeeper-3.8.4": [
        ("session_expiring", {"session": "0x1000174ba160003", "timeout": "6000"}),
        ("session_expiring", {"session": "0x1000174ba160001", "timeout": "6000"}),
    ],
}
"""The matches of each sample in the order of its lines; all other lines match nothing."""
NO_SAMPLE = {
    ("isr_not_updated", "0.8-0.11"): (
        "[2026-11-21 06:21:44,208] INFO Partition [topic-124,0] on broker 2005: Cached zkVersion [1] not equal to that "
        "in zookeeper, skip updating ISR (kafka.cluster.Partition)"
    ),
    ("isr_not_updated", "1.0-2.7"): (
        "[2026-11-21 06:21:44,208] INFO [Partition topic-124-0 broker=2005] Cached zkVersion 1 not equal to that in "
        "zookeeper, skip updating ISR (kafka.cluster.Partition)"
    ),
    ("offset_not_appended", "0.8+"): (
        "org.apache.kafka.common.errors.InvalidOffsetException: Attempt to append an offset (7852) to position 85 no "
        "larger than the last offset appended (7999) to /var/lib/topic-124-0/00000000000000000000.index."
    ),
    ("stores_restored", "2.6+"): (
        "[2026-11-21 06:45:55,055] INFO stream-thread [a-StreamThread-1] Restoration took 42 ms for all active tasks"
    ),
}
"""Lines as the projects' sources word them, if no test run wrote them."""


def _path(name: str) -> Path:
    return SAMPLES / f"{name}.log"


@pytest.mark.parametrize("name", EXPECTED)
def test_lines_of_a_sample_match_as_expected(name: str) -> None:
    lines, _ = Matcher(SHIPPED).find_lines(_path(name).read_bytes(), "utf-8", "")
    read = [
        (line.pattern.name, {key: value for key, value in line.match.groupdict().items() if value is not None})
        for line in lines
    ]
    assert read == EXPECTED[name]


def test_every_sample_is_expected() -> None:
    assert {path.stem for path in SAMPLES.glob("*.log")} == set(EXPECTED)


def test_every_pattern_matches_a_sample_or_source_text() -> None:
    text = "\n".join(_path(name).read_text(encoding="utf-8") for name in EXPECTED)
    unmatched = [
        pattern
        for pattern in SHIPPED
        if not any(pattern.regex.search(line) for line in text.splitlines())
        and not pattern.regex.search(NO_SAMPLE.get((pattern.name, pattern.versions), ""))
    ]
    assert unmatched == []


@pytest.mark.parametrize("name", EXPECTED)
def test_every_matched_line_has_a_timestamp(name: str) -> None:
    sample = _path(name).read_bytes()
    for line in Matcher(SHIPPED).find_lines(sample, "utf-8", "")[0]:
        assert begins_entry(line.text)
        at = parse_timestamp(line.text, ZoneInfo("UTC"), millis("2027-01-01T00:00:00Z"))
        assert at is not None
        assert millis("2026-11-21T00:00:00Z") < at < millis("2026-11-22T00:00:00Z")


def test_lines_are_about_the_kafka_or_the_flink_cluster(tmp_path: Path) -> None:
    """A TaskManager's log names Kafka partitions, a JobManager's log names Flink jobs."""
    emitted: list[Observation] = []
    log = tmp_path / "flink.log"
    log.touch()
    settings = Logs(paths=(str(log),), cluster="main", flink="jobs", host="flink-1")
    source = LogSource("task-managers", settings, (), emitted.extend)
    source.poll()
    log.write_bytes(_path("flink-1.4.2").read_bytes())
    source.poll()
    source.close()
    lines = [fact for fact in emitted if isinstance(fact, LogLine)]
    assert [(line.pattern, line.values) for line in lines] == EXPECTED["flink-1.4.2"]
    of_kafka = {line.pattern for line in lines if line.cluster == "main"}
    assert of_kafka == {"session_established", "fetch_offset_out_of_range"}
    assert {line.cluster for line in lines if line.pattern not in of_kafka} == {"jobs"}
    (reset,) = (line for line in lines if line.pattern == "fetch_offset_out_of_range")
    assert (reset.topic, reset.partition, reset.component, reset.host) == ("topic-124", 8, "consumer", "flink-1")
    assert re.search(r"Fetch offset \d+ is out of range", reset.text)
    assert {line.job for line in lines if line.pattern == "job_recovered"} == {"8a077a662d6f7e72e07e4056533107ca"}


@pytest.mark.parametrize(
    ("line", "component"),
    [
        ("[2026-11-21 06:21:26,171] INFO x (kafka.server.KafkaServer)", "kafka"),
        ("[2026-11-21 06:21:26,171] INFO x (org.apache.zookeeper.server.ZooKeeperServer)", "zookeeper"),
        ("[2026-11-21 06:21:26,171] INFO x (org.apache.kafka.clients.consumer.internals.Fetcher)", "consumer"),
        ("[2026-11-21 06:21:26,171] INFO stream-thread [a-1] x (org.apache.kafka.streams.X)", "streams"),
        ("2026-11-21 06:21:26,171 INFO  org.apache.flink.runtime.X  - x", "flink"),
        ("%4|1691234567.123|OFFSET|rdkafka#consumer-1| [thrd:main]: x", "librdkafka"),
        ("something else", ""),
    ],
)
def test_component_is_detected_from_the_line(line: str, component: str) -> None:
    assert find_component(line) == component
