"""Groups that commit what a test wants, and waiting until it has been observed."""

from collections.abc import Sequence
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from agent.model.group_partition import partition_of
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, OffsetsPosition
from agent.sources.kafka.source import KafkaSource
from testbed.kafka import Cluster
from testbed.servers import DEFAULTS
from testbed.waiting import wait_until
from tests.integration.seen import Seen

_PARTITIONS = int(DEFAULTS["offsets.topic.num.partitions"])


class Groups:
    """Groups without members that commit offsets of a topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._consumers: dict[str, Consumer] = {}

    def commit(self, group: str, *offsets: int) -> None:
        """Commit these offsets of partition 0, one after the other; wait for a coordinator that has just begun."""
        consumer = self.consumer(group)
        for offset in offsets:
            places = [TopicPartition(self._topic, 0, offset)]
            wait_until(partial(_is_committed, consumer, places), f"{group} to commit {offset}")

    def consumer(self, group: str) -> Consumer:
        """Return the group's consumer, which has joined nothing."""
        if group not in self._consumers:
            properties = {"bootstrap.servers": self._cluster.bootstrap_servers, "group.id": group, "log_level": 0}
            self._consumers[group] = Consumer(properties)
        return self._consumers[group]


def _is_committed(consumer: Consumer, places: list[TopicPartition]) -> bool:
    """Commit; return False if the coordinator is loading what groups have committed so far."""
    try:
        committed = consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            return False
        raise
    assert [partition.error for partition in committed or ()] == [None]
    return True


def offsets(seen: Seen, group: str) -> list[int | None]:
    """Return the offsets observed of a group, in order, without those that confirm the one before."""
    observed: list[int | None] = []
    for commit in seen.all(Commit):
        if commit.group == group and observed[-1:] != [commit.offset]:
            observed.append(commit.offset)
    return observed


def wait_for_offsets(source: KafkaSource, seen: Seen, group: str, wanted: Sequence[int | None]) -> None:
    """Poll until these offsets have been observed last."""

    def is_observed() -> bool:
        source.poll()
        return offsets(seen, group)[-len(wanted) :] == list(wanted)

    wait_until(is_observed, f"{group} to be seen at {wanted}", 60)


def wait_until_followed(source: KafkaSource, *groups: str) -> None:
    """Poll until the commits of these groups are read from the log."""

    def is_followed() -> bool:
        source.poll()
        return all(map(source.reads_log_of, groups))

    wait_until(is_followed, f"{groups} to be followed", 60)


def wait_for_positions(source: KafkaSource, seen: Seen, cluster: Cluster, *groups: str) -> None:
    """Poll until the positions cover all that these groups have committed so far."""
    ends = {number: log_end(cluster, number) for number in map(home, groups)}

    def are_covered() -> bool:
        source.poll()
        positions = {fact.partition: fact.next_offset for fact in seen.all(OffsetsPosition)}
        return all(positions.get(number, -1) >= end for number, end in ends.items())

    wait_until(are_covered, f"positions up to {ends}", 60)


def log_end(cluster: Cluster, partition: int) -> int:
    """Return where a partition of the offsets topic ends, once its leader responds."""
    (end,) = wait_until(
        lambda: [end for end in [cluster.log_end(OFFSETS_TOPIC, partition)] if end is not None], "a log end"
    )
    return end


def home(group: str) -> int:
    """Return the partition of a group's commits."""
    return partition_of(group, _PARTITIONS)
