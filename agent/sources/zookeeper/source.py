"""ZooKeeper source: watches Kafka's znodes for broker registrations, controller, topics and partition states.

kazoo calls watches on a thread of its own, where they only queue a path. A thread of this source reads the queued paths
and sets the watches again. Polls report availability, and request heartbeats and what could not be read.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog
from kazoo.exceptions import NoAuthError

from agent.clock import now_ms
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.base import ChangeDetector, Emit
from agent.sources.zookeeper.chroots import describe_chroots, find_chroots
from agent.sources.zookeeper.health import HealthMonitor
from agent.sources.zookeeper.session import Session, ZnodeReader, denial
from agent.sources.zookeeper.znodes import (
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    PARTITION_STATE,
    REASSIGNMENTS,
    TOPICS,
    Node,
    Topic,
    UndecodableError,
    ZnodeDecoder,
    broker_of,
    decode_reassignments,
    decode_topic,
    partition_state_path,
)

T = TypeVar("T")

_EVERYTHING, _HEARTBEAT, _PROBE = "/", "heartbeat", "probe"
"""What may be queued besides paths: read everything; compare lists and emit heartbeats; check that we can read."""

_HEARTBEAT_MS = 60_000

log = structlog.get_logger(__name__)


class ZooKeeperSource:
    """A cluster's ZooKeeper: changes within milliseconds, and Unavailable when our session may have expired."""

    name = "zookeeper"
    problem = None

    def __init__(
        self,
        cluster: str,
        connect: str,
        emit: Emit,
        known: Iterable[Observation] = (),
        *,
        interval: int,
        topics: NameFilter,
        also: Callable[[str], bool] = lambda _: False,
        read_options: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Start from `known`, the last observation of each subject before this run.

        connect: servers and chroot. interval: of polls, ms. topics, also: whose partitions are watched; `also` is
        called again within a minute, as its result may change.
        read_options: returns KazooClient's keyword arguments with the current secrets.
        """
        known = [fact for fact in known if getattr(fact, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = interval
        self._connect = connect
        self._read_options = read_options
        self._selected_topics = topics
        self._also = also
        self._emit = emit
        self._availability = AvailabilityTracker(self.name, cluster, known)
        self._decoder = ZnodeDecoder(cluster, known)
        self._detector = ChangeDetector(known)
        self._emitting = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._unavailable: dict[Unit, str] = {}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failed_paths: set[str] = set()
        self._is_kafka = False  # whether brokers have ever registered below our path
        self._wrong_path = ""
        self.read_at: int | None = None  # what was read holds as of then: watches have reported all changes
        self._connections = self._watched_connection = 0
        self._heartbeat_at = 0
        self._closed = False
        self._session = Session(connect, read_options, self._on_connected)
        self._health = HealthMonitor(cluster, connect, self._session, self._emit_health, tls=self._session.is_tls)
        self._znodes = ZnodeReader(self._session.client, self._queue.put)
        threading.Thread(target=self._read_queued, name=f"zookeeper-{cluster}", daemon=True).start()
        self._session.start()

    def poll(self) -> None:
        """Report availability; queue what could not be read, and once a minute a comparison of everything."""
        now = now_ms()
        is_connected = self._session.disconnected_since is None
        unavailable = dict(self._unavailable)
        if is_connected:
            retries, self._failed_paths = self._failed_paths, set()
            for path in (*retries, _PROBE):
                self._queue.put(path)
            if now - self._heartbeat_at >= _HEARTBEAT_MS:
                self._heartbeat_at = now
                self._queue.put(_HEARTBEAT)
        elif self._session.is_lost(now):
            unavailable[SOURCE] = f"ZooKeeper at {self._connect} does not answer{self._session.failure}"
        if is_connected or SOURCE in unavailable:
            with self._emitting:
                self._emit_changes(self._availability.update(now, unavailable))
        self._health.measure_if_due(now)

    def close(self) -> None:
        """Close the session within about 3 s."""
        self._closed = True
        self._queue.put(None)
        self._session.close()

    def _on_connected(self) -> None:
        """Queue a read of everything, as watches do not outlive a connection; called on kazoo's thread."""
        self._connections += 1
        self._queue.put(_EVERYTHING)

    def _read_queued(self) -> None:
        while (first := self._queue.get()) is not None:
            paths = {first}
            while not self._queue.empty():
                path = self._queue.get()
                if path is None:
                    return
                paths.add(path)
            try:
                self._read_and_emit(paths)
            except self._session.failures as error:
                # After a lost connection everything is read again; anything else is queued again by the next poll.
                log.debug("znodes_unreadable", cluster=self.cluster, paths=sorted(paths), reason=repr(error))
                self._failed_paths = self._failed_paths | paths
                if self._session.disconnected_since is None:
                    self._unavailable[SOURCE] = f"ZooKeeper at {self._connect} refuses a request: {_text_of(error)}"
            except Exception as error:
                # Something unexpected in a znode must not end this thread: the next poll tries again.
                log.exception("znodes_unreadable", cluster=self.cluster, paths=sorted(paths))
                self._failed_paths = self._failed_paths | paths
                self._unavailable[SOURCE] = f"internal error: {error!r}; the agent's log has the details"

    def _read_and_emit(self, paths: set[str]) -> None:
        """Read the queued paths and emit what was observed, even if a later request fails."""
        try:
            self._read(paths)
        finally:
            with self._emitting:
                self._emit_changes(self._decoder.take())
                self._detector.forget_all(self._decoder.forget_deleted())

    def _read(self, paths: set[str]) -> None:
        started_at, read_all, heartbeat = now_ms(), _EVERYTHING in paths, _HEARTBEAT in paths
        connection = self._connections
        if _PROBE in paths:
            with self._health.measured_request():
                self._znodes.exists(BROKER_IDS)
        if read_all or heartbeat or any(path.startswith(BROKER_IDS) for path in paths):
            was_kafka = self._is_kafka
            self._read_brokers()
            read_all = read_all or self._is_kafka != was_kafka
        if not self._is_kafka:
            return  # what is missing below a wrong path says nothing about the cluster
        if read_all or heartbeat or CONTROLLER in paths:
            self._read_controller()
        retries = self._znodes.denied if heartbeat else set()
        state_paths = set(filter(PARTITION_STATE.fullmatch, paths | retries))
        names = {path.split("/")[3] for path in paths - state_paths if path.startswith(f"{TOPICS}/")}
        if read_all or heartbeat or REASSIGNMENTS in paths:
            names |= self._read_reassignments()
        if read_all or heartbeat or TOPICS in paths:
            listed = set(self._znodes.children(TOPICS))
            names |= listed if read_all else listed - self._topics.keys()
            names |= {state.topic for state in self._decoder.partitions()} - listed
        self._read_topics(names)
        self._read_partitions(state_paths, topics_read=False)
        if read_all:
            self._watched_connection = connection
        is_watched = self._watched_connection == self._connections and not self._failed_paths
        # ZooKeeper answers a read only after it has reported every earlier change of a watched znode.
        if is_watched and self._znodes.await_changes() and self._queue.empty():
            self.read_at = started_at
        if heartbeat and self.read_at is not None:
            self._decoder.confirm(self.read_at)

    def _emit_health(self, health: Observation) -> None:
        with self._emitting:
            self._emit_changes([health])

    def _emit_changes(self, observations: Iterable[Observation]) -> None:
        changes = self._detector.changes(observations)
        if changes and not self._closed:
            self._emit(changes)

    def _read_brokers(self) -> None:
        listed = self._znodes.children(BROKER_IDS)
        if listed or self._znodes.exists(BROKER_IDS):
            self._is_kafka = True
            self._unavailable.pop(SOURCE, None)
        elif self._is_kafka:
            self._unavailable[SOURCE] = f"Znode {BROKER_IDS} was deleted in ZooKeeper at {self._connect}"
        else:
            self._unavailable[SOURCE] = self._wrong_path = self._wrong_path or self._explain_path()
            return
        paths = {f"{BROKER_IDS}/{name}" for name in listed}
        for unit in [unit for unit in self._unavailable if _is_registration(unit) and unit.topic not in paths]:
            del self._unavailable[unit]
        brokers = {path: self._decode(path, partial(broker_of, path)) for path in sorted(paths)}
        nodes = self._get([path for path, broker in brokers.items() if broker is not None])
        now = now_ms()
        registered = {broker: nodes.get(path) for path, broker in brokers.items() if broker is not None}
        unknown = {broker for path, broker in brokers.items() if path in self._znodes.denied}
        for broker in self._decoder.brokers():
            if broker not in unknown and registered.get(broker) is None:
                self._decoder.unregistered(broker, now, self.read_at)
        for broker, node in registered.items():
            if node is not None:
                self._decoder.registered(broker, node[1], now, self.read_at)

    def _explain_path(self) -> str:
        chroots = describe_chroots(find_chroots(self._connect, self._read_options))
        path = f"No broker has ever registered in ZooKeeper at {self._connect}: check the path after the host names"
        return f"{path}. {chroots}" if chroots else path

    def _read_controller(self) -> None:
        nodes = self._get([CONTROLLER], watch_creation=True)
        if CONTROLLER not in nodes:
            return
        node = nodes[CONTROLLER]
        epoch = self._get([CONTROLLER_EPOCH], watch=False).get(CONTROLLER_EPOCH)
        self._decode(CONTROLLER, partial(self._decoder.controller, node, epoch, now_ms(), self.read_at))

    def _read_reassignments(self) -> set[str]:
        """Read the target replicas; return the topics whose partitions they concern, or no longer do."""
        nodes = self._get([REASSIGNMENTS], watch_creation=True)
        if REASSIGNMENTS not in nodes:
            return set()
        node = nodes[REASSIGNMENTS]
        targets = self._decode(REASSIGNMENTS, partial(decode_reassignments, node))
        if targets is None:
            return set()
        before, self._decoder.reassignments = self._decoder.reassignments, targets
        return {topic for topic, _ in dict(before.items() ^ targets.items())}

    def _read_topics(self, names: Iterable[str]) -> None:
        """Read the selected topics with their partitions."""
        state_paths: set[str] = set()
        for path, node in self._get([f"{TOPICS}/{name}" for name in sorted(filter(self._is_selected, names))]).items():
            name = path.rpartition("/")[2]
            self._topics.pop(name, None)
            topic = None if node is None else self._decode(path, partial(decode_topic, path, node))
            if topic is not None:
                self._topics[name] = topic
                state_paths |= {partition_state_path(name, partition) for partition in topic.assignments}
            if topic is not None or node is None:
                partitions = () if topic is None else topic.assignments.keys()
                for state in self._decoder.partitions(name):
                    if state.partition not in partitions:
                        self._decoder.deleted(state, now_ms())
            if node is None:
                for unit in [unit for unit in self._unavailable if unit.topic == name]:
                    del self._unavailable[unit]
        self._read_partitions(state_paths)

    def _is_selected(self, topic: str) -> bool:
        """Return whether to read the topic. One that was before is read until it is deleted, or no alarm would end."""
        return self._selected_topics.match(topic) or self._also(topic) or bool(self._decoder.partitions(topic))

    def _read_partitions(self, paths: Iterable[str], *, topics_read: bool = True) -> None:
        """Read partition states. topics_read: whether their topics were read just before, so that they exist."""
        for path, node in self._get(sorted(paths), watch_creation=topics_read).items():
            _, _, _, name, _, number, _ = path.split("/")
            topic = self._topics.get(name)
            if node is None:
                self._decoder.lose(path)
                continue
            if topic is None or (not topics_read and self._decoder.is_recreated(name, int(number), node[1])):
                # The znode was re-created, and so may its topic be, which has to be read first.
                self._queue.put(f"{TOPICS}/{name}")
                continue
            decode = partial(
                self._decoder.partition, name, int(number), topic, node, now=now_ms(), read_at=self.read_at
            )
            self._decode(path, decode)

    def _get(self, paths: list[str], *, watch: bool = True, watch_creation: bool = False) -> dict[str, Node | None]:
        """Read znodes; those that we may not read are left out, unavailable, and retried with the next heartbeat."""
        nodes = self._znodes.get(paths, watch=watch, watch_creation=watch_creation)
        for path in paths:
            if path not in nodes:
                self._topics.pop(path.removeprefix(f"{TOPICS}/"), None)
                self._lose(path, denial(path))
            elif self._unavailable.get(_unit_of(path)) == denial(path):
                del self._unavailable[_unit_of(path)]
        return nodes

    def _decode(self, path: str, decode: Callable[[], T]) -> T | None:
        """Return what `decode` returns; None if it cannot, which the next poll reports."""
        try:
            decoded = decode()
        except UndecodableError as error:
            log.warning("znode_undecodable", cluster=self.cluster, reason=str(error))
            self._lose(path, str(error))
            return None
        self._unavailable.pop(_unit_of(path), None)
        return decoded

    def _lose(self, path: str, reason: str) -> None:
        self._unavailable[_unit_of(path)] = reason
        self._decoder.lose(path)


def _unit_of(path: str) -> Unit:
    """Return what is unavailable if the znode cannot be read: a partition, a topic, or the znode itself."""
    if state := PARTITION_STATE.fullmatch(path):
        return Unit(topic=state[1], partition=int(state[2]))
    return Unit(topic=path.removeprefix(f"{TOPICS}/"))


def _is_registration(unit: Unit) -> bool:
    return unit.topic is not None and unit.topic.startswith(f"{BROKER_IDS}/")


def _text_of(error: Exception) -> str:
    """Return kazoo's error in words: some have none, and their name says what they are."""
    return str(error) if isinstance(error, NoAuthError) and error.args else repr(error)
