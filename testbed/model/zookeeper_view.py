"""What Backflow's ZooKeeper source sees of a cluster: watches within milliseconds, dated by ZooKeeper's own clock."""

from collections.abc import Iterable

from msgspec.structs import replace

from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, Controller, PartitionState
from agent.sources.availability import SOURCE, AvailabilityTracker
from agent.sources.base import ChangeDetector
from testbed.model.kafka import Broker, Cluster, Log, Topic
from testbed.model.views import Emit, deleted, partition_state

_SESSION_MS = 10_000
_HEARTBEAT_MS = 60_000


class ZooKeeperView:
    """The ZooKeeper source of a cluster.

    skew: how far ZooKeeper's clock is ahead of ours, ms. newer: whether it reads reassignments.
    """

    def __init__(self, cluster: Cluster, emit: Emit, *, skew: int, newer: bool) -> None:
        clock, rng = cluster.clock, cluster.rng
        self._cluster, self._clock, self._emit, self._rng, self._skew = cluster, clock, emit, rng, skew
        self._newer = newer and cluster.version >= (2, 4)
        self._detector = ChangeDetector()
        self._availability = AvailabilityTracker("zookeeper", cluster.name)
        self._partitions: dict[tuple[str, int], tuple[Log, int, PartitionState]] = {}
        self._deleted_at: dict[tuple[str, int], int] = {}
        self._registrations: dict[int, BrokerRegistration] = {}
        self._controller: Controller | None = None
        self._pending: set[Log | Topic | Broker | None] = set()
        self._connected = True
        self._disconnected_at = self._last_read_at = clock.now
        cluster.on_change.append(self._watch)
        clock.after(12, self._read_all)
        clock.every(_HEARTBEAT_MS, self._heartbeat, first=_HEARTBEAT_MS)

    def disconnect(self, ms: int) -> None:
        """Lose the connection for so long: ZooKeeper restarts, or Backflow sleeps."""
        if not self._connected:
            return
        self._connected = False
        self._disconnected_at = self._clock.now
        if ms > _SESSION_MS:
            self._clock.after(_SESSION_MS + 800, self._report_lost)
        self._clock.after(ms, self._reconnect)

    def _report_lost(self) -> None:
        if not self._connected:
            now = self._clock.now
            outage = {SOURCE: "ZooKeeper at zk:2181 does not answer"}
            self._emit_changes(self._availability.update(now, outage))

    def _reconnect(self) -> None:
        self._connected = True
        self._read_all(self._last_read_at)
        self._emit_changes(self._availability.update(self._clock.now, {}))

    def _watch(self, changed: Log | Broker | Topic | None) -> None:
        if not self._connected:
            return
        if not self._pending:
            self._clock.after(self._rng.choice((3, 6, 12, 40, 150)), self._read_pending)
        self._pending.add(changed)

    def _read_pending(self) -> None:
        pending, self._pending = self._pending, set()
        if not self._connected:
            return
        now = self._last_read_at = self._clock.now
        facts: list[Observation] = []
        if any(isinstance(changed, Broker) for changed in pending):
            facts += self._read_brokers(now)
        if None in pending:
            facts += self._read_controller(now)
        if any(isinstance(changed, Topic) for changed in pending):
            facts += self._read_partitions(self._all_logs(), None)
        else:
            facts += self._read_partitions((log for log in pending if isinstance(log, Log)), None)
        self._emit_changes(facts)

    def _read_all(self, since: int | None = None) -> None:
        now = self._last_read_at = self._clock.now
        facts = [
            *self._read_brokers(now, since, exact=False),
            *self._read_controller(now),
            *self._read_partitions(self._all_logs(), since),
        ]
        self._emit_changes(facts)

    def _heartbeat(self) -> None:
        """Emit what is known again; the change detector lets through what it has not emitted for long."""
        if self._connected:
            now = self._last_read_at = self._clock.now
            facts: list[Observation] = [state for _, _, state in self._partitions.values()]
            facts += self._registrations.values()
            facts += [] if self._controller is None else [self._controller]
            self._emit_changes(_dated(fact, now) for fact in facts)

    def _all_logs(self) -> list[Log]:
        return list(self._cluster.logs())

    def _read_brokers(self, now: int, since: int | None = None, *, exact: bool = True) -> list[Observation]:
        facts: list[Observation] = []
        for number, broker in self._cluster.brokers.items():
            last = self._registrations.get(number)
            if broker.session is None:
                if last is None or last.gone:
                    continue
                gone = BrokerRegistration(
                    at=now, since=now if exact else since, cluster=self._cluster.name, broker=number,
                    session=None, epoch=None,
                )  # fmt: skip
                self._registrations[number] = gone
                facts.append(gone)
                continue
            if last is not None and last.epoch == broker.epoch:
                continue
            created_at = broker.registered_at + self._skew
            registration = BrokerRegistration(
                at=created_at if last is None else max(created_at, last.at), seen_at=now, since=created_at,
                cluster=self._cluster.name, broker=number, session=broker.session, epoch=broker.epoch,
            )  # fmt: skip
            self._registrations[number] = registration
            facts.append(registration)
        return facts

    def _read_controller(self, now: int) -> list[Observation]:
        last, at = self._controller, self._cluster.controller_at + self._skew
        at = at if last is None else max(at, last.at)
        self._controller = Controller(
            at=at, seen_at=now, since=at, cluster=self._cluster.name, broker=self._cluster.controller,
            epoch=self._cluster.controller_epoch,
        )  # fmt: skip
        return [self._controller]

    def _read_partitions(self, logs: Iterable[Log], since: int | None) -> list[Observation]:
        now = self._clock.now
        logs, facts = list(logs), list[Observation]()
        existing = {log.place for log in self._cluster.logs()}
        for place in [place for place in self._partitions if place not in existing]:
            facts.append(deleted(self._partitions.pop(place)[2], now))
            self._deleted_at[place] = facts[-1].at
        for log in logs:
            if not log.topic.exists:
                continue
            last = self._partitions.get(log.place)
            if last is not None and last[0] is log and last[1] == log.version:
                continue
            is_next = last is not None and last[0] is log and last[1] + 1 == log.version
            at = max(log.mtime, log.topic.created_at) + self._skew
            at = max(at, self._deleted_at.get(log.place, at) if last is None else last[2].at)
            state = partition_state(
                self._cluster.name, log, at, newer=self._newer, exact=True, seen_at=now,
                since=at if is_next or last is None else since,
            )  # fmt: skip
            self._partitions[log.place] = log, log.version, state
            facts.append(state)
        return facts

    def _emit_changes(self, facts: Iterable[Observation]) -> None:
        changes = self._detector.changes(facts)
        if changes:
            self._emit(changes)


def _dated(fact: Observation, now: int) -> Observation:
    return replace(fact, at=max(now, fact.at), seen_at=None, since=None)
