"""Decoding of Kafka's znodes into observations: brokers, controller, topics and partitions. Makes no calls.

Paths and contents: kafka.zk.ZkData (3.9); before 1.0 kafka.utils.ZkUtils, which has the same fields.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from kazoo.protocol.states import ZnodeStat
from msgspec import structs

from agent.model.observations.base import Observation, Subject, is_same_fact
from agent.model.observations.kafka import BrokerRegistration, Controller, PartitionState
from agent.sources.base import GONE

BROKER_IDS, TOPICS = "/brokers/ids", "/brokers/topics"
CONTROLLER, CONTROLLER_EPOCH = "/controller", "/controller_epoch"
REASSIGNMENTS = "/admin/reassign_partitions"
PARTITION_STATE = re.compile(rf"{TOPICS}/([^/]+)/partitions/(\d+)/state")

Node = tuple[bytes, ZnodeStat]

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""What decoding raises for content that Kafka does not write; an infinite number overflows."""

_MAX_NUMBER = 2**31 - 1
"""The largest id or epoch: Kafka's are 32 bits wide."""


class UndecodableError(ValueError):
    """A znode with unexpected content; the message names its path."""


class Assignment(NamedTuple):
    """The replicas of a partition; adding, removing: by a reassignment in progress (KIP-455)."""

    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class Topic(NamedTuple):
    """A topic's znode: id, times of creation and of the last change (ms), and assignments by partition."""

    id: str
    created_at: int
    changed_at: int
    assignments: dict[int, Assignment]


def session_id(stat: ZnodeStat) -> str:
    """Return the session that owns an ephemeral znode as ZooKeeper logs it: kazoo reads it as a signed number.

    The highest byte is the id of the server that began the session, and may be above 127.
    """
    return hex(stat.ephemeralOwner % (1 << 64))


def broker_of(path: str) -> int:
    """Return the id of the broker that the path registers. Raises UndecodableError."""
    name = path.rpartition("/")[2]
    try:
        return _number(name) if name.isascii() and name.isdigit() else _number("")
    except ValueError as error:
        msg = f"Znode {path} registers no broker: its name is not a number"
        raise UndecodableError(msg) from error


