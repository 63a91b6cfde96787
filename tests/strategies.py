"""Streams of observations for property tests: wild ones, and those of a small simulated cluster that suffers faults.

The simulation knows nothing of rules: second by second it moves logs, leaders, sessions and readers and notes what
sources would see.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tomli
from hypothesis import strategies as st

from agent.engine.facts import LATENESS_MS
from agent.model.findings import Finding, Records, Severity, finding_json
from agent.model.observations.base import Available, Observation, Subject, Tick, Unavailable
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    Controller,
    GroupState,
    LogOffsets,
    Member,
    PartitionState,
)
from agent.model.observations.logs import LogLine
from agent.model.observations.streams import ChangelogDecreases, Decrease, TaskRestore
from agent.model.times import millis
from tests import simulated_flink, simulated_streams
from tests.simulated_flink import FLINK, Flink
from tests.simulated_streams import Streams

BEGINNING = millis("2026-11-20T23:00:00Z")
CLUSTER = "main"
BROKERS = (2005, 2011, 2024)
FAULTS = (
    "reset", "lost", "unclean", "stopped", "recreated", "expired", "operator", "retention", "dip", "blind",
    "controller", "shrunk", "leapt", "leaderless", "power", "checked", *simulated_flink.FAULTS,
    *simulated_streams.FAULTS,
)  # fmt: skip
SECONDS = 300


class Fault(NamedTuple):
    """Something that goes wrong: kind, second, which target, and two numbers that the kind reads as it likes."""

    kind: str
    second: int
    target: int
    length: int
    choice: int


class Log:
    """One partition: its log, its leader and its replicas."""

    def __init__(self, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
        """A healthy partition with a backlog."""
        self.topic, self.partition, self.replicas = topic, partition, replicas
        self.leader: int | None = replicas[0]
        self.isr = replicas
        self.epoch = 1
        self.incarnation = 1
        self.start, self.end = 0, 20_000 + 1_000 * partition
        self.rate = 400 + 150 * partition


class Reader:
    """One group's place in one partition. auto: librdkafka's auto-commit, which never goes back."""

    def __init__(self, group: str, log: Log, interval: int, *, auto: bool) -> None:
        """A reader close to the log's end."""
        self.group, self.log, self.interval, self.auto = group, log, interval, auto
        self.position = log.end - 500
        self.committed: int | None = self.position
        self.paused = False


