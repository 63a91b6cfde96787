"""A Kafka cluster: brokers with their registrations, logs with leaders and replicas, retention and elections."""

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from testbed.model.clock import MINUTE, SECOND, Clock
from testbed.model.truth import Event, Truth

if TYPE_CHECKING:
    from testbed.model.groups import Group, Reader

_BUFFERED_MS = 2 * MINUTE
"""delivery.timeout.ms: how long producers keep what they cannot send."""

_WAIT_MS = 5 * SECOND
"""After how long a follower looks again for a leader."""


class Broker:
    """A broker. session, epoch: of its registration; None without one. is_up: whether it serves its partitions."""

    def __init__(self, number: int, session: str, epoch: int, at: int) -> None:
        self.number = number
        self.session: str | None = session
        self.epoch: int | None = epoch
        self.registered_at = at
        self.is_up = True
        self.is_decommissioned = False


class Log:
    """One partition: its log as consumers see it, and its metadata.

    rate: records/s that producers write. open: whether its leader serves it. lso: the last stable offset while a
    transaction is open. density: records per offset below `clean_until`,
    where the log is compacted. cause: the event that is to answer for what readers suffer from this log. version,
    mtime: of the metadata.
    """

    def __init__(self, topic: "Topic", partition: int, replicas: tuple[int, ...], end: int, at: int) -> None:
        self.topic = topic
        self.partition = partition
        self.place: tuple[str, int] = (topic.name, partition)
        self.replicas = replicas
        self.leader: int | None = replicas[0]
        self.epoch = 0
        self.isr = replicas
        self.elr: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self.version = 0
        self.mtime = at
        self.open = True
        self.rate = 0.0
        self.start = 0
        self.lso: int | None = None
        self.cause: Event | None = None
        self.density, self.clean_until = 1.0, 0
        self.readers: list[Reader] = []
        self._base, self._at = float(end), at
        self.closed_at = 0

    def end(self, at: int) -> int:
        """Return the high watermark."""
        return int(self._base + self.rate * (at - self._at) / SECOND) if self.open else int(self._base)

    def visible(self, at: int, *, committed_only: bool) -> int:
        """Return where a consumer sees the end."""
        end = self.end(at)
        return end if self.lso is None or not committed_only else min(self.lso, end)

    def settle(self, at: int) -> None:
        """Fix the end as of now and let every reader read until now, before anything about the log changes."""
        for reader in self.readers:
            reader.catch_up(at)
        if self.open:
            self._base += self.rate * (at - self._at) / SECOND
        self._at = at

    def set_rate(self, at: int, rate: float) -> None:
        self.settle(at)
        self.rate = rate

    def append(self, at: int, records: int) -> None:
        """Append records at once: a burst, or what compaction left behind."""
        self.settle(at)
        self._base += records

    def close(self, at: int) -> None:
        if self.open:
            self.settle(at)
            self.open, self.closed_at = False, at

    def reopen(self, at: int) -> None:
        """Serve again; producers send what they have kept meanwhile."""
        if not self.open:
            self.settle(at)
            self._base += self.rate * min(at - self.closed_at, _BUFFERED_MS) / SECOND
            self.open = True

    def truncate(self, at: int, to: int) -> None:
        """Cut the log back to an offset."""
        self.settle(at)
        self._base = float(max(to, 0))
        self.start = min(self.start, to)
        self.clean_until = min(self.clean_until, to)
        for reader in self.readers:
            reader.note_truncation(max(to, 0))


class Topic:
    """A topic. id: as the sources see it. segment: records per segment, the unit of retention."""

    def __init__(self, name: str, topic_id: str, created_at: int) -> None:
        self.name = name
        self.id = topic_id
        self.created_at = created_at
        self.logs: list[Log] = []
        self.policy = "delete"
        self.retention_ms = 7 * 86_400_000
        self.segment = 10_000
        self.is_transactional = False
        self.exists = True


