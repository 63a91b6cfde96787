"""A small simulated Kafka cluster that suffers faults, second by second: what sources observe of it. Knows no rules."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import tomli

from agent.model.observations.base import Available, Observation, Subject, Unavailable
from agent.model.observations.checks import CheckRun
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    Controller,
    GroupState,
    LastStableOffset,
    LogOffsets,
    Member,
    PartitionState,
)
from agent.model.observations.logs import LogLine
from agent.model.observations.zookeeper import ZooKeeperHealth
from tests import simulated_flink, simulated_streams
from tests.builders import BEGINNING, CLUSTER, check_finding

BROKERS = (2005, 2011, 2024)
SECONDS = 300
FAULTS = (
    "reset", "broker_lost", "unclean_election", "broker_stopped", "topic_recreated", "offset_expired",
    "operator_reset", "retention", "log_end_dip", "source_unavailable", "controller_moved", "isr_shrunk",
    "jumped_ahead", "partition_offline", "power_loss", "check_ended", "broker_flapped", "replica_added",
    "zookeeper_server_lost", "transaction_open", "clean_election", "offsets_lost", "foreign_commit",
    *simulated_flink.FAULTS, *simulated_streams.FAULTS,
)  # fmt: skip
HALTED = tomli.loads(Path(__file__).parents[1].joinpath("rules.toml").read_text("utf-8"))["rules"]["halted"]["pattern"]
"""The shipped pattern for a broker that halts because its log is ahead of the leader's."""


class Fault(NamedTuple):
    """A fault of a kind, at a second, on a target; the kind decides what `length` and `choice` mean."""

    kind: str
    second: int
    target: int
    length: int
    choice: int