class World:
    """A cluster of three brokers, two topics and three groups; `lines` is what sources saw, in the order of events."""

    def __init__(self, *, polled: int, lag: int, sessions: bool) -> None:
        """polled: how far back `since` lies, ms; 0: facts carry none. lag: how long after it held a fact is seen, ms.

        sessions: whether anybody sees the brokers' registrations.
        """
        self.polled, self.lag, self.registered = polled, lag, sessions
        self.lines: list[Observation] = []
        self.second = 0
        self.logs = [
            Log("a", 0, (2005, 2011)), Log("a", 1, (2011, 2024)), Log("a", 2, (2005, 2024)), Log("b", 0, (2024, 2005)),
            Log("b", 1, (2005, 2024)),
        ]  # fmt: skip
        self.readers = [
            *(Reader("flink", log, 2 + index % 2, auto=False) for index, log in enumerate(self.logs[:3])),
            Reader("stream", self.logs[0], 5, auto=True),
            Reader("stream", self.logs[1], 5, auto=True),
            Reader("stream", self.logs[4], 3, auto=True),
            Reader("batch", self.logs[3], 7, auto=False),
        ]
        self.sessions: dict[int, int | None] = dict.fromkeys(BROKERS, 1)
        self.states = {"flink": "Empty", "stream": "Stable", "batch": "Stable"}
        self.planned: list[tuple[int, Callable[[], None]]] = []
        self._sighted: dict[Subject, int] = {}
        seen = (CLUSTER, self._note, lambda after, act: self.later(self.second + after, act), self._at)
        self.flink, self.streams = Flink(*seen), Streams(*seen)
        self.sufferers = {
            **dict.fromkeys(simulated_flink.FAULTS, self.flink), **dict.fromkeys(simulated_streams.FAULTS, self.streams)
        }  # fmt: skip

    def run(self, seconds: int, faults: Iterable[Fault]) -> list[Observation]:
        """Live for so long and suffer the faults."""
        for fault in faults:
            self.later(fault.second, partial(getattr(self.sufferers.get(fault.kind, self), fault.kind), fault))
        for broker in BROKERS:
            self._register(broker)
        for log in self.logs:
            self._state(log)
        self.controller(Fault("controller", 0, 0, 0, 0))
        for self.second in range(seconds):
            due = [action for at, action in self.planned if at <= self.second]
            self.planned = [(at, action) for at, action in self.planned if at > self.second]
            for action in due:
                action()
            self._live()
            self.flink.live(self.second)
            self.streams.live(self.second)
        return self.lines

    def later(self, second: int, action: Callable[[], None]) -> None:
        """Plan something."""
        self.planned.append((second, action))

    def reset(self, fault: Fault) -> None:
        """A reader goes back to the log's start, or not as far, for no reason that anyone sees."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.position = (reader.log.start, max(reader.log.start, reader.position - 1_500))[fault.choice % 2]

    def leapt(self, fault: Fault) -> None:
        """A reader that had fallen behind leaps to the log's end."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.position = reader.log.start
        self.later(self.second + 20, lambda: setattr(reader, "position", reader.log.end))

    def lost(self, fault: Fault) -> None:
        """A broker loses its session and comes back: clean elections where there is a choice."""
        self._lose(BROKERS[fault.target % len(BROKERS)], 3 + fault.length % 20)

    def stopped(self, fault: Fault) -> None:
        """A broker goes for good."""
        self._lose(BROKERS[fault.target % len(BROKERS)], SECONDS * 10)

    def power(self, fault: Fault) -> None:
        """Two brokers are lost together and come back one after the other; checks find what that did to a log."""
        log = self.logs[fault.target % len(self.logs)]
        for number, broker in enumerate(log.replicas):
            self._lose(broker, 8 + fault.length % 20 + 6 * number)
        struck = self._at(0) + 20_000
        position = {"cluster": CLUSTER, "topic": log.topic, "partition": log.partition}

        def check() -> None:
            broker = log.replicas[fault.choice % 2]
            on_disk = {**position, "broker": broker, "file": "00000000000000000000.log"}
            self._checked("log_segments", struck - 1_000 * fault.choice, on_disk)
            self._checked("replica_divergence", struck, {**position, "brokers": list(log.replicas)})

        self.later(self.second + 45 + fault.length, check)
        if fault.choice > 2:
            self.later(self.second + 70 + fault.length, self._mended)

    def checked(self, fault: Fault) -> None:
        """A check looks at the history of a job, a changelog or a reader and finds what went back; or it fails."""
        if fault.target % 3 == 1:
            check = "job_history"
            what: dict[str, Any] = {"cluster": CLUSTER, "job": "d7" * 16, "job_name": "clicks"}
            if fault.choice % 2:
                check, what = "changelog_restore", {"cluster": CLUSTER, "group": "shop", "topic": "c", "partition": 0}
            self._checked(check, self._at(0) - 900 * fault.length, what)
            return
        reader = self.readers[fault.target % len(self.readers)]
        subject = {"group": reader.group, "topic": reader.log.topic, "partition": reader.log.partition}
        self._checked(
            "offset_history", self._at(0) - 900 * fault.length, {"cluster": CLUSTER, **subject}, failed=fault.target > 4
        )

    def unclean(self, fault: Fault) -> None:
        """The follower loses its session, then the leader does: the log is cut short and its readers are reset."""
        log = self.logs[fault.target % len(self.logs)]
        if log.leader is None or len(log.isr) < 2:
            return
        leader, follower = log.leader, next(one for one in log.replicas if one != log.leader)
        self._lose(follower, 4)
        self.later(self.second + 5, lambda: self._lose(leader, 6 + fault.length % 20))

        def cut() -> None:
            log.end = max(log.start, log.end - 50 - 100 * (fault.length % 9))
            for index, reader in enumerate(one for one in self.readers if one.log is log):
                self.later(self.second + 1 + (fault.choice + index) % 8, partial(go_back, reader))

        def go_back(reader: Reader) -> None:
            reader.position = (log.start, min(reader.position, log.end), reader.position)[fault.choice % 3]

        def elect() -> None:
            if log.leader is None:
                log.leader, log.isr, log.epoch = follower, (follower,), log.epoch + 1
                self._state(log)
                cut()

        self.later(self.second + 7, elect)

    def recreated(self, fault: Fault) -> None:
        """A topic is deleted and created again; its readers start anew."""
        topic = ("a", "b")[fault.target % 2]
        logs = [one for one in self.logs if one.topic == topic]
        for log in logs:
            log.replicas, was = (), log.replicas
            self._state(log)
            log.replicas = was
        for reader in self.readers:
            if reader.log in logs:
                reader.position = 0
                if fault.choice % 2:
                    self._commit(reader, None)
                reader.committed = None
        for log in logs:
            log.start = log.end = 0
            log.incarnation += 1
            log.epoch = 0
            self.later(self.second + 1 + fault.length % 3, partial(self._state, log))

    def expired(self, fault: Fault) -> None:
        """A group's offset is forgotten, and it begins at the log's start or end."""
        reader = self.readers[fault.target % len(self.readers)]
        reader.paused = True
        self._commit(reader, None)

        def back() -> None:
            reader.paused = False
            reader.position = (reader.log.start, reader.log.end)[fault.choice % 2]

        self.later(self.second + 2 + fault.length, back)

    def operator(self, fault: Fault) -> None:
        """An operator stops a group, moves its offsets, and starts it again."""
        group = ("flink", "stream", "batch")[fault.target % 3]
        mine = [one for one in self.readers if one.group == group]
        has_members = self.states[group] == "Stable"
        for reader in mine:
            reader.paused = True
        if has_members:
            self.states[group] = "Empty"
            self._group(group)

        def move() -> None:
            for reader in mine:
                reader.position = (reader.log.start, reader.log.end)[fault.choice % 2]
                self._commit(reader, reader.position)

        def start() -> None:
            for reader in mine:
                reader.paused = False
            if has_members:
                self.states[group] = "Stable"
                self._group(group)

        self.later(self.second + 10 + fault.length, move)
        self.later(self.second + 30 + fault.length, start)

    def retention(self, fault: Fault) -> None:
        """The log's start rises to its end, past a reader that stands still."""
        log = self.logs[fault.target % len(self.logs)]
        for reader in self.readers:
            if reader.log is log and fault.choice % 2:
                reader.paused = True
                self.later(self.second + 20, partial(setattr, reader, "paused", False))
        self.later(self.second + fault.length % 10, lambda: setattr(log, "start", log.end))

    def dip(self, fault: Fault) -> None:
        """The high watermark falls for a moment, or the log for good."""
        log = self.logs[fault.target % len(self.logs)]
        was, log.end = log.end, max(log.start, log.end - 6_000)
        if fault.choice % 2:
            self.later(self.second + 3, lambda: setattr(log, "end", max(log.end, was)))

    def shrunk(self, fault: Fault) -> None:
        """A follower leaves the ISR for a while: its broker does not like its own log."""
        log = self.logs[fault.target % len(self.logs)]
        if log.leader is not None:
            log.isr = (log.leader,)
            self._state(log)
            place: dict[str, Any] = {"cluster": CLUSTER, "topic": log.topic, "partition": log.partition}
            self._note(
                LogLine(at=self._at(7), log="server.log", component="kafka", pattern=HALTED, text="halts", **place)
            )

    def leaderless(self, fault: Fault) -> None:
        """Nobody leads a partition any more."""
        log = self.logs[fault.target % len(self.logs)]
        log.leader, log.epoch = None, log.epoch + 1
        self._state(log)

    def blind(self, fault: Fault) -> None:
        """A source does not see a part of the cluster for a while."""
        source = ("kafka", "zookeeper")[fault.choice % 2]
        group = "flink" if source == "kafka" and fault.target % 2 else None
        self._note(
            Unavailable(at=self._at(9), source=source, cluster=CLUSTER, reason="it does not answer", group=group)
        )
        self.later(
            self.second + 30 + 4 * fault.length,
            lambda: self._note(Available(at=self._at(9), source=source, cluster=CLUSTER, group=group)),
        )

    def controller(self, fault: Fault) -> None:
        """Another broker is the controller."""
        self._note(Controller(at=self._at(8), cluster=CLUSTER, broker=BROKERS[fault.target % 3], epoch=self.second))

    def _checked(self, check: str, at: int, subject: dict[str, Any], *, failed: bool = False) -> None:
        """A run of a check ends: with a finding, or without an end."""
        ended = self._at(45)
        if not failed:
            self._note(check_finding(check, ended, at, subject))
        self._note(
            CheckRun(
                at=ended, cluster=CLUSTER, check=check, started_at=ended - 9_000, complete=self.second % 2 == 0,
                outcome="failed" if failed else "found",
            )
        )  # fmt: skip

    def _mended(self) -> None:
        """Checks look at everything and find nothing any more."""
        for check in ("log_segments", "replica_divergence"):
            ended = self._at(46)
            self._note(
                CheckRun(
                    at=ended, cluster=CLUSTER, check=check, started_at=ended - 9_000, complete=True, outcome="clean"
                )
            )

    def _live(self) -> None:
        for index, log in enumerate(self.logs):
            if log.leader is not None:
                log.end += log.rate
                if (self.second + index) % 5 == 0:
                    self._note(
                        LogOffsets(
                            at=self._at(10 + index), cluster=CLUSTER, topic=log.topic, partition=log.partition,
                            log_start=log.start, log_end=log.end,
                        )
                    )  # fmt: skip
        for index, reader in enumerate(self.readers):
            if reader.paused or reader.log.leader is None:
                continue
            reader.position = max(min(reader.log.end, reader.position + 3 * reader.log.rate), reader.log.start)
            if (self.second + index) % reader.interval == 0:
                self._commit(reader, max(reader.position, reader.committed or 0) if reader.auto else reader.position)
        for index, group in enumerate(self.states):
            if (self.second + index) % 30 == 0:
                self._group(group)

    def _lose(self, broker: int, seconds: int) -> None:
        if self.sessions[broker] is None:
            return
        session, self.sessions[broker] = self.sessions[broker] or 0, None
        self._register(broker)
        for log in self.logs:
            if broker not in log.replicas:
                continue
            left = tuple(one for one in log.isr if one != broker)
            if log.leader == broker:
                log.leader, log.epoch = (left[0] if left else None), log.epoch + 1
            log.isr = left or log.isr
            self._state(log)

        def back() -> None:
            self.sessions[broker] = session + 1
            self._register(broker)

        def recover() -> None:
            for log in self.logs:
                if broker in log.replicas and self.sessions[broker] is not None:
                    alive = tuple(one for one in log.replicas if self.sessions[one] is not None)
                    log.isr = alive
                    if log.leader is None or log.replicas[0] == broker:
                        log.leader, log.epoch = broker, log.epoch + 1
                    self._state(log)

        self.later(self.second + seconds, back)
        self.later(self.second + seconds + 5, recover)

    def _register(self, broker: int) -> None:
        session = self.sessions[broker]
        if not self.registered:
            return
        self._note(
            BrokerRegistration(
                at=self._at(broker % 7), cluster=CLUSTER, broker=broker,
                session=None if session is None else f"0x{broker:x}{session:04x}",
                epoch=None if session is None else 100 * session,
            )
        )  # fmt: skip

    def _state(self, log: Log) -> None:
        self._note(
            PartitionState(
                at=self._at(20 + log.partition), cluster=CLUSTER, topic=log.topic, partition=log.partition,
                leader=log.leader if log.replicas else None, leader_epoch=log.epoch, replicas=log.replicas,
                isr=log.isr if log.replicas else (), topic_id=f"czxid:{log.incarnation}",
            )
        )  # fmt: skip

    def _commit(self, reader: Reader, offset: int | None) -> None:
        reader.committed = offset
        self._note(
            Commit(
                at=self._at(30 + reader.interval), cluster=CLUSTER, group=reader.group, topic=reader.log.topic,
                partition=reader.log.partition, offset=offset,
            )
        )  # fmt: skip

    def _group(self, group: str) -> None:
        stable = self.states[group] == "Stable"
        partitions = tuple((one.log.topic, one.log.partition) for one in self.readers if one.group == group)
        members = (Member(f"{group}-1", "/10.0.0.1", partitions),) if stable else ()
        self._note(GroupState(at=self._at(40), cluster=CLUSTER, group=group, state=self.states[group], members=members))

    def _at(self, phase: int) -> int:
        return BEGINNING + self.second * 1_000 + 19 * phase

    def _note(self, observation: Observation) -> None:
        subject = observation.subject
        sighted = self._sighted.get(subject)
        since = max(sighted, observation.at - self.polled) if self.polled and sighted is not None else None
        self._sighted[subject] = observation.at
        seen_at = observation.at + self.lag if self.lag else None
        self.lines.append(msgspec.structs.replace(observation, since=since, seen_at=seen_at))


