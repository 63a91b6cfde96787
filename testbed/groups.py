"""Changes to a consumer group as an operator makes them, each in a new process: `python -m testbed.groups`.

librdkafka's AdminClient may abort its process when a coordinator returns (librdkafka issue 5397, seen with 2.16).
Therefore requests to a coordinator stay out of the tests' process.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from testbed.artifacts import Distribution
from testbed.servers import java_command
from testbed.waiting import wait_until

_TOOLS = Distribution(
    "kafka-tools",
    "4.3.1",
    (
        "org.apache.kafka:kafka-tools:4.3.1",
        "ch.qos.reload4j:reload4j:1.2.25",
        "org.slf4j:slf4j-reload4j:1.7.36",
    ),
)
"""kafka-share-groups --reset-offsets is not yet in 4.1."""


def move_offsets(bootstrap_servers: str, group: str, topic: str, offset: int, partitions: Iterable[int]) -> None:
    """Set committed offsets, as kafka-consumer-groups --reset-offsets does. Raises CalledProcessError."""
    _run(bootstrap_servers, "move", group, topic, str(offset), *map(str, partitions))


def reset_share_group(bootstrap_servers: str, group: str, topic: str, workdir: Path) -> None:
    """Set the start offsets of a share group without members to the log start, as kafka-share-groups does.

    workdir: for the tool's log configuration. Raises CalledProcessError.
    """
    arguments = ["org.apache.kafka.tools.consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap_servers]
    arguments += ["--reset-offsets", "--to-earliest", "--execute", "--group", group, "--topic", topic]
    subprocess.run(java_command(_TOOLS, 128, workdir, arguments), check=True, timeout=120)


def delete_group(bootstrap_servers: str, group: str) -> None:
    """Delete a group. Raises CalledProcessError."""
    _run(bootstrap_servers, "delete", group)


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "testbed.groups", *arguments], check=True, timeout=60)


def _main(bootstrap_servers: str, verb: str, group: str, *arguments: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    if verb == "delete":
        admin.delete_consumer_groups([group])[group].result(timeout=30)
        return
    topic, offset, *partitions = arguments
    places = [TopicPartition(topic, int(partition), int(offset)) for partition in partitions]

    def moved() -> bool:
        # A coordinator that is moving responds with an error per partition, or not at all.
        request = ConsumerGroupTopicPartitions(group, places)
        try:
            done = admin.alter_consumer_group_offsets([request])[group].result(timeout=30)
        except KafkaException:
            return False
        return all(place.error is None for place in done.topic_partitions)

    wait_until(moved, f"the offsets of {group} to be moved", 30, every=1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
