"""MirrorMaker 2 as a process: copies topics of one cluster to another, and translates the offsets of groups."""

from collections.abc import Mapping
from pathlib import Path

from testbed.artifacts import Distribution
from testbed.processes import Process
from testbed.servers import java_command

MIRROR = Distribution(
    "connect-mirror",
    "3.9.1",
    (
        "org.apache.kafka:connect-mirror:3.9.1",
        "ch.qos.reload4j:reload4j:1.2.25",
        "org.slf4j:slf4j-reload4j:1.7.36",
    ),
)
_HEAP_MB = 384

# Everything at a tenth of its default interval or less, on single brokers.
_SETTINGS: Mapping[str, object] = {
    "replication.factor": 1,
    "checkpoints.topic.replication.factor": 1,
    "heartbeats.topic.replication.factor": 1,
    "offset-syncs.topic.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "config.storage.replication.factor": 1,
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.interval.seconds": 2,
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": 2,
    "refresh.topics.interval.seconds": 5,
    "refresh.groups.interval.seconds": 2,
    "offset.lag.max": 10,
    "offset.flush.interval.ms": 2_000,
    "consumer.auto.offset.reset": "earliest",
    "producer.linger.ms": 5,
}


class MirrorMaker(Process):
    """A node of MirrorMaker 2 that mirrors `source` to `target`; entering the context starts it."""

    def __init__(self, source: tuple[str, str], target: tuple[str, str], topics: str, workdir: Path) -> None:
        """Write its properties. source, target: alias and bootstrap servers. topics: a pattern of Java."""
        workdir.mkdir(parents=True, exist_ok=True)
        flow = f"{source[0]}->{target[0]}"
        lines = {
            "clusters": f"{source[0]}, {target[0]}",
            **{f"{alias}.bootstrap.servers": servers for alias, servers in (source, target)},
            f"{flow}.enabled": "true",
            f"{flow}.topics": topics,
            f"{flow}.groups": ".*",
            f"{target[0]}->{source[0]}.enabled": "false",
            **_SETTINGS,
        }
        properties = workdir / "mirror.properties"
        properties.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()), encoding="utf-8")
        main = ["org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
        super().__init__("MirrorMaker", java_command(MIRROR, _HEAP_MB, workdir, main), workdir / "mirror.log")