HALTED = tomli.loads(Path(__file__).parents[1].joinpath("rules.toml").read_text("utf-8"))["rules"]["halted"]["pattern"]
"""The pattern shipped for a broker that gives up on its own log."""


def check_finding(check: str, seen: int, at: int, subject: dict[str, Any]) -> CheckFinding:
    """What a run that ended at `seen` found."""
    found = Finding(
        rule=check, kind=check, severity=Severity.WARNING, at=at, subject=subject, detail=f"{check} found it",
        previous={"offset": 7_000}, current={"offset": 5_000}, records=Records(reread=2_000),
    )  # fmt: skip
    keys = {name: subject.get(name) for name in ("group", "topic", "partition", "broker")}
    return CheckFinding(at=seen, cluster=CLUSTER, check=check, finding=finding_json(found), **keys)


def suffered(faults: Iterable[Fault], *, polled: int = 0, lag: int = 0, sessions: bool = True) -> list[Observation]:
    """What sources saw of a cluster that suffered these faults, in the order of events."""
    return World(polled=polled, lag=lag, sessions=sessions).run(SECONDS, faults)


def ticks(observations: Sequence[Observation], every: int) -> list[Observation]:
    """Ticks over the span of the observations, so many ms apart."""
    begin, end = min(one.at for one in observations), max(one.at for one in observations)
    return [Tick(at=at) for at in range(begin, end, every)]


