"""What the znodes of Kafka say, as observations: brokers, controller, topics and partitions. No connection lives here.

Paths and contents: kafka.zk.ZkData (3.9); before 1.0 kafka.utils.ZkUtils, which agrees as far as this goes.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kazoo.protocol.states import ZnodeStat

from agent.model.observations import BrokerRegistration, Controller, Observation, PartitionState, Subject

IDS, TOPICS, CONTROLLER, CONTROLLER_EPOCH = "/brokers/ids", "/brokers/topics", "/controller", "/controller_epoch"
STATE = re.compile(rf"{TOPICS}/([^/]+)/partitions/(\d+)/state")

Node = tuple[bytes, ZnodeStat]


class UndecodableError(ValueError):
    """A znode that is not what Kafka writes; the message names its path."""


class Topic(NamedTuple):
    """A topic's znode: its id, when it was made (ms) and the replicas of its partitions."""

    id: str
    made_at: int
    replicas: dict[int, tuple[int, ...]]


def state_path(topic: str, partition: int) -> str:
    """Where a partition's leader and ISR stand."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic(path: str, node: Node) -> Topic:
    """What a topic's znode says; before 2.8 it has no id but the czxid of its znode. Raises UndecodableError."""
    content, stat = node
    fields = _fields(path, content)
    try:
        replicas = {int(number): tuple(map(int, brokers)) for number, brokers in fields["partitions"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UndecodableError(_sentence(path, content)) from error
    return Topic(str(fields.get("topic_id") or f"czxid:{stat.czxid}"), stat.ctime, replicas)


class ZooKeeperView:
    """Makes observations of znodes and remembers the last of each subject.

    What a watch told is exact: ZooKeeper dates changes itself. Where changes were missed (a gap in the connection, a
    znode's version that leapt) they happened at an unknown moment since the subject was last in sight.
    """

    def __init__(self, cluster: str, known: Iterable[Observation]) -> None:
        """known: the last observation of each subject before this run."""
        self._cluster = cluster
        self.facts: dict[Subject, Observation] = {
            one.subject: one for one in known if isinstance(one, BrokerRegistration | Controller | PartitionState)
        }
        self._versions: dict[Subject, tuple[int, int]] = {}

    def brokers(self) -> list[int]:
        """The brokers that were registered when last seen."""
        return [one.broker for one in self.facts.values() if isinstance(one, BrokerRegistration) and not one.gone]

    def partitions(self, topic_name: str | None = None) -> list[PartitionState]:
        """The partitions that existed when last seen, of one topic or all."""
        return [
            one
            for one in self.facts.values()
            if isinstance(one, PartitionState) and one.replicas and topic_name in (None, one.topic)
        ]

    def registered(self, broker: int, stat: ZnodeStat, now: int) -> Observation:
        """The broker's registration: dated by ZooKeeper, so exact even where it was missed."""
        session = f"0x{stat.ephemeralOwner:x}"
        return self._keep(
            BrokerRegistration(
                at=self._after_last(("broker_registration", self._cluster, broker), stat.ctime),
                seen_at=now,
                since=stat.ctime,
                cluster=self._cluster,
                broker=broker,
                session=session,
                epoch=stat.czxid,
            )
        )

    def unregistered(self, broker: int, now: int, since: int | None) -> Observation:
        """The broker is gone. since: `now` where a watch told it at once, None where that is not known."""
        return self._keep(
            BrokerRegistration(
                at=now,
                since=since,
                cluster=self._cluster,
                broker=broker,
                session=None,
                epoch=None,
            )
        )

    def controller(self, node: Node | None, epoch: Node | None, now: int) -> Observation:
        """Who is the controller; nobody where the znode is missing. Raises UndecodableError."""
        if node is None:
            return self._keep(Controller(at=now, cluster=self._cluster, broker=None))
        fields = _fields(CONTROLLER, node[0])
        try:
            broker, number = int(fields["brokerid"]), int(epoch[0]) if epoch is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise UndecodableError(_sentence(CONTROLLER, node[0])) from error
        at = self._after_last(("controller", self._cluster), node[1].ctime)
        return self._keep(Controller(at=at, seen_at=now, since=at, cluster=self._cluster, broker=broker, epoch=number))

    def partition(
        self, name: str, partition: int, of: Topic, node: Node, *, now: int, since: int | None
    ) -> Observation:
        """A partition's state. since: the last sighting, where changes may have been missed. Raises
        UndecodableError.
        """
        content, stat = node
        path = state_path(name, partition)
        fields = _fields(path, content)
        subject = ("partition_state", self._cluster, name, partition)
        try:
            leader, epoch, isr = int(fields["leader"]), int(fields["leader_epoch"]), tuple(map(int, fields["isr"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UndecodableError(_sentence(path, content)) from error
        last = self._versions.get(subject)
        self._versions[subject] = (stat.czxid, stat.version)
        at = self._after_last(subject, max(stat.mtime, of.made_at))
        followed = last is not None and (stat.czxid, stat.version) in (last, (last[0], last[1] + 1))
        made_now = last is None and subject not in self.facts
        return self._keep(
            PartitionState(
                at=at,
                seen_at=now,
                since=at if followed or made_now else (since or None),
                cluster=self._cluster,
                topic=name,
                partition=partition,
                leader=leader if leader >= 0 else None,
                leader_epoch=epoch,
                replicas=of.replicas.get(partition, ()),
                isr=isr,
                topic_id=of.id,
            )
        )

    def made_anew(self, name: str, partition: int, stat: ZnodeStat) -> bool:
        """Whether the state's znode is another than the one last read: so is its topic's, perhaps."""
        last = self._versions.get(("partition_state", self._cluster, name, partition))
        return last is None or last[0] != stat.czxid

    def deleted(self, state: PartitionState, now: int) -> Observation:
        """The partition no longer exists."""
        self._versions.pop(state.subject, None)
        return self._keep(
            PartitionState(
                at=max(now, state.at),
                cluster=self._cluster,
                topic=state.topic,
                partition=state.partition,
                leader=None,
                replicas=(),
                isr=(),
                topic_id=state.topic_id,
            )
        )

    def _after_last(self, subject: Subject, at: int) -> int:
        """The time, but never before the subject's last observation: ZooKeeper's clock is not ours."""
        last = self.facts.get(subject)
        return at if last is None else max(at, last.at)

    def _keep(self, observation: Observation) -> Observation:
        self.facts[observation.subject] = observation
        return observation


def _fields(path: str, content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise UndecodableError(_sentence(path, content)) from error
    if not isinstance(fields, dict):
        raise UndecodableError(_sentence(path, content))
    return fields


def _sentence(path: str, content: bytes) -> str:
    return f"the znode {path} is not what Kafka writes there: {content[:120]!r}"
