"""Watches Kafka's znodes: broker registrations, controller, topics and partition states, and our own session.

Driven by watches, which kazoo calls on one thread of its own: there they only queue a path. A thread of this source
reads what was queued and sets the watch again. Polls say whether we see at all, and emit heartbeats.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from agent.observations import Observation
from agent.options import Names
from agent.sources import Emit, Polled
from agent.sources.sight import SOURCE, Sights, Unit, now_ms
from agent.sources.zookeeper_view import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    IDS,
    STATE,
    TOPICS,
    Node,
    Topic,
    UndecodableError,
    ZooKeeperView,
    state_path,
    topic,
)

T = TypeVar("T")

_EVERYTHING = "/"
_AT_A_TIME = 500
_ANSWER_S = 10
_HEARTBEAT_MS = 60_000
_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}

log = structlog.get_logger(__name__)


class ZooKeeperSource:
    """One cluster's ZooKeeper. It tells within milliseconds of a change, and Blind when our session may be lost."""

    name = "zookeeper"

    def __init__(
        self,
        cluster: str,
        connect: str,
        emit: Emit,
        known: Iterable[Observation] = (),
        *,
        interval: int,
        topics: Names,
        options: Mapping[str, Any],
    ) -> None:
        """connect: servers and chroot. known: the last observation of each subject before this run.

        interval: of polls, ms. topics: whose partitions are watched. options: KazooClient's keyword arguments.
        """
        known = [one for one in known if getattr(one, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = interval
        self._connect = connect
        self._wanted = topics
        self._emit = emit
        self._sights = Sights(self.name, cluster, known)
        self._view = ZooKeeperView(cluster, known)
        self._polled = Polled(known)
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._trouble: dict[Unit, str] = {}
        self._changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._session_ms = int(options.get("timeout", 10) * 1000)
        self._in_sight_until: int | None = None
        self._away_since: int | None = now_ms()
        self._beat_at = 0
        self._closed = False
        self._client = KazooClient(connect, connection_retry=_CONNECTION_RETRY, **options)
        self._client.add_listener(self._session_changed)
        self._reader = threading.Thread(target=self._read_what_changed, name=f"zookeeper-{cluster}", daemon=True)
        self._reader.start()
        self._client.start_async()

    def poll(self) -> None:
        """Say whether we see; once a minute go through what we know, for heartbeats."""
        now = now_ms()
        away_since = self._away_since
        unseen = dict(self._trouble)
        if away_since is None:
            self._in_sight_until = now
        elif now - away_since > self._session_ms:
            unseen[SOURCE] = f"ZooKeeper at {self._connect} does not answer"
        with self._lock:
            facts: list[Observation] = (
                list(self._sights.now(now, unseen)) if away_since is None or SOURCE in unseen else []
            )
            if away_since is None and now - self._beat_at >= _HEARTBEAT_MS:
                self._beat_at = now
                facts += [
                    msgspec.structs.replace(one, at=max(now, one.at), seen_at=None, since=None)
                    for one in self._view.facts.values()
                ]
            self._tell(facts)

    def close(self) -> None:
        """Let go of the session within about 3 s."""
        self._closed = True
        self._changed.put(None)
        ending = threading.Thread(target=self._end, name="zookeeper-end", daemon=True)
        ending.start()
        ending.join(3)

    def _end(self) -> None:
        self._client.stop()
        self._client.close()

    def _session_changed(self, state: str) -> None:
        """Called on kazoo's thread: note and queue, no more. Watches do not outlive a connection: all is read anew."""
        if state == KazooState.CONNECTED:
            self._away_since = None
            self._changed.put(_EVERYTHING)
        elif self._away_since is None:
            self._away_since = now_ms()

    def _znode_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._changed.put(event.path)

    def _read_what_changed(self) -> None:
        while (first := self._changed.get()) is not None:
            paths = {first}
            while not self._changed.empty():
                following = self._changed.get()
                if following is None:
                    return
                paths.add(following)
            try:
                self._read(paths)
            except (KazooException, self._client.handler.timeout_exception) as error:
                # A lost connection reads all anew when it is back; for anything else a poll's Blind tells why.
                log.warning("cannot read", cluster=self.cluster, reason=repr(error))
                if self._away_since is None and not self._closed:
                    self._trouble[SOURCE] = f"ZooKeeper at {self._connect} refuses: {error!r}"
            else:
                self._trouble.pop(SOURCE, None)

    def _read(self, paths: set[str]) -> None:
        everything = _EVERYTHING in paths
        # What happened while the connection was away is dated since the last moment at which it was there.
        since = self._in_sight_until if everything else None
        found: list[Observation] = []
        if everything or any(path.startswith(IDS) for path in paths):
            found += self._brokers(since)
        if everything or CONTROLLER in paths:
            found += self._controller()
        names = {path.split("/")[3] for path in paths if path.startswith(f"{TOPICS}/") and not STATE.fullmatch(path)}
        if everything or TOPICS in paths:
            listed = set(self._children(TOPICS))
            names |= listed if everything else listed - self._topics.keys()
            names |= {one.topic for one in self._view.partitions()} - listed
        found += self._topics_named(names, since)
        found += self._states(filter(STATE.fullmatch, paths), since, topics_read=False)
        with self._lock:
            self._tell(found)

    def _tell(self, facts: Iterable[Observation]) -> None:
        changes = self._polled.changes(facts)
        if changes and not self._closed:
            self._emit(changes)

    def _brokers(self, since: int | None) -> list[Observation]:
        listed = self._children(IDS)
        nodes = self._get([f"{IDS}/{one}" for one in listed])
        now = now_ms()
        alive = {int(path.rpartition("/")[2]): node for path, node in nodes.items() if node is not None}
        gone = [self._view.unregistered(one, now, since) for one in self._view.brokers() if one not in alive]
        return gone + [self._view.registered(broker, node[1], now) for broker, node in alive.items()]

    def _controller(self) -> list[Observation]:
        controller = self._get([CONTROLLER])[CONTROLLER]
        epoch = self._get([CONTROLLER_EPOCH], watch=False)[CONTROLLER_EPOCH]
        told = self._decoded(Unit(topic=CONTROLLER), partial(self._view.controller, controller, epoch, now_ms()))
        return [] if told is None else [told]

    def _topics_named(self, names: Iterable[str], since: int | None) -> list[Observation]:
        """The topics as they are now, with their partitions; those that are no more as deleted."""
        found: list[Observation] = []
        states: set[str] = set()
        wanted = sorted(name for name in names if self._wanted.match(name))
        for path, node in self._get([f"{TOPICS}/{name}" for name in wanted]).items():
            name = path.rpartition("/")[2]
            self._topics.pop(name, None)
            if node is None:
                found += [self._view.deleted(state, now_ms()) for state in self._view.partitions(name)]
                continue
            told = self._decoded(Unit(topic=name), partial(topic, path, node))
            if told is not None:
                self._topics[name] = told
                states |= {state_path(name, number) for number in told.replicas}
        return found + self._states(states, since)

    def _states(self, paths: Iterable[str], since: int | None, *, topics_read: bool = True) -> list[Observation]:
        """The partitions' states. topics_read: whether their topics were read just before."""
        found: list[Observation] = []
        for path, node in self._get(sorted(paths)).items():
            _, _, _, name, _, number, _ = path.split("/")
            of = self._topics.get(name)
            if node is None:
                continue
            if of is None or (not topics_read and self._view.made_anew(name, int(number), node[1])):
                # Made anew, as its topic may be: that is read first.
                self._changed.put(f"{TOPICS}/{name}")
                continue
            unit = Unit(topic=name, partition=int(number))
            decode = partial(self._view.partition, name, int(number), of, node, now=now_ms(), since=since)
            told = self._decoded(unit, decode)
            found += [] if told is None else [told]
        return found

    def _decoded(self, unit: Unit, decode: Callable[[], T]) -> T | None:
        """What was decoded; None for what cannot be: polls say so."""
        try:
            told = decode()
        except UndecodableError as error:
            log.warning("cannot decode", cluster=self.cluster, reason=str(error))
            self._trouble[unit] = str(error)
            return None
        self._trouble.pop(unit, None)
        return told

    def _children(self, path: str) -> list[str]:
        """The children's names, watched; none where the path does not exist (yet): then its creation is watched."""
        try:
            return list(self._client.get_children_async(path, watch=self._znode_changed).get(timeout=_ANSWER_S))
        except NoNodeError:
            self._client.exists_async(path, watch=self._znode_changed).get(timeout=_ANSWER_S)
            return []

    def _get(self, paths: list[str], *, watch: bool = True) -> dict[str, Node | None]:
        """The znodes' contents, watched, many at a time; None where there is none: then its creation is watched."""
        told = self._znode_changed if watch else None
        nodes: dict[str, Node | None] = {}
        for start in range(0, len(paths), _AT_A_TIME):
            asked = [(path, self._client.get_async(path, watch=told)) for path in paths[start : start + _AT_A_TIME]]
            for path, answer in asked:
                try:
                    nodes[path] = answer.get(timeout=_ANSWER_S)
                except NoNodeError:
                    nodes[path] = None
        missing = [path for path, node in nodes.items() if node is None]
        for path in missing if watch else ():
            self._client.exists_async(path, watch=told).get(timeout=_ANSWER_S)
        return nodes