def late(observations: Sequence[Observation], delays: Sequence[int], wobble: int) -> list[Observation]:
    """The observations as they come when each subject has one of these delays, ms, and each up to `wobble` more.

    At most a minute in all, and each subject's own order is kept.
    """
    delay: dict[Subject, int] = {}
    latest: dict[Subject, int] = {}
    keyed = []
    for number, one in enumerate(observations):
        subject = one.subject
        mine = delay.setdefault(subject, delays[len(delay) % len(delays)])
        comes = one.at + min(mine + (number * 7_919 % wobble if wobble else 0), LATENESS_MS)
        latest[subject] = max(comes, latest.get(subject, comes))
        keyed.append((latest[subject], mine, number))
    return [observations[number] for *_, number in sorted(keyed)]


def cut(observations: Sequence[Observation], sizes: Sequence[int]) -> Iterator[Sequence[Observation]]:
    """The observations in batches of these sizes, over and over."""
    begin = 0
    for size in cycle(sizes):
        if begin >= len(observations):
            return
        yield observations[begin : begin + size]
        begin += size


faults = st.lists(
    st.builds(
        Fault, st.sampled_from(FAULTS), st.integers(20, 200), st.integers(0, 6), st.integers(0, 40), st.integers(0, 5)
    ),
    min_size=1,
    max_size=5,
)
scenarios = st.builds(
    suffered,
    faults,
    polled=st.sampled_from([0, 5_000, 1_000_000]),
    lag=st.sampled_from([0, 0, 900, 20_000]),
    sessions=st.sampled_from([True, True, False]),
)
delays = st.lists(st.integers(0, LATENESS_MS) | st.sampled_from([0, LATENESS_MS]), min_size=8, max_size=24)
wobbles = st.sampled_from([0, 0, 5_000, 40_000])
sizes = st.lists(st.integers(1, 400), min_size=1, max_size=4) | st.sampled_from([[1], [1_000_000]])

