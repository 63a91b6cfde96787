"""A cluster's own state, read only: which brokers are registered, which ones lead.

With ZooKeeper it is read from znodes, under KRaft from the controller's log and the metadata that clients get.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from testbed.waiting import wait_until


class Registration(NamedTuple):
    """A broker's registration: its ZooKeeper session as 0x hex (None under KRaft), and its broker epoch.

    The broker epoch is the czxid of the broker's znode; under KRaft the controller assigns it.
    """

    session: str | None
    czxid: int


class PartitionView(NamedTuple):
    """A partition's leader (-1: none), leader epoch (None if unknown), replicas and ISR."""

    leader: int
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class View(Protocol):
    """The state that tests and faults wait for."""

    def registration(self, broker: int) -> Registration | None:
        """Return the broker's registration; None when it has none."""

    def partition(self, topic: str, number: int) -> PartitionView | None:
        """Return the partition; None when it does not exist."""

    def partitions(self, topic: str) -> Mapping[int, PartitionView]:
        """Return the topic's partitions; empty when the topic does not exist."""

    def topics(self) -> list[str]:
        """Return the names of all topics, including those that are being deleted."""


class ZooKeeperView:
    """The view of the znodes that the brokers and the controller write."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def registration(self, broker: int) -> Registration | None:
        stat = self._client.retry(self._client.exists, f"/brokers/ids/{broker}")
        return None if stat is None else Registration(hex(stat.ephemeralOwner), stat.czxid)

    def partition(self, topic: str, number: int) -> PartitionView | None:
        replicas = self._replicas(topic).get(str(number))
        state = self._read(f"/brokers/topics/{topic}/partitions/{number}/state")
        if replicas is None or state is None:
            return None
        return PartitionView(state["leader"], state["leader_epoch"], tuple(replicas), tuple(state["isr"]))

    def partitions(self, topic: str) -> Mapping[int, PartitionView]:
        found = {int(number): self.partition(topic, int(number)) for number in self._replicas(topic)}
        return {number: state for number, state in found.items() if state is not None}

    def topics(self) -> list[str]:
        children = partial(self._client.retry, self._client.get_children)
        return sorted({*children("/brokers/topics"), *children("/admin/delete_topics")})

    def is_led_by_another(self, broker: int) -> bool:
        """Return whether another broker is the controller; if this one is, let all brokers elect a new one."""
        elected = self._read("/controller")
        if elected is not None and elected["brokerid"] == broker:
            with suppress(NoNodeError):
                self._client.retry(self._client.delete, "/controller")
            return False
        return elected is not None

    def _replicas(self, topic: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = (self._read(f"/brokers/topics/{topic}") or {"partitions": {}})["partitions"]
        return found

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._client.retry(self._client.get, path)[0])
        except NoNodeError:
            return None
        return found


class KRaftView:
    """The view of the controller's log, for registrations (metadata may be stale), and of the clients' metadata."""

    def __init__(self, admin: AdminClient, controller_log: Path) -> None:
        self._admin = admin
        self._log = controller_log

    def registration(self, broker: int) -> Registration | None:
        # ClusterControlManager, 4.1.1: fenced is 1 when it gets fenced, -1 when it is no longer, else 0.
        change = rf"BrokerRegistrationChangeRecord\(brokerId={broker}, brokerEpoch=(\d+), fenced=(-?1),"
        changes = re.findall(change, self._log.read_text())
        return Registration(None, int(changes[-1][0])) if changes and changes[-1][1] == "-1" else None

    def partition(self, topic: str, number: int) -> PartitionView | None:
        return self.partitions(topic).get(number)

    def partitions(self, topic: str) -> Mapping[int, PartitionView]:
        return {
            number: PartitionView(state.leader, None, tuple(state.replicas), tuple(state.isrs))
            for number, state in self._metadata(topic).topics[topic].partitions.items()
        }

    def topics(self) -> list[str]:
        return list(self._metadata().topics)

    def _metadata(self, topic: str | None = None) -> ClusterMetadata:
        return wait_until(lambda: metadata(self._admin, topic), "metadata from any broker")


def metadata(admin: AdminClient, topic: str | None = None) -> ClusterMetadata | None:
    """Return a topic's metadata as clients get it; None if no broker responds within 3 s, as while one is frozen.

    Without a topic, that of all topics, but only from Kafka 3.9 on: librdkafka 2.16 cannot parse an older broker's
    response about many small topics ("tmpabuf memory shortage").
    """
    try:
        return admin.list_topics(topic, timeout=3) if topic else admin.list_topics(timeout=3)
    except KafkaException:
        return None


def live_brokers(admin: AdminClient) -> set[int]:
    """Return the brokers that clients know of; empty if none responds within 3 s.

    Requests the metadata of a topic that does not exist: a request for __consumer_offsets would create it (KafkaApis,
    0.11). DescribeCluster waits for the controller, and may abort the process when it returns (librdkafka issue 5397).
    """
    found = metadata(admin, "no-such-topic")
    return set() if found is None else set(found.brokers)