class Cluster:
    """A Kafka cluster with its groups. Views watch it by `on_change`, called with a Log, a Broker, a Topic or None.

    has_zookeeper: else KRaft. version: of Kafka, (3, 9). session_ms: how long a dead broker stays registered.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        rng: random.Random,
        truth: Truth,
        *,
        brokers: int,
        has_zookeeper: bool,
        version: tuple[int, int],
    ) -> None:
        self.name, self.clock, self.rng, self.truth = name, clock, rng, truth
        self.has_zookeeper, self.version = has_zookeeper, version
        self.session_ms = 6_000 if version < (2, 5) else 18_000 if has_zookeeper else 9_000
        self._zxid = rng.randrange(1_000, 90_000)
        self.brokers = {
            number: Broker(number, self._session(), self.zxid(), clock.now - rng.randrange(3_600_000, 90_000_000))
            for number in range(1, brokers + 1)
        }
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.controller = rng.choice(list(self.brokers))
        self.controller_epoch = rng.randrange(3, 60)
        self.controller_at = clock.now - 3_600_000
        self.on_change: list[Callable[[Log | Broker | Topic | None], None]] = []

    # ---- names ----------------------------------------------------------------------------------------------------

    def zxid(self) -> int:
        self._zxid += self.rng.randrange(1, 40)
        return self._zxid

    def _session(self) -> str:
        return f"0x{self.rng.randrange(1, 4):x}{self.rng.randrange(1 << 32):012x}{self.rng.randrange(1 << 8):02x}"

    def new_topic_id(self) -> str:
        if self.version < (2, 8):
            return f"czxid:{self.zxid()}" if self.has_zookeeper else ""
        return f"{self.rng.randrange(1 << 62):016x}AAAAAA"

    # ---- topics ---------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, replication: int, *, end: Callable[[], int] = lambda: 0
    ) -> Topic:
        topic = Topic(name, self.new_topic_id(), self.clock.now)
        self.topics[name] = topic
        for _ in range(partitions):
            self.add_partition(topic, replication, end())
        self.notify(topic)
        return topic

    def add_partition(self, topic: Topic, replication: int, end: int = 0) -> Log:
        known = sorted(number for number, broker in self.brokers.items() if not broker.is_decommissioned)
        alive = [number for number in known if self.brokers[number].session is not None] or known
        shift = (len(topic.logs) + sum(map(ord, topic.name))) % len(alive)
        replicas = tuple((alive[shift:] + alive[:shift])[:replication])
        log = Log(topic, len(topic.logs), replicas, end, self.clock.now)
        topic.logs.append(log)
        leader = self.brokers[replicas[0]]
        if not leader.is_up:
            log.leader = next((number for number in replicas if self.brokers[number].is_up), replicas[0])
            log.open = self.brokers[log.leader].is_up
        return log

    def delete_records(self, log: Log, to: int) -> None:
        """Raise the log start offset: retention, or DeleteRecords."""
        now = self.clock.now
        to = min(to, log.end(now))
        if to <= log.start:
            return
        log.settle(now)
        log.start = to
        for reader in log.readers:
            reader.lose_unread()
            reader.check_range()

    def delete_topic(self, topic: Topic) -> None:
        for log in topic.logs:
            log.settle(self.clock.now)
            log.open = False
        topic.exists = False
        del self.topics[topic.name]
        self.notify(topic)

    def logs(self) -> Iterable[Log]:
        return (log for topic in self.topics.values() for log in topic.logs)

    # ---- metadata -------------------------------------------------------------------------------------------------

    def notify(self, changed: "Log | Broker | Topic | None") -> None:
        """Let the views know of a change; None: of the controller."""
        for watch in self.on_change:
            watch(changed)

    def write_state(self, log: Log, **fields: object) -> None:
        """Change a partition's state: one version of its znode."""
        log.settle(self.clock.now)
        for name, value in fields.items():
            setattr(log, name, value)
        log.version += 1
        log.mtime = self.clock.now
        is_served = log.leader is not None and self.brokers[log.leader].is_up
        if is_served and not log.open and log.topic.exists:
            log.reopen(self.clock.now)
        elif not is_served:
            log.close(self.clock.now)
        self.notify(log)
        if is_served:
            for reader in log.readers:
                reader.check_range()

    def elect(self, log: Log, leader: int | None, isr: tuple[int, ...] | None = None) -> None:
        self.write_state(log, leader=leader, epoch=log.epoch + 1, isr=log.isr if isr is None else isr)

    def elect_uncleanly(self, log: Log, leader: int, lost: int) -> None:
        """Elect a replica that is not in sync: what it lacks is truncated from the others when they follow it."""
        now = self.clock.now
        log.truncate(now, max(log.end(now) - lost, log.start))
        self.elect(log, leader, (leader,))

    def remove_from_isr(self, log: Log, broker: int) -> None:
        isr = tuple(number for number in log.isr if number != broker)
        if isr and isr != log.isr:
            self.write_state(log, isr=isr)

    def add_to_isr(self, log: Log, broker: int) -> None:
        """Let a follower that has caught up join the ISR; without a leader it waits for one."""
        if broker not in log.replicas or broker in log.isr or not self.brokers[broker].is_up or not log.topic.exists:
            return
        if log.leader is None:
            self.clock.after(_WAIT_MS, lambda: self.add_to_isr(log, broker))
        else:
            self.write_state(log, isr=tuple(n for n in log.replicas if n in log.isr or n == broker))

    # ---- brokers --------------------------------------------------------------------------------------------------

    def unregister(self, broker: Broker) -> None:
        broker.session = broker.epoch = None
        self.notify(broker)
        if self.controller == broker.number:
            candidates = [number for number, other in self.brokers.items() if other.session is not None]
            if candidates:
                self.controller = self.rng.choice(candidates)
                self.controller_epoch += 1
                self.controller_at = self.clock.now
                self.notify(None)

    def register(self, broker: Broker) -> None:
        broker.session, broker.epoch = self._session(), self.zxid()
        broker.registered_at = self.clock.now
        broker.is_up = True
        self.notify(broker)
        for log in list(self.logs()):
            if broker.number not in log.replicas:
                continue
            if log.leader is None and (broker.number in log.isr or not log.isr):
                self.elect(log, broker.number, (broker.number,))
            elif log.leader == broker.number:
                log.reopen(self.clock.now)
                for reader in log.readers:
                    reader.check_range()
            if broker.number not in log.isr:
                self.clock.after(self.rng.uniform(2, 12) * SECOND, lambda log=log: self.add_to_isr(log, broker.number))  # type: ignore[misc]

    def lead_elsewhere(self, broker: Broker) -> None:
        """Move the leaders of a broker to other replicas in sync, as a controller does within its second."""
        for log in list(self.logs()):
            rest = tuple(number for number in log.isr if number != broker.number)
            if log.leader == broker.number:
                alive = [number for number in rest if self.brokers[number].is_up]
                self.elect(log, alive[0] if alive else None, rest if alive else (broker.number,))
            elif broker.number in log.isr and rest:
                self.write_state(log, isr=rest)

    def _lead_elsewhere_if_gone(self, broker: Broker) -> None:
        if broker.session is None:
            self.lead_elsewhere(broker)

    def stop(self, broker: Broker, *, down_ms: float) -> None:
        """Shut a broker down in order and start it again: its leaders move first, then it unregisters."""
        self.lead_elsewhere(broker)

        def down() -> None:
            broker.is_up = False
            self.unregister(broker)
            self._close_logs(broker)

        self.clock.after(self.rng.uniform(0.5, 4) * SECOND, down)
        self.clock.after(down_ms, lambda: self.register(broker))

    def kill(self, broker: Broker, *, down_ms: float | None) -> None:
        """Let a broker die or freeze: its session expires later. down_ms: None if it never comes back."""
        broker.is_up = False
        self._close_logs(broker)
        self.notify(None)
        back_at = None if down_ms is None else self.clock.now + down_ms

        def expire() -> None:
            if back_at is None or back_at > self.clock.now:
                self.unregister(broker)
                self.clock.after(self.rng.uniform(30, 900), lambda: self._lead_elsewhere_if_gone(broker))

        if down_ms is None or down_ms > self.session_ms:
            self.clock.after(self.session_ms * self.rng.uniform(0.7, 1.0), expire)
        if down_ms is not None:
            self.clock.after(down_ms, lambda: self.register(broker))

    def lose_session(self, broker: Broker, *, away_ms: float, moves: bool = True) -> None:
        """Let a broker's session expire while it runs on (a pause, a network fault), and register again soon."""
        self.unregister(broker)
        if moves:
            self.clock.after(self.rng.uniform(20, 600), lambda: self._lead_elsewhere_if_gone(broker))
        self.clock.after(away_ms, lambda: self.register(broker))

    def prefer_leaders(self) -> None:
        """Elect the preferred leaders (auto.leader.rebalance.enable)."""
        for log in list(self.logs()):
            preferred = log.replicas[0]
            if log.leader not in (None, preferred) and preferred in log.isr and self.brokers[preferred].is_up:
                self.elect(log, preferred)

    def _close_logs(self, broker: Broker) -> None:
        for log in self.logs():
            if log.leader == broker.number:
                log.close(self.clock.now)