_offsets = st.none() | st.integers(0, 30).map(lambda one: one * 700) | st.sampled_from([-1, -1001, 2**62, -(2**62)])
_known = st.integers(0, 30).map(lambda one: one * 700) | st.sampled_from([-1, 2**62, -(2**62)])
_brokers = st.sampled_from([1, 2, 3])
_partition = {"topic": st.sampled_from(["t", "u"]), "partition": st.sampled_from([0, 1])}
_ids = st.lists(_brokers, max_size=3).map(tuple)
_members = st.lists(
    st.builds(
        Member,
        id=st.sampled_from(["m", "n"]),
        partitions=st.sampled_from([(), (("t", 0),), (("t", 1), ("u", 0))]),
        client_id=st.sampled_from([None, "m-consumer"]),
    ),
    max_size=2,
).map(tuple)


_times = {
    "at": st.just(0),
    "seen_at": st.sampled_from([None, None, None, -5_000, 30_000]),
    "since": st.sampled_from([None, None, 0, -4_000, -200_000, 9_000]),
    "cluster": st.just(CLUSTER),
}
_sight = {
    **_times,
    "source": st.sampled_from(["kafka", "zookeeper"]),
    "group": st.sampled_from([None, "g"]),
    "topic": st.sampled_from([None, "t"]),
    "partition": st.sampled_from([None, 0]),
}
_group = st.sampled_from(["g", "h"])
_checks = st.sampled_from(["log_segments", "replica_divergence", "offset_history"])
_jobs = {**_times, "cluster": st.just(FLINK), "job": st.sampled_from(["j", "k"])}
_count = st.sampled_from([0, 1, 4, 9])
_past = st.sampled_from([None, 0, BEGINNING, BEGINNING + 4_000, BEGINNING + 90_000])
_session = st.sampled_from([None, "0x1", "0x2"])
_files = st.sampled_from(["submittedJobGraph0", "submittedExecutionPlan1"])
_flink: list[st.SearchStrategy[Observation]] = [
    st.builds(
        FlinkJob, **_jobs, name=st.just("n"), started_at=st.sampled_from([0, BEGINNING, BEGINNING + 50_000]),
        state=st.sampled_from(["RUNNING", "RUNNING", "RESTARTING", "CREATED", "CANCELED", "SUSPENDED", "?"]),
        restarting_at=_past, tasks=_count, tasks_running=_count,
    ),
    st.builds(
        JobListing, **(_times | {"cluster": st.just(FLINK)}), jobs=st.sampled_from([(), ("j",), ("j", "k"), ("k",)])
    ),
    st.builds(
        Checkpoints, **_jobs, completed=_count, failed=_count, restored=_count, last=st.none() | _count,
        restored_id=st.none() | _count, restored_at=_past,
    ),
    st.builds(
        JobManagerLeader, **(_times | {"cluster": st.just(FLINK)}), address=st.sampled_from([None, "a", "b"]),
        leader_id=st.sampled_from([None, "x", "y"]), session=_session,
    ),
    st.builds(
        JobGraph, **_jobs, made_at=_past, locks=st.sampled_from([(), ("0x1",), ("0x1", "0x2")]),
        file=st.none() | _files, checkpoints=st.none() | _count,
    ),
    st.builds(JobGraphFile, **(_times | {"cluster": st.just(FLINK)}), file=_files, modified_at=_past),
    st.builds(
        Position, **_times, **_partition, flink=st.just(FLINK), job=st.sampled_from(["j", "k"]), name=st.just("n"),
        offset=_known, committed=_offsets,
    ),
    st.builds(
        LogLine, **_times, topic=st.sampled_from([None, "t"]), partition=st.sampled_from([None, 0]), log=st.just("l"),
        component=st.just("consumer"), text=st.just(""), job=st.sampled_from([None, "j"]),
        pattern=st.sampled_from(["fetch_offset_out_of_range", "truncation_detected", "offset_reset", "other"]),
        values=st.sampled_from([{}, {"offset": "7"}, {"offset": "INVALID"}, {"to": "0"}, {"to": "9" * 30}]),
    ),
]  # fmt: skip
_streams: list[st.SearchStrategy[Observation]] = [
    st.builds(
        ChangelogDecreases, **_times, topic=st.sampled_from(["t", "g-s-changelog"]), partition=st.just(0),
        application=_group, store=st.just("s"),
        began_at=st.sampled_from([0, BEGINNING, BEGINNING + 20_000]), keys=_count, total=_count, first_offset=_count,
        worst=st.sampled_from([(), (Decrease("k", 9, 1, 7),)]),
        sum_before=st.none() | _known, sum_after=st.none() | _known,
        sum_at=st.sampled_from([None, BEGINNING, BEGINNING + 40_000]),
    ),
    st.builds(
        LogLine, **_times, topic=st.sampled_from([None, "g-s-changelog"]), partition=st.sampled_from([None, 0]),
        log=st.just("l"), component=st.just("streams"), text=st.sampled_from(["", "stream-thread [m] it"]),
        pattern=st.sampled_from(["store_without_checkpoint", "store_restored"]),
        values=st.sampled_from([
            {}, {"store": "s"}, {"store": "s", "task": "0_0"}, {"store": "g-s-changelog-0", "task": "0_0"},
            {"store": "s", "records": "0"}, {"store": "s", "records": "9" * 30},
        ]),
    ),
    st.builds(
        TaskRestore, **_times, application=st.just("g"), endpoint=st.sampled_from(["a", "b"]), task=st.just("0_0"),
        thread=st.sampled_from([None, "m", "n"]), stores=st.sampled_from([(), ("s",), ("s", "t")]),
        restored_total=st.sampled_from([None, 0, 7]),
    ),
    st.builds(
        LogOffsets, **_times, topic=st.just("g-s-changelog"), partition=st.just(0), log_start=_known, log_end=_known
    ),
]  # fmt: skip
_anything: st.SearchStrategy[Observation] = st.one_of(
    st.builds(Commit, **_times, **_partition, group=_group, offset=_offsets, leader_epoch=st.sampled_from([None, 3])),
    st.builds(LogOffsets, **_times, **_partition, log_start=_known, log_end=_known),
    st.builds(
        PartitionState, **_times, **_partition, leader=st.sampled_from([None, -1, 1, 2, 3]), replicas=_ids, isr=_ids,
        leader_epoch=st.sampled_from([None, 0, 4]), topic_id=st.sampled_from([None, "x", "y"]),
    ),
    st.builds(
        BrokerRegistration, **_times, broker=_brokers, session=st.sampled_from([None, "0x1", "0x2"]),
        epoch=st.sampled_from([None, -1, 5]),
    ),
    st.builds(Controller, **_times, broker=st.sampled_from([None, 1, 2])),
    st.builds(
        GroupState, **_times, group=_group, members=_members,
        state=st.sampled_from(["Empty", "Stable", "Dead", "PreparingRebalance", "CompletingRebalance"]),
        simple=st.sampled_from([None, True, False]),
    ),
    st.builds(
        CheckFinding, **_times, **_partition, check=_checks, broker=st.sampled_from([None, 1]),
        finding=st.sampled_from([
            "", "{}", check_finding("log_segments", 0, BEGINNING, {"topic": "t", "partition": 0, "broker": 1}).finding,
        ]),
    ),
    st.builds(
        CheckRun, **_times, check=_checks, started_at=st.just(0), complete=st.booleans(),
        outcome=st.sampled_from(["clean", "found", "failed"]),
    ),
    *_flink,
    *_streams,
    st.builds(Unavailable, **_sight, reason=st.just("no answer")),
    st.builds(Available, **_sight),
    st.builds(Tick, at=st.just(0)),
)  # fmt: skip
_FIRST, _LAST = millis("0001-01-01T00:10:00Z"), millis("9999-12-31T23:00:00Z")
_beginnings = st.sampled_from([BEGINNING, BEGINNING, 0, _FIRST, _LAST])
_steps = st.sampled_from([0, 0, 1, 900, 2_000, 5_000, 20_000, -3_000, -70_000, 400_000])
_wild = st.lists(st.tuples(_steps, _anything), max_size=60)


@st.composite
def wild(draw: st.DrawFn) -> list[Observation]:
    """Any observations at all: few keys, any values, times equal, backwards, far apart, `since` after `at`."""
    at = draw(_beginnings)
    found: list[Observation] = []
    for step, one in draw(_wild):
        at = min(max(at + step, _FIRST), _LAST)
        seen_at, since = (None if time is None else min(at + time, _LAST) for time in (one.seen_at, one.since))
        found.append(msgspec.structs.replace(one, at=at, seen_at=seen_at, since=since))
    return found