class Log:
    """One partition: its log, its leader and its replicas."""

    def __init__(self, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
        self.topic, self.partition, self.replicas = topic, partition, replicas
        self.leader: int | None = replicas[0]
        self.isr = replicas
        self.epoch = self.incarnation = 1
        self.start, self.end = 0, 20_000 + 1_000 * partition
        self.rate = 400 + 150 * partition
        self.key: dict[str, Any] = {"cluster": CLUSTER, "topic": topic, "partition": partition}


class Reader:
    """One group's position in one partition. auto: librdkafka's auto-commit, which never commits a lower offset."""

    def __init__(self, group: str, log: Log, interval: int, *, auto: bool) -> None:
        self.group, self.log, self.interval, self.auto = group, log, interval, auto
        self.position = log.end - 500
        self.committed: int | None = self.position
        self.paused = False


class SimulatedCluster:
    """Three brokers, two topics and three groups; `observations` is what sources observe, in the order of events."""

    def __init__(self, *, polled: int, lag: int, sessions: bool) -> None:
        """Start a healthy cluster.

        polled: how far back `since` lies, ms; 0: facts carry none. lag: how long after it held a fact is seen, ms.
        sessions: whether a source observes the brokers' registrations.
        """
        self.polled, self.lag, self._has_sessions = polled, lag, sessions
        self.observations: list[Observation] = []
        self.second = 0
        self.logs = [
            Log("a", 0, (2005, 2011)), Log("a", 1, (2011, 2024)), Log("a", 2, (2005, 2024)), Log("b", 0, (2024, 2005)),
            Log("b", 1, (2005, 2024)),
        ]  # fmt: skip
        self.readers = [
            *(Reader("flink", log, 2 + index % 2, auto=False) for index, log in enumerate(self.logs[:3])),
            *(Reader("stream", self.logs[index], interval, auto=True) for index, interval in ((0, 5), (1, 5), (4, 3))),
            Reader("batch", self.logs[3], 7, auto=False),
        ]
        self.sessions: dict[int, int | None] = dict.fromkeys(BROKERS, 1)
        self.states = {"flink": "Empty", "stream": "Stable", "batch": "Stable"}
        self._scheduled: list[tuple[int, Callable[[], None]]] = []
        self._last_noted: dict[Subject, int] = {}
        common = (CLUSTER, self._note, lambda after, act: self.schedule(self.second + after, act), self._at)
        self.flink, self.streams = simulated_flink.Flink(*common), simulated_streams.Streams(*common)
        self._simulators = {
            **dict.fromkeys(simulated_flink.FAULTS, self.flink), **dict.fromkeys(simulated_streams.FAULTS, self.streams)
        }  # fmt: skip

    def run(self, seconds: int, faults: Iterable[Fault]) -> list[Observation]:
        """Run for so many seconds with the faults and return the observations."""
        for fault in faults:
            self.schedule(fault.second, partial(getattr(self._simulators.get(fault.kind, self), fault.kind), fault))
        for broker in BROKERS:
            self._note_registration(broker)
        for log in self.logs:
            self._note_partition(log)
        self.controller_moved(Fault("controller_moved", 0, 0, 0, 0))
        for self.second in range(seconds):
            due = [action for at, action in self._scheduled if at <= self.second]
            self._scheduled = [(at, action) for at, action in self._scheduled if at > self.second]
            for action in due:
                action()
            self._advance()
            self.flink.live(self.second)
            self.streams.live(self.second)
        return self.observations

    def schedule(self, second: int, action: Callable[[], None]) -> None:
        self._scheduled.append((second, action))

    def reset(self, fault: Fault) -> None:
        """Rewind a reader to the log start offset, or less far, without an observable cause."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.position = (reader.log.start, max(reader.log.start, reader.position - 1_500))[fault.choice % 2]

    def jumped_ahead(self, fault: Fault) -> None:
        reader = self.readers[fault.target % len(self.readers)]
        reader.position = reader.log.start
        self.schedule(self.second + 20, lambda: setattr(reader, "position", reader.log.end))

    def foreign_commit(self, fault: Fault) -> None:
        """Commit an offset of another log, which this one never had."""
        reader = self.readers[fault.target % len(self.readers)]
        self._commit(reader, reader.log.end + 4_000_000)

    def clean_election(self, fault: Fault) -> None:
        """Elect another in-sync replica without a session loss; a reader is reset."""
        log = self.readers[fault.target % len(self.readers)].log
        if log.leader is not None:
            log.leader, log.epoch = log.isr[-1], log.epoch + 1
            self._note_partition(log)
        self.schedule(self.second + 3, partial(self.reset, fault))

    def offsets_lost(self, fault: Fault) -> None:
        """Truncate the log of committed offsets; a reader continues from an older one."""
        log = Log("__consumer_offsets", 0, BROKERS[:2])
        self._note_partition(log)

        def note(log_end: int) -> None:
            self._note(LogOffsets(at=self._at(14), log_start=0, log_end=log_end, **log.key))

        note(9_000)
        self.schedule(self.second + 2, partial(note, 4_000))
        self.schedule(self.second + 4, partial(self.reset, fault))

    def broker_lost(self, fault: Fault) -> None:
        """Expire a broker's session for a while; elections are clean if a replica is in sync."""
        self._lose_session(BROKERS[fault.target % len(BROKERS)], 3 + fault.length % 20)

    def broker_stopped(self, fault: Fault) -> None:
        self._lose_session(BROKERS[fault.target % len(BROKERS)], SECONDS * 10)

    def broker_flapped(self, fault: Fault) -> None:
        """Expire a broker's session again and again."""
        for number in range(5 + fault.length % 3):
            again = partial(self._lose_session, BROKERS[fault.target % len(BROKERS)], 2)
            self.schedule(self.second + (8 + fault.choice) * number, again)

    def replica_added(self, fault: Fault) -> None:
        """Reassign a partition to all brokers; the added replica comes in sync, or never does."""
        log = self.logs[fault.target % len(self.logs)]
        if not log.replicas:
            return
        log.replicas = tuple(dict.fromkeys((*log.replicas, *BROKERS)))
        self._note_partition(log)

        def catch_up() -> None:
            log.isr = tuple(replica for replica in log.replicas if self.sessions[replica] is not None)
            self._note_partition(log)

        if fault.choice % 2 and log.leader is not None:
            self.schedule(self.second + 20 + fault.length, catch_up)

    def zookeeper_server_lost(self, fault: Fault) -> None:
        """Stop one of three ZooKeeper servers for a while; the others serve."""
        servers = tuple(f"zk-{number}:2181" for number in range(3))
        lost = servers[fault.target % 3]
        common: dict[str, Any] = {"cluster": CLUSTER, "latency_ms": 0}
        self._note(ZooKeeperHealth(at=self._at(9), serving=servers, **common))

        def lose() -> None:
            serving = tuple(server for server in servers if server != lost)
            self._note(ZooKeeperHealth(at=self._at(9), serving=serving, unreachable=(lost,), **common))

        def restart() -> None:
            self._note(ZooKeeperHealth(at=self._at(9), serving=servers, **common))

        self.schedule(self.second + 5, lose)
        if fault.choice % 2:
            self.schedule(self.second + 10 + fault.length, restart)

    def power_loss(self, fault: Fault) -> None:
        """Lose two brokers together; they return one after the other, and checks find what that did to a log."""
        log = self.logs[fault.target % len(self.logs)]
        for number, broker in enumerate(log.replicas):
            self._lose_session(broker, 8 + fault.length % 20 + 6 * number)
        diverged_at = self._at(0) + 20_000

        def check() -> None:
            broker = log.replicas[fault.choice % 2]
            on_disk = {**log.key, "broker": broker, "file": "00000000000000000000.log"}
            self._note_check("log_segments", diverged_at - 1_000 * fault.choice, on_disk)
            self._note_check("replica_divergence", diverged_at, {**log.key, "brokers": list(log.replicas)})

        self.schedule(self.second + 45 + fault.length, check)
        if fault.choice > 2:
            self.schedule(self.second + 70 + fault.length, self._note_clean_checks)

    def check_ended(self, fault: Fault) -> None:
        """Let a check find a rewind of a job, a changelog or a reader, or the move of a reader; or let it fail."""
        subject: dict[str, Any]
        if fault.target % 3 == 1:
            check, subject = "job_history", {"cluster": CLUSTER, "job": "d7" * 16, "job_name": "clicks"}
            if fault.choice % 2:
                check, subject = (
                    "changelog_restore",
                    {"cluster": CLUSTER, "group": "shop", "topic": "c", "partition": 0},
                )
            self._note_check(check, self._at(0) - 900 * fault.length, subject)
            return
        reader = self.readers[fault.target % len(self.readers)]
        subject = {"cluster": CLUSTER, "group": reader.group, **reader.log.key}
        check = ("offset_history", "cluster_failover")[fault.choice % 2]
        self._note_check(check, self._at(0) - 900 * fault.length, subject, failed=fault.target > 4)

    def unclean_election(self, fault: Fault) -> None:
        """Expire the follower's session, then the leader's: the log is truncated and its readers are reset."""
        log = self.logs[fault.target % len(self.logs)]
        if log.leader is None or len(log.isr) < 2:
            return
        leader, follower = log.leader, next(broker for broker in log.replicas if broker != log.leader)
        self._lose_session(follower, 4)
        self.schedule(self.second + 5, partial(self._lose_session, leader, 6 + fault.length % 20))

        def truncate() -> None:
            log.end = max(log.start, log.end - 50 - 100 * (fault.length % 9))
            for index, reader in enumerate(reader for reader in self.readers if reader.log is log):
                self.schedule(self.second + 1 + (fault.choice + index) % 8, partial(reset, reader))

        def reset(reader: Reader) -> None:
            reader.position = (log.start, min(reader.position, log.end), reader.position)[fault.choice % 3]

        def elect() -> None:
            if log.leader is None:
                log.leader, log.isr, log.epoch = follower, (follower,), log.epoch + 1
                self._note_partition(log)
                truncate()

        self.schedule(self.second + 7, elect)

    def topic_recreated(self, fault: Fault) -> None:
        """Delete and create a topic again; its readers begin at offset 0."""
        topic = ("a", "b")[fault.target % 2]
        logs = [log for log in self.logs if log.topic == topic]
        for log in logs:
            replicas, log.replicas = log.replicas, ()
            self._note_partition(log)
            log.replicas = replicas
        for reader in self.readers:
            if reader.log in logs:
                reader.position = 0
                if fault.choice % 2:
                    self._commit(reader, None)
                reader.committed = None
        for log in logs:
            log.start = log.end = log.epoch = 0
            log.incarnation += 1
            self.schedule(self.second + 1 + fault.length % 3, partial(self._note_partition, log))

    def offset_expired(self, fault: Fault) -> None:
        """Expire a group's offset; it begins at the log start or log end offset."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.paused = True
        self._commit(reader, None)

        def resume() -> None:
            reader.paused = False
            reader.position = (reader.log.start, reader.log.end)[fault.choice % 2]

        self.schedule(self.second + 2 + fault.length, resume)

    def operator_reset(self, fault: Fault) -> None:
        """Let an operator stop a group, move its offsets and start it again."""
        group = ("flink", "stream", "batch")[fault.target % 3]
        readers = [reader for reader in self.readers if reader.group == group]
        has_members = self.states[group] == "Stable"
        for reader in readers:
            reader.paused = True
        if has_members:
            self._note_group(group, "Empty")

        def move() -> None:
            for reader in readers:
                reader.position = (reader.log.start, reader.log.end)[fault.choice % 2]
                self._commit(reader, reader.position)

        def start() -> None:
            for reader in readers:
                reader.paused = False
            if has_members:
                self._note_group(group, "Stable")

        self.schedule(self.second + 10 + fault.length, move)
        self.schedule(self.second + 30 + fault.length, start)

    def retention(self, fault: Fault) -> None:
        """Raise the log start offset to the log end offset, past a reader that does not move."""
        log = self.logs[fault.target % len(self.logs)]
        for reader in self.readers:
            if reader.log is log and fault.choice % 2:
                reader.paused = True
                self.schedule(self.second + 20, partial(setattr, reader, "paused", False))
        self.schedule(self.second + fault.length % 10, lambda: setattr(log, "start", log.end))

    def log_end_dip(self, fault: Fault) -> None:
        """Lower the log end offset for a moment (the high watermark), or for good."""
        log = self.logs[fault.target % len(self.logs)]
        previous_end, log.end = log.end, max(log.start, log.end - 6_000)
        if fault.choice % 2:
            self.schedule(self.second + 3, lambda: setattr(log, "end", max(log.end, previous_end)))

    def isr_shrunk(self, fault: Fault) -> None:
        """Shrink the ISR to the leader; the follower's broker logs that it halts."""
        log = self.logs[fault.target % len(self.logs)]
        if log.leader is not None:
            log.isr = (log.leader,)
            self._note_partition(log)
            self._note(
                LogLine(at=self._at(7), log="server.log", component="kafka", pattern=HALTED, text="halts", **log.key)
            )

    def transaction_open(self, fault: Fault) -> None:
        """Keep a reader waiting behind an open transaction, for a while or to the end."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.paused = True
        place = {**reader.log.key, "offset": reader.committed or reader.log.end}
        self._note(LastStableOffset(at=self._at(5), **place))
        if fault.choice % 2:
            self.schedule(self.second + 4 * fault.length, lambda: self._end_transaction(reader))

    def _end_transaction(self, reader: Reader) -> None:
        reader.paused = False
        self._note(LastStableOffset(at=self._at(5), **reader.log.key, offset=reader.log.end, held_back=False))

    def partition_offline(self, fault: Fault) -> None:
        log = self.logs[fault.target % len(self.logs)]
        log.leader, log.epoch = None, log.epoch + 1
        self._note_partition(log)

    def source_unavailable(self, fault: Fault) -> None:
        """Make a part of the cluster unavailable to a source for a while."""
        source = ("kafka", "zookeeper")[fault.choice % 2]
        group = "flink" if source == "kafka" and fault.target % 2 else None
        where: dict[str, Any] = {"source": source, "cluster": CLUSTER, "group": group}
        self._note(Unavailable(at=self._at(9), reason="it does not answer", **where))
        self.schedule(self.second + 30 + 4 * fault.length, lambda: self._note(Available(at=self._at(9), **where)))

    def controller_moved(self, fault: Fault) -> None:
        self._note(Controller(at=self._at(8), cluster=CLUSTER, broker=BROKERS[fault.target % 3], epoch=self.second))

    def _note_check(self, check: str, at: int, subject: dict[str, Any], *, failed: bool = False) -> None:
        if not failed:
            self._note(check_finding(check, self._at(45), at, subject))
        self._note_run(check, 45, "failed" if failed else "found", complete=self.second % 2 == 0)

    def _note_clean_checks(self) -> None:
        for check in ("log_segments", "replica_divergence"):
            self._note_run(check, 46, "clean", complete=True)

    def _note_run(
        self, check: str, phase: int, outcome: Literal["clean", "found", "failed"], *, complete: bool
    ) -> None:
        at, began = self._at(phase), self._at(phase) - 9_000
        run = CheckRun(at=at, cluster=CLUSTER, check=check, started_at=began, complete=complete, outcome=outcome)
        self._note(run)

    def _advance(self) -> None:
        for index, log in enumerate(self.logs):
            if log.leader is not None:
                log.end += log.rate
                if (self.second + index) % 5 == 0:
                    self._note(LogOffsets(at=self._at(10 + index), log_start=log.start, log_end=log.end, **log.key))
        for index, reader in enumerate(self.readers):
            if reader.paused or reader.log.leader is None:
                continue
            reader.position = max(min(reader.log.end, reader.position + 3 * reader.log.rate), reader.log.start)
            if (self.second + index) % reader.interval == 0:
                self._commit(reader, max(reader.position, reader.committed or 0) if reader.auto else reader.position)
        for index, (group, state) in enumerate(self.states.items()):
            if (self.second + index) % 30 == 0:
                self._note_group(group, state)

    def _lose_session(self, broker: int, seconds: int) -> None:
        if self.sessions[broker] is None:
            return
        session, self.sessions[broker] = self.sessions[broker] or 0, None
        self._note_registration(broker)
        for log in self.logs:
            if broker not in log.replicas:
                continue
            remaining = tuple(replica for replica in log.isr if replica != broker)
            if log.leader == broker:
                log.leader, log.epoch = (remaining[0] if remaining else None), log.epoch + 1
            log.isr = remaining or log.isr
            self._note_partition(log)

        def register_again() -> None:
            self.sessions[broker] = session + 1
            self._note_registration(broker)

        def catch_up() -> None:
            for log in self.logs:
                if broker in log.replicas and self.sessions[broker] is not None:
                    log.isr = tuple(replica for replica in log.replicas if self.sessions[replica] is not None)
                    if log.leader is None or log.replicas[0] == broker:
                        log.leader, log.epoch = broker, log.epoch + 1
                    self._note_partition(log)

        self.schedule(self.second + seconds, register_again)
        self.schedule(self.second + seconds + 5, catch_up)

    def _note_registration(self, broker: int) -> None:
        if self._has_sessions:
            number = self.sessions[broker]
            session, epoch = (None, None) if number is None else (f"0x{broker:x}{number:04x}", 100 * number)
            at = self._at(broker % 7)
            self._note(BrokerRegistration(at=at, cluster=CLUSTER, broker=broker, session=session, epoch=epoch))

    def _note_partition(self, log: Log) -> None:
        self._note(
            PartitionState(
                at=self._at(20 + log.partition), leader=log.leader if log.replicas else None, leader_epoch=log.epoch,
                replicas=log.replicas, isr=log.isr if log.replicas else (), topic_id=f"czxid:{log.incarnation}",
                **log.key,
            )
        )  # fmt: skip

    def _commit(self, reader: Reader, offset: int | None) -> None:
        reader.committed = offset
        self._note(Commit(at=self._at(30 + reader.interval), group=reader.group, offset=offset, **reader.log.key))

    def _note_group(self, group: str, state: str) -> None:
        self.states[group] = state
        partitions = tuple((reader.log.topic, reader.log.partition) for reader in self.readers if reader.group == group)
        members = (Member(f"{group}-1", "/10.0.0.1", partitions),) if state == "Stable" else ()
        self._note(GroupState(at=self._at(40), cluster=CLUSTER, group=group, state=state, members=members))

    def _at(self, phase: int) -> int:
        return BEGINNING + self.second * 1_000 + 19 * phase

    def _note(self, observation: Observation) -> None:
        subject = observation.subject
        noted = self._last_noted.get(subject)
        since = max(noted, observation.at - self.polled) if self.polled and noted is not None else None
        self._last_noted[subject] = observation.at
        seen_at = observation.at + self.lag if self.lag else None
        self.observations.append(msgspec.structs.replace(observation, since=since, seen_at=seen_at))


def simulate(faults: Iterable[Fault], *, polled: int = 0, lag: int = 0, sessions: bool = True) -> list[Observation]:
    """Return what sources observe of a cluster that suffers these faults, in the order of events."""
    return SimulatedCluster(polled=polled, lag=lag, sessions=sessions).run(SECONDS, faults)