def partition_state_path(topic: str, partition: int) -> str:
    """Return the path of the znode with a partition's leader and ISR."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def decode_topic(path: str, node: Node) -> Topic:
    """Decode a topic's znode; before 2.8 its id is the znode's czxid. Raises UndecodableError."""
    content, stat = node
    fields = _decode_object(path, content)
    try:
        replicas, adding, removing = (
            {_number(number): tuple(map(_number, brokers)) for number, brokers in assigned.items()}
            for assigned in (
                fields["partitions"],
                fields.get("adding_replicas") or {},
                fields.get("removing_replicas") or {},
            )
        )
        topic_id = _text(fields.get("topic_id") or f"czxid:{stat.czxid}")
    except _MALFORMED as error:
        raise _undecodable(path, content) from error
    assignments = {
        number: Assignment(brokers, adding.get(number, ()), removing.get(number, ()))
        for number, brokers in replicas.items()
    }
    return Topic(topic_id, stat.ctime, stat.mtime, assignments)


def decode_reassignments(node: Node | None) -> dict[tuple[str, int], tuple[int, ...]]:
    """Decode the target replicas by (topic, partition) of Kafka before 2.4. Raises UndecodableError."""
    if node is None:
        return {}
    fields = _decode_object(REASSIGNMENTS, node[0])
    try:
        return {
            (_text(partition["topic"]), _number(partition["partition"])): tuple(map(_number, partition["replicas"]))
            for partition in fields["partitions"]
        }
    except _MALFORMED as error:
        raise _undecodable(REASSIGNMENTS, node[0]) from error


class ZnodeDecoder:
    """Makes observations of znodes, keeps the last of each subject in `facts`, and all of them until they are taken.

    reassignments: target replicas by (topic, partition), which only Kafka before 2.4 keeps outside of its topics.

    What ZooKeeper dates is exact. If changes were missed (a lost connection, a znode's version that skipped), or have
    no date (a znode that is gone), they happened at an unknown time since the subject was last seen. ZooKeeper's clock
    may be behind ours: no change is dated before the old value was last seen. In all methods, `read_at` is as of when
    all facts but those that are lost hold; None if unknown.
    """

    def __init__(self, cluster: str, known: Iterable[Observation]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._cluster = cluster
        self.facts: dict[Subject, Observation] = {}
        self._existing: dict[str, dict[int, PartitionState]] = {}
        self._deleted: dict[Subject, None] = {}
        for fact in known:
            if isinstance(fact, BrokerRegistration | Controller | PartitionState):
                self._keep(fact)
        self._new: list[Observation] = []
        self._versions: dict[Subject, tuple[int, int]] = {}
        self._lost: set[Subject] = set()
        self.reassignments: dict[tuple[str, int], tuple[int, ...]] = {}

    def brokers(self) -> list[int]:
        """Return the brokers that were registered when last seen."""
        return [fact.broker for fact in self.facts.values() if isinstance(fact, BrokerRegistration) and not fact.gone]

    def partitions(self, topic: str | None = None) -> list[PartitionState]:
        """Return the partitions that existed when last seen, of one topic or all."""
        topics = self._existing.values() if topic is None else [self._existing.get(topic, {})]
        return [state for states in topics for state in states.values()]

    def take(self) -> list[Observation]:
        """Return what was observed since the last call: what is gone is not seen again if a later request fails."""
        taken, self._new = self._new, []
        return taken

    def confirm(self, read_at: int) -> None:
        """Observe again what exists and holds as of `read_at`. What is read next is not dated before that."""
        existing = [fact for fact in self.facts.values() if not isinstance(fact, PartitionState) or fact.replicas]
        for fact in existing:
            if fact.subject not in self._lost:
                self._observe(structs.replace(fact, at=max(read_at, fact.at), seen_at=None, since=None))

    def lose(self, path: str) -> None:
        """Take note that a znode cannot be read: until it can be, what is known of it may no longer hold."""
        parent, _, name = path.rpartition("/")
        lost: list[Subject] = []
        if state := PARTITION_STATE.fullmatch(path):
            lost = [("partition_state", self._cluster, state[1], int(state[2]))]
        elif parent == TOPICS:
            lost = [partition.subject for partition in self.partitions(name)]
        elif parent == BROKER_IDS:
            with suppress(UndecodableError):
                lost = [("broker_registration", self._cluster, broker_of(path))]
        elif path == CONTROLLER:
            lost = [("controller", self._cluster)]
        self._lost.update(subject for subject in lost if subject in self.facts)

    def registered(self, broker: int, stat: ZnodeStat, now: int, read_at: int | None) -> Observation:
        """Return the broker's registration: dated by ZooKeeper, so exact even if the change was missed."""
        return self._observe_dated(
            BrokerRegistration(
                at=stat.ctime,
                seen_at=now,
                since=stat.ctime,
                cluster=self._cluster,
                broker=broker,
                session=session_id(stat),
                epoch=stat.czxid,
            ),
            read_at,
        )

    def unregistered(self, broker: int, now: int, read_at: int | None) -> Observation:
        """Return that the broker is no longer registered."""
        since = self._last_seen(("broker_registration", self._cluster, broker), read_at)
        return self._observe(
            BrokerRegistration(at=now, since=since, cluster=self._cluster, broker=broker, session=None, epoch=None)
        )

    def controller(self, node: Node | None, epoch: Node | None, now: int, read_at: int | None) -> Observation:
        """Return the controller, None without a znode. Raises UndecodableError."""
        if node is None:
            return self._observe(Controller(at=now, cluster=self._cluster, broker=None))
        fields = _decode_object(CONTROLLER, node[0])
        try:
            broker, number = _number(fields["brokerid"]), _number(epoch[0]) if epoch is not None else None
        except _MALFORMED as error:
            raise _undecodable(CONTROLLER, node[0]) from error
        began = node[1].ctime
        return self._observe_dated(
            Controller(at=began, seen_at=now, since=began, cluster=self._cluster, broker=broker, epoch=number), read_at
        )

    def partition(
        self, name: str, partition: int, topic: Topic, node: Node, *, now: int, read_at: int | None
    ) -> Observation:
        """Decode a partition's state. Raises UndecodableError."""
        content, stat = node
        path = partition_state_path(name, partition)
        fields = _decode_object(path, content)
        subject = ("partition_state", self._cluster, name, partition)
        try:
            leader, epoch = _number(fields["leader"]), _number(fields["leader_epoch"])
            isr = tuple(map(_number, fields["isr"]))
        except _MALFORMED as error:
            raise _undecodable(path, content) from error
        assignment = topic.assignments.get(partition, Assignment())
        target = self.reassignments.get((name, partition))
        if target is not None and not assignment.adding and not assignment.removing:
            assignment = Assignment(
                assignment.replicas,
                tuple(broker for broker in target if broker not in isr),
                tuple(broker for broker in assignment.replicas if broker not in target),
            )
        last = self._versions.get(subject)
        self._versions[subject] = (stat.czxid, stat.version)
        before = self.facts.get(subject)
        is_reassigned = isinstance(before, PartitionState) and before.replicas not in ((), assignment.replicas)
        changed_at = max(stat.mtime, topic.changed_at if is_reassigned else topic.created_at)
        is_next_version = last is not None and (stat.czxid, stat.version) in (last, (last[0], last[1] + 1))
        is_new = last is None and subject not in self.facts
        return self._observe_dated(
            PartitionState(
                at=changed_at,
                seen_at=now,
                since=changed_at if is_next_version or is_new else self._last_seen(subject, read_at),
                cluster=self._cluster,
                topic=name,
                partition=partition,
                leader=leader if leader >= 0 else None,
                leader_epoch=epoch,
                isr=isr,
                topic_id=topic.id,
                **assignment._asdict(),
            ),
            read_at,
        )

    def is_recreated(self, name: str, partition: int, stat: ZnodeStat) -> bool:
        """Return whether the state's znode is not the one last read, so that its topic may be another one too."""
        last = self._versions.get(("partition_state", self._cluster, name, partition))
        return last is None or last[0] != stat.czxid

    def deleted(self, state: PartitionState, now: int) -> Observation:
        """Return that the partition no longer exists."""
        self._versions.pop(state.subject, None)
        return self._observe(state.deleted(max(now, state.at)))

    def forget_deleted(self) -> list[Subject]:
        """Forget partitions that were deleted but for the last ones, should they return; return their subjects."""
        forgotten = list(islice(self._deleted, max(len(self._deleted) - GONE, 0)))
        for subject in forgotten:
            del self._deleted[subject], self.facts[subject]
            self._lost.discard(subject)
        return forgotten

    def _last_seen(self, subject: Subject, read_at: int | None) -> int | None:
        """Return as of when the last observation of the subject still held, None if unknown."""
        return None if subject in self._lost else read_at

    def _observe_dated(self, observation: Observation, read_at: int | None) -> Observation:
        """Observe what ZooKeeper dates, no earlier than the old value was seen."""
        subject = observation.subject
        last = self.facts.get(subject)
        if last is not None:
            is_change = not is_same_fact(last, observation)
            earliest = max(last.at, self._last_seen(subject, read_at) or 0) if is_change else last.at
            if observation.at < earliest:
                is_exact = observation.since == observation.at
                since = earliest if is_exact else observation.since
                observation = structs.replace(observation, at=earliest, since=since)
        return self._observe(observation)

    def _observe(self, observation: Observation) -> Observation:
        self._lost.discard(observation.subject)
        self._new.append(observation)
        self._keep(observation)
        return observation

    def _keep(self, observation: Observation) -> None:
        self.facts[observation.subject] = observation
        if isinstance(observation, PartitionState):
            existing = self._existing.setdefault(observation.topic, {})
            if observation.is_deleted:
                existing.pop(observation.partition, None)
                self._deleted[observation.subject] = None
            else:
                existing[observation.partition] = observation
                self._deleted.pop(observation.subject, None)
            if not existing:
                del self._existing[observation.topic]


def _decode_object(path: str, content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content.decode())  # of bytes, json would accept other encodings and half characters
    except (ValueError, RecursionError) as error:
        raise _undecodable(path, content) from error
    if not isinstance(fields, dict):
        raise _undecodable(path, content)
    return fields


def _number(value: Any) -> int:
    """Return an id or epoch. Raises what _MALFORMED names."""
    number = int(value)
    if not -1 <= number <= _MAX_NUMBER:
        raise ValueError(number)
    return number


def _text(value: Any) -> str:
    """Return text that can be encoded, without half characters. Raises ValueError."""
    text = str(value)
    text.encode()
    return text


def _undecodable(path: str, content: bytes) -> UndecodableError:
    return UndecodableError(f"Cannot decode znode {path}: it is not what Kafka writes there: {content[:120]!r}")
