"""Watches Kafka's znodes: broker registrations, controller, topics and partition states, and our own session.

Driven by watches, which kazoo calls on one thread of its own: there they only queue a path. A thread of this source
reads what was queued and sets the watch again. Polls say whether we see at all, and ask for heartbeats and for what
could not be read.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from agent.model.config_types import NameFilter
from agent.model.observations import Observation, PartitionState
from agent.sources.availability import SOURCE, Sights, Unit, now_ms
from agent.sources.base import ChangeDetector, Emit
from agent.sources.zookeeper.session import Session
from agent.sources.zookeeper.state import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    IDS,
    STATE,
    TOPICS,
    Topic,
    UndecodableError,
    ZooKeeperView,
    state_path,
    topic,
)
from agent.sources.zookeeper.znodes import Znodes

T = TypeVar("T")

_EVERYTHING, _BEAT, _LOOK = "/", "beat", "look"
"""What may be queued besides paths: read all anew; compare lists and emit heartbeats; see whether we still see."""

_HEARTBEAT_MS = 60_000

log = structlog.get_logger(__name__)


class ZooKeeperSource:
    """One cluster's ZooKeeper. It tells within milliseconds of a change, and Unavailable when our session may be lost."""

    name = "zookeeper"

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
        options: Mapping[str, Any],
    ) -> None:
        """connect: servers and chroot. known: the last observation of each subject before this run.

        interval: of polls, ms. topics, also: whose partitions are watched; what `also` says may change, and is asked
        again within a minute. options: KazooClient's keyword arguments.
        """
        known = [one for one in known if getattr(one, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = interval
        self._connect = connect
        self._wanted = topics
        self._also = also
        self._emit = emit
        self._sights = Sights(self.name, cluster, known)
        self._view = ZooKeeperView(cluster, known)
        self._polled = ChangeDetector(known)
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._trouble: dict[Unit, str] = {}
        self._changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._unread: set[str] = set()
        self._in_sight_until: int | None = None
        self._missed_since: int | None = None
        self._beat_at = 0
        self._closed = False
        self._session = Session(connect, options, self._connected)
        self._znodes = Znodes(self._session.client, self._changed.put)
        self._reader = threading.Thread(target=self._read_what_changed, name=f"zookeeper-{cluster}", daemon=True)
        self._reader.start()
        self._session.start()

    def poll(self) -> None:
        """Say whether we see; ask again for what could not be read, and once a minute for a look at the whole."""
        now = now_ms()
        away = self._session.away_since is not None
        unseen = dict(self._trouble)
        if not away:
            again, self._unread = self._unread, set()
            for path in (*again, _LOOK):
                self._changed.put(path)
            if now - self._beat_at >= _HEARTBEAT_MS:
                self._beat_at = now
                self._changed.put(_BEAT)
        elif self._session.lost(now):
            unseen[SOURCE] = f"ZooKeeper at {self._connect} does not answer"
        if not away or SOURCE in unseen:
            with self._lock:
                self._tell(self._sights.now(now, unseen))

    def close(self) -> None:
        """Let go of the session within about 3 s."""
        self._closed = True
        self._changed.put(None)
        self._session.close()

    def _connected(self) -> None:
        """Called on kazoo's thread: note and queue, no more. Watches do not outlive a connection: all is read anew."""
        self._missed_since = self._in_sight_until
        self._changed.put(_EVERYTHING)

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
            except self._session.failures as error:
                # A lost connection reads all anew when it is back; anything else is asked for again at the next poll.
                log.debug("cannot read", cluster=self.cluster, paths=sorted(paths), reason=repr(error))
                self._unread = self._unread | paths
                if self._session.away_since is None:
                    self._trouble[SOURCE] = f"ZooKeeper at {self._connect} refuses: {error!r}"

    def _read(self, paths: set[str]) -> None:
        asked, everything, beat = now_ms(), _EVERYTHING in paths, _BEAT in paths
        # What happened while the connection was away is dated since the last moment at which it was there.
        since = self._missed_since if everything else None
        found: list[Observation] = []
        if _LOOK in paths:
            self._znodes.exists(IDS)
        if everything or beat or any(path.startswith(IDS) for path in paths):
            found += self._brokers(since, exact=not everything)
        if everything or beat or CONTROLLER in paths:
            found += self._controller()
        names = {path.split("/")[3] for path in paths if path.startswith(f"{TOPICS}/") and not STATE.fullmatch(path)}
        if everything or beat or TOPICS in paths:
            listed = set(self._znodes.children(TOPICS))
            names |= listed if everything else listed - self._topics.keys()
            names |= {one.topic for one in self._view.partitions()} - listed
        found += self._topics_named(names, since)
        found += self._states(filter(STATE.fullmatch, paths), since, topics_read=False)
        if beat:
            now = now_ms()
            found += [
                msgspec.structs.replace(one, at=max(now, one.at), seen_at=None, since=None)
                for one in self._view.facts.values()
                if not isinstance(one, PartitionState) or one.replicas
            ]
        # ZooKeeper answers a read only after it has told of every watched change before it.
        self._in_sight_until = asked
        with self._lock:
            self._tell(found)

    def _tell(self, facts: Iterable[Observation]) -> None:
        changes = self._polled.changes(facts)
        if changes and not self._closed:
            self._emit(changes)

    def _brokers(self, since: int | None, *, exact: bool) -> list[Observation]:
        listed = self._znodes.children(IDS)
        self._trouble.pop(SOURCE, None)
        if not listed and not self._znodes.exists(IDS):
            self._trouble[SOURCE] = f"no broker has ever registered in ZooKeeper at {self._connect}: is the path right?"
        nodes = self._znodes.get([f"{IDS}/{one}" for one in listed])
        now = now_ms()
        alive = {int(path.rpartition("/")[2]): node for path, node in nodes.items() if node is not None}
        gone = [
            self._view.unregistered(one, now, now if exact else since)
            for one in self._view.brokers()
            if one not in alive
        ]
        return gone + [self._view.registered(broker, node[1], now) for broker, node in alive.items()]

    def _controller(self) -> list[Observation]:
        controller = self._znodes.get([CONTROLLER])[CONTROLLER]
        epoch = self._znodes.get([CONTROLLER_EPOCH], watch=False)[CONTROLLER_EPOCH]
        told = self._decoded(Unit(topic=CONTROLLER), partial(self._view.controller, controller, epoch, now_ms()))
        return [] if told is None else [told]

    def _topics_named(self, names: Iterable[str], since: int | None) -> list[Observation]:
        """The topics as they are now, with their partitions; those that are no more as deleted."""
        found: list[Observation] = []
        states: set[str] = set()
        wanted = sorted(name for name in names if self._wanted.match(name) or self._also(name))
        for path, node in self._znodes.get([f"{TOPICS}/{name}" for name in wanted]).items():
            name = path.rpartition("/")[2]
            self._topics.pop(name, None)
            told = None if node is None else self._decoded(Unit(topic=name), partial(topic, path, node))
            if told is not None:
                self._topics[name] = told
                states |= {state_path(name, number) for number in told.replicas}
            if told is not None or node is None:
                numbers = () if told is None else told.replicas.keys()
                gone = [state for state in self._view.partitions(name) if state.partition not in numbers]
                found += [self._view.deleted(state, now_ms()) for state in gone]
            if node is None:
                for unit in [unit for unit in self._trouble if unit.topic == name]:
                    del self._trouble[unit]
        return found + self._states(states, since)

    def _states(self, paths: Iterable[str], since: int | None, *, topics_read: bool = True) -> list[Observation]:
        """The partitions' states. topics_read: whether their topics were read just before."""
        found: list[Observation] = []
        for path, node in self._znodes.get(sorted(paths)).items():
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
