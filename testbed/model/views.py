"""What Backflow's Kafka and ZooKeeper sources see of a cluster: polls and watches, delays, gaps, clocks that differ.

Facts are reduced to changes as agent.sources.base.ChangeDetector does it, by comparing single values: a test holds the
two against each other.
"""

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import (
    BrokerRegistration,
    ClusterSettings,
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    PartitionState,
    TopicSettings,
)
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.base import HEARTBEAT_MS, ChangeDetector
from testbed.model.clock import SECOND, Clock
from testbed.model.groups import Group, Reader
from testbed.model.kafka import Cluster, Log

Emit = Callable[[list[Observation]], None]

NO_OFFSET = -1


class Shown:
    """The last value of a fact that was emitted: when it was, and when the fact was last seen."""

    __slots__ = ("at", "seen", "value")

    def __init__(self, value: Any, at: int) -> None:
        self.value, self.at, self.seen = value, at, at


class KafkaView:
    """The Kafka source: polls groups, commits, log offsets; also brokers and partitions where there is no ZooKeeper.

    newer: whether it reads settings, last stable offsets and eligible leader replicas too.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, emit: Emit, rng: random.Random, *, interval: int, newer: bool
    ) -> None:
        self._cluster, self._clock, self._emit, self._rng = cluster, clock, emit, rng
        self.interval = interval
        self._newer = newer
        self._reads_metadata = not cluster.has_zookeeper
        self._commits: dict[Reader, Shown] = {}
        self._groups: dict[Group, Shown] = {}
        self._logs: dict[tuple[str, int], Shown] = {}
        self._rare = ChangeDetector()
        self._held_back: set[Log] = set()
        self._known: dict[tuple[str, int], tuple[Log, int, PartitionState]] = {}
        self._commits_seen: dict[Group, tuple[int, int]] = {}
        self._metadata_at = 0
        self._brokers: set[int] = set()
        self._silent: set[Log | Group] = set()
        self._missing: set[str] = set()
        self._availability = AvailabilityTracker("kafka", cluster.name)
        self._settings_at = 0
        self.asleep_until = 0
        self._batch: list[Observation] = []
        self._unavailable: dict[Unit, str] = {}
        self._tails = False
        self._followed: list[Commit] = []
        self._returned: dict[Reader, list[Commit]] = {}
        self._held_at_poll: list[Reader] = []
        clock.every(interval, self._poll, first=rng.randrange(interval))

    def tail_commits(self) -> None:
        """Read commits from `__consumer_offsets` as they are made; only groups and logs are polled."""
        self._tails = True
        self._clock.every(SECOND, self._follow_commits, first=SECOND)

    def _follow_commits(self) -> None:
        """Emit the commits of the last second, dated exactly; those of a suspension when it is over."""
        now, known = self._clock.now, self._commits
        for group in self._cluster.groups.values():
            group.sync(now)
            if not group.has_new_commits:
                continue
            group.has_new_commits = False
            at = group.last_commit if group.last_commit > now - SECOND else now
            for reader in group.readers:
                shown = known.get(reader)
                offset = NO_OFFSET if reader.committed is None else reader.committed
                if shown is None and offset != NO_OFFSET:
                    shown = known[reader] = Shown(None, at)
                if shown is not None and shown.value != offset:
                    if shown.value in (NO_OFFSET, None):  # held until a poll has read the topics
                        self._returned.setdefault(reader, [])
                    shown.value, shown.at = offset, max(at, shown.at)
                    self._returned.get(reader, self._followed).append(self._commit(reader, shown.at, None))
                    self._commits_seen[group] = now, 0
        if self._followed and now >= self.asleep_until:
            self._emit([replace(commit, seen_at=now) for commit in self._followed])
            self._followed = []

    def _poll(self) -> None:
        if self._clock.now < self.asleep_until:
            return
        self._batch, self._unavailable = [], {}
        if not any(broker.is_up for broker in self._cluster.brokers.values()):
            self._unavailable[SOURCE] = f"No broker of {self._cluster.name} answers: Connection refused"
            self._clock.after(900, self._finish)
            return
        clock, jitter = self._clock, self._rng.randrange(8)
        self._held_at_poll = list(self._returned)
        self._read_groups()
        clock.after(4 + jitter, self._read_commits)
        clock.after(9 + 2 * jitter, self._read_logs)
        clock.after(14 + 2 * jitter, self._read_metadata)
        clock.after(18 + 3 * jitter, self._finish)

    def _finish(self) -> None:
        now = self._clock.now
        facts = [*self._rare.changes(self._availability.update(now, self._unavailable)), *self._batch]
        self._emit([Tick(at=now), *facts])
        for reader in self._held_at_poll:
            self._followed += self._returned.pop(reader, [])

    def _read_groups(self) -> None:
        at, name = self._clock.now + 2, self._cluster.name
        for group in list(self._cluster.groups.values()):
            if group.coordinator is not None and not group.coordinator.open:
                if group in self._silent or group.coordinator.leader is None:
                    self._unavailable[Unit(group=group.name)] = (
                        f"Cannot read the committed offsets of group {group.name}: its coordinator does not answer"
                    )
                self._silent.add(group)
                continue
            self._silent.discard(group)
            shown, since = self._groups.get(group), None
            if shown is not None and shown.value == group.version:
                shown.seen = at
                if at - shown.at < HEARTBEAT_MS:
                    continue
            elif shown is not None:
                since = shown.seen
            if shown is None and not group.exists:
                continue
            self._groups[group] = Shown(group.version, at)
            members = group.view()
            self._batch.append(
                GroupState(
                    at=at, since=since, cluster=name, group=group.name, state=group.state, members=members,
                    simple=group.simple, assignor=group.assignor if members else None,
                    type=group.type if self._newer else None,
                )
            )  # fmt: skip
            if not group.exists:
                del self._cluster.groups[group.name]
                self._forget_commits(group, at)

    def _forget_commits(self, group: Group, at: int) -> None:
        for reader in group.readers:
            shown = self._commits.pop(reader, None)
            if shown is not None and shown.value != NO_OFFSET:
                self._batch.append(self._commit(reader, at, self._commits_seen[group][0]))

    def _commit(self, reader: Reader, at: int, since: int | None) -> Commit:
        topic, partition = reader.log.place
        return Commit(
            at=at, since=since, cluster=self._cluster.name, group=reader.group.name, topic=topic, partition=partition,
            offset=reader.committed,
        )  # fmt: skip

    def _read_commits(self) -> None:
        at, known = self._clock.now, self._commits
        for group in self._cluster.groups.values():
            if group in self._silent:
                continue
            at += 1 if len(group.readers) % 3 == 0 else 0
            group.sync(at)
            seen_at, oldest = self._commits_seen.get(group, (at, 0))
            if self._tails:
                self._confirm_commits(group, at)
                continue
            if group.has_new_commits or at - oldest >= HEARTBEAT_MS:
                group.has_new_commits = False
                self._read_group_commits(group, at, seen_at)
                oldest = min((known[reader].at for reader in group.readers if reader in known), default=at)
            self._commits_seen[group] = at, oldest

    def _confirm_commits(self, group: Group, at: int) -> None:
        for reader in group.readers:
            shown = self._commits.get(reader)
            if shown is not None and at - shown.at >= HEARTBEAT_MS and shown.value != NO_OFFSET:
                self._batch.append(self._commit(reader, at, None))
                shown.at = at

    def _read_group_commits(self, group: Group, at: int, seen_at: int) -> None:
        batch, known = self._batch, self._commits
        for reader in group.readers:
            shown = known.get(reader)
            offset = NO_OFFSET if reader.committed is None else reader.committed
            if shown is None:
                if offset != NO_OFFSET:
                    known[reader] = Shown(offset, at)
                    batch.append(self._commit(reader, at, None))
            elif shown.value != offset:
                # The source emits only once that there is no offset, so that is when it was last seen.
                batch.append(self._commit(reader, at, shown.at if shown.value == NO_OFFSET else seen_at))
                shown.value, shown.at = offset, at
            elif at - shown.at >= HEARTBEAT_MS and offset != NO_OFFSET:
                batch.append(self._commit(reader, at, None))
                shown.at = at

    def _read_logs(self) -> None:
        at, batch, known, name = self._clock.now, self._batch, self._logs, self._cluster.name
        if len(known) > len(logs := list(self._cluster.logs())) or self._missing:
            for place in known.keys() - {log.place for log in logs}:
                del known[place]
        for log in logs:
            topic, partition = log.place
            if not log.open:
                if log.leader is None or log in self._silent:
                    reason = "the partition has no leader" if log.leader is None else "its leader does not answer"
                    self._unavailable[Unit(None, topic, partition)] = (
                        f"Cannot read the log offsets of {topic}[{partition}]: {reason}"
                    )
                self._silent.add(log)
                continue
            self._silent.discard(log)
            end = log.end(at)
            shown, since = known.get(log.place), None
            if shown is not None and shown.value == (log.start, end):
                shown.seen = at
                if at - shown.at < HEARTBEAT_MS:
                    continue
            elif shown is not None:
                since = shown.seen
            if shown is None:
                known[log.place] = Shown((log.start, end), at)
            else:
                shown.value, shown.at, shown.seen = (log.start, end), at, at
            batch.append(
                LogOffsets(
                    at=at, since=since, cluster=name, topic=topic, partition=partition, log_start=log.start, log_end=end
                )
            )
            if self._newer and log.topic.is_transactional:
                visible = log.visible(at, committed_only=True)
                stable = LastStableOffset(
                    at=at, cluster=name, topic=topic, partition=partition, offset=visible, held_back=visible < end
                )
                if stable.held_back or log in self._held_back:  # the source tells where it is held back, and its end
                    batch += self._rare.changes([stable])
                (self._held_back.add if stable.held_back else self._held_back.discard)(log)

    def _read_metadata(self) -> None:
        now, name = self._clock.now, self._cluster.name
        if self._newer and now - self._settings_at >= HEARTBEAT_MS:
            self._settings_at = now
            batch: list[Observation] = [
                ClusterSettings(
                    at=now, cluster=name,
                    offsets_retention_ms=86_400_000 if self._cluster.version < (2, 0) else 604_800_000,
                    version=".".join(map(str, self._cluster.version)),
                )
            ]  # fmt: skip
            batch += [
                TopicSettings(
                    at=now, cluster=name, topic=topic.name, cleanup_policy=topic.policy, retention_ms=topic.retention_ms
                )
                for topic in self._cluster.topics.values()
            ]
            self._batch = self._rare.changes(batch) + self._batch
        if self._reads_metadata:
            self._batch = [*self._read_partitions(now), *self._read_brokers(now), *self._batch]

    def _read_brokers(self, now: int) -> list[Observation]:
        alive = {number for number, broker in self._cluster.brokers.items() if broker.session is not None}
        known, self._brokers = self._brokers, alive
        return self._rare.changes(
            BrokerRegistration(
                at=now, cluster=self._cluster.name, broker=number, session=None, epoch=-1 if number in alive else None
            )
            for number in sorted(known | alive)
        )

    def _read_partitions(self, now: int) -> list[Observation]:
        states: list[Observation] = []
        logs = {log.place: log for log in self._cluster.logs()}
        gone = [place for place in self._known if place not in logs]
        # A topic is deleted when it is missing for the second time.
        states += [deleted(self._known.pop(place)[2], now) for place in gone if place[0] in self._missing]
        self._missing = {topic for topic, _ in gone}
        for place, log in logs.items():
            known, since = self._known.get(place), None
            if known is not None and known[0] is log and known[1] == log.version:
                if now - known[2].at < HEARTBEAT_MS:
                    continue
            elif known is not None:
                since = self._metadata_at
            state = partition_state(self._cluster.name, log, now, newer=self._newer, since=since)
            if (
                known is not None
                and since is not None
                and replace(state, at=0, since=None) == replace(known[2], at=0, since=None)
            ):
                self._known[place] = log, log.version, known[2]
                continue
            self._known[place] = log, log.version, state
            states.append(state)
        self._metadata_at = now
        return states


def partition_state(
    cluster: str, log: Log, at: int, *, newer: bool, exact: bool = False, **times: Any
) -> PartitionState:
    """Return a partition's state as a source reads it. exact: from ZooKeeper, which has leader epochs."""
    topic, partition = log.place
    return PartitionState(
        at=at, cluster=cluster, topic=topic, partition=partition, leader=log.leader,
        leader_epoch=log.epoch if exact else None, replicas=log.replicas, isr=log.isr,
        topic_id=log.topic.id or None, elr=log.elr if newer and not exact else None,
        adding=log.adding if newer else (), removing=log.removing if newer else (), **times,
    )  # fmt: skip


def deleted(state: PartitionState, at: int) -> PartitionState:
    """Return that a partition no longer exists."""
    return PartitionState(
        at=max(at, state.at), cluster=state.cluster, topic=state.topic, partition=state.partition, leader=None,
        replicas=(), isr=(), topic_id=state.topic_id,
    )  # fmt: skip
