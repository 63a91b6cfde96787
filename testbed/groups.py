"""Changes to consumer groups as an operator makes them, each in a new process: `python -m testbed.groups`.

librdkafka's AdminClient may abort its process when a coordinator returns (librdkafka issue 5397, seen with 2.16).
Therefore requests to a coordinator stay out of the tests' process.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
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
    move_all_offsets(bootstrap_servers, [group], topic, offset, partitions)


def move_all_offsets(
    bootstrap_servers: str, groups: Sequence[str], topic: str, offset: int, partitions: Iterable[int]
) -> None:
    """Set the committed offsets of groups, new ones too. Raises CalledProcessError."""
    _run("move", bootstrap_servers, groups, topic, offset, list(partitions))


def reset_share_group(bootstrap_servers: str, group: str, topic: str, workdir: Path) -> None:
    """Set the start offsets of a share group without members to the log start, as kafka-share-groups does.

    workdir: for the tool's log configuration. Raises CalledProcessError.
    """
    arguments = ["org.apache.kafka.tools.consumer.group.ShareGroupCommand", "--bootstrap-server", bootstrap_servers]
    arguments += ["--reset-offsets", "--to-earliest", "--execute", "--group", group, "--topic", topic]
    subprocess.run(java_command(_TOOLS, 128, workdir, arguments), check=True, timeout=120)


def delete_group(bootstrap_servers: str, group: str) -> None:
    """Delete a group without members. Raises CalledProcessError."""
    delete_groups(bootstrap_servers, [group])


def delete_groups(bootstrap_servers: str, groups: Sequence[str]) -> None:
    """Delete groups without members; those that do not exist count as deleted. Raises CalledProcessError."""
    _run("delete", bootstrap_servers, groups)


def _run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "testbed.groups", json.dumps(arguments)], check=True, timeout=120)


def _move(bootstrap_servers: str, groups: Sequence[str], topic: str, offset: int, partitions: Sequence[int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    places = [TopicPartition(topic, partition, offset) for partition in partitions]
    waiting = set(groups)

    def moved() -> bool:
        # A coordinator that is moving responds with an error per partition, or not at all.
        requests = [ConsumerGroupTopicPartitions(group, places) for group in sorted(waiting)]
        futures = {request.group_id: admin.alter_consumer_group_offsets([request]) for request in requests}
        for group, future in futures.items():
            try:
                done = future[group].result(timeout=30)
            except KafkaException:
                continue
            if all(place.error is None for place in done.topic_partitions):
                waiting.discard(group)
        return not waiting

    wait_until(moved, "the offsets to be moved", 60, every=1)


def _delete(bootstrap_servers: str, groups: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    waiting = set(groups)

    def deleted() -> bool:
        for group, future in admin.delete_consumer_groups(sorted(waiting)).items():
            try:
                future.result(timeout=30)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.NON_EMPTY_GROUP:
                    raise
                if code != KafkaError.GROUP_ID_NOT_FOUND:
                    continue  # its coordinator is moving
            waiting.discard(group)
        return not waiting

    wait_until(deleted, "the groups to be deleted", 60, every=1)


def _main(request: str) -> None:
    verb, *arguments = json.loads(request)
    change = _move if verb == "move" else _delete
    change(*arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
