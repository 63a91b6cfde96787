"""What has been observed, as rules look at it: a short history per subject, indexed. No clock, no I/O, no judgement."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from agent.model.observations import (
    KINDS,
    Availability,
    BrokerRegistration,
    ChangelogDecreases,
    CheckFinding,
    Checkpoints,
    CheckRun,
    Commit,
    Controller,
    FlinkJob,
    GroupState,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    LogLine,
    LogOffsets,
    Observation,
    PartitionState,
    Position,
    StreamsApplication,
    Subject,
    TaskRestore,
    Tick,
    Unavailable,
)

LATENESS_MS = 60_000
"""How far observations of different subjects may come out of order."""

SETTLED_MS = 3 * LATENESS_MS
"""How long after it could first be known a finding may still change.

What happened up to LATENESS_MS after it has come by then, from whatever source. A rule looks no further
ahead, so the order in which facts come decides nothing.
"""

KEEP_MS = SETTLED_MS + LATENESS_MS
"""How long histories keep what happened: until it is settled, and room before it to look back."""

FLOOR = 24
"""How many changes before those a history keeps however old they are: a slow committer's rhythm.

None of what checks found or logs say: they may tell of thousands of things, and what a rule made of them it holds
itself.
"""

LONG_AGO, LONG_AFTER = -(1 << 62), 1 << 62
"""Before and after all observations, ms."""

_SAME_OF_A_SUBJECT = ("at", "seen_at", "since", "cluster", "group", "topic", "partition", "source")

T = TypeVar("T", bound=Observation)
Partition = tuple[str, str, int]
Series = tuple[str, str, str, int]


class Taken(Enum):
    """What became of an observation: older than the last of its subject, nothing new, or a change."""

    HISTORY = auto()
    KNOWN = auto()
    NEWS = auto()


class History(Generic[T]):
    """One subject's observations in order of `at`, changes only, newest last.

    confirmed: when the newest was last seen to hold.
    """

    __slots__ = ("changes", "confirmed")

    def __init__(self) -> None:
        """An empty history."""
        self.changes: list[T] = []
        self.confirmed = LONG_AGO

    def __iter__(self) -> Iterator[T]:
        """Oldest first."""
        return iter(self.changes)

    @property
    def last(self) -> T | None:
        """The newest change."""
        return self.changes[-1] if self.changes else None

    def as_of(self, at: int) -> T | None:
        """What held at that moment: the last change at or before it."""
        changes = self.changes
        if changes and changes[-1].at <= at:
            return changes[-1]
        index = bisect_right(changes, at, key=_at)
        return changes[index - 1] if index else None

    def after(self, at: int) -> list[T]:
        """The changes after that moment, oldest first."""
        changes = self.changes
        if not changes or changes[-1].at <= at:
            return []
        return changes[bisect_right(changes, at, key=_at) :]

    def before(self, at: int, most: int) -> list[T]:
        """The last changes before that moment, oldest first."""
        index = bisect_left(self.changes, at, key=_at)
        return self.changes[max(index - most, 0) : index]

    def between(self, begin: int, end: int) -> list[T]:
        """The changes after `begin` and up to `end`, oldest first."""
        changes = self.changes
        if not changes or changes[-1].at <= begin:
            return []
        return changes[bisect_right(changes, begin, key=_at) : bisect_right(changes, end, key=_at)]

    def add(self, observation: T) -> Taken:
        """Append in order."""
        if observation.at < self.confirmed:
            return Taken.HISTORY
        self.confirmed = observation.at
        changes = self.changes
        if changes and _same_fact(changes[-1], observation):
            return Taken.KNOWN
        changes.append(observation)
        floor = 0 if isinstance(observation, CheckFinding | LogLine) else FLOOR
        if len(changes) > 2 * floor and changes[2 * floor].at < observation.at - KEEP_MS:
            del changes[: bisect_left(changes, observation.at - KEEP_MS, key=_at) - floor]
        return Taken.NEWS


_EMPTY: History[Any] = History()


class Facts:
    """Histories of all subjects. `now` is the latest moment that any observation tells of, ms."""

    def __init__(self) -> None:
        """Nothing known yet."""
        self.now = LONG_AGO
        self._histories: dict[Subject, History[Any]] = {}
        self._groups_of: dict[Partition, list[str]] = {}
        self._partitions_of: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._partitions_in: dict[tuple[str, str], list[int]] = {}
        self._brokers_in: dict[str, list[int]] = {}
        self._readers_of: dict[Partition, list[str]] = {}
        self._read_by: dict[str, list[Partition]] = {}
        self._jobs_in: dict[str, list[str]] = {}
        self._graphs_in: dict[str, list[str]] = {}
        self._graph_files_in: dict[str, list[str]] = {}
        self._applications_in: dict[str, list[str]] = {}
        self._restores_of: dict[tuple[str, str], list[Subject]] = {}
        self._lines_about: dict[tuple[str, str, str | None, int | None], list[Subject]] = {}
        self._with_members: dict[tuple[str, str], int] = {}
        self._blind: dict[Subject, Unavailable] = {}

    def absorb(self, observation: Observation) -> Taken:
        """Take an observation in."""
        subject = observation.subject
        history = self._histories.get(subject)
        if history is None:
            history = self._histories[subject] = History()
            self._index(observation)
        taken = history.add(observation)
        if taken is not Taken.NEWS:
            return taken
        if isinstance(observation, GroupState):
            if observation.members or observation.simple is False:
                self._with_members.setdefault((observation.cluster, observation.group), observation.at)
        elif isinstance(observation, Unavailable):
            self._blind[subject] = observation
        elif isinstance(observation, Availability):
            self._blind.pop(subject, None)
        return taken

    def _index(self, observation: Observation) -> None:
        if isinstance(observation, Commit):
            cluster, group, topic, partition = (
                observation.cluster,
                observation.group,
                observation.topic,
                observation.partition,
            )
            insort(self._groups_of.setdefault((cluster, topic, partition), []), group)
            insort(self._partitions_of.setdefault((cluster, group), []), (topic, partition))
        elif isinstance(observation, PartitionState):
            insort(self._partitions_in.setdefault((observation.cluster, observation.topic), []), observation.partition)
        elif isinstance(observation, BrokerRegistration):
            insort(self._brokers_in.setdefault(observation.cluster, []), observation.broker)
        elif isinstance(observation, Position):
            place = (observation.cluster, observation.topic, observation.partition)
            insort(self._readers_of.setdefault(place, []), observation.job)
            insort(self._read_by.setdefault(observation.job, []), place)
        elif isinstance(observation, FlinkJob):
            insort(self._jobs_in.setdefault(observation.cluster, []), observation.job)
        elif isinstance(observation, JobGraph):
            insort(self._graphs_in.setdefault(observation.cluster, []), observation.job)
        elif isinstance(observation, JobGraphFile):
            insort(self._graph_files_in.setdefault(observation.cluster, []), observation.file)
        elif isinstance(observation, StreamsApplication):
            insort(self._applications_in.setdefault(observation.cluster, []), observation.application)
        elif isinstance(observation, TaskRestore):
            whose = (observation.cluster, observation.application)
            insort(self._restores_of.setdefault(whose, []), observation.subject)
        elif isinstance(observation, LogLine):
            about = (observation.cluster, observation.pattern, observation.topic, observation.partition)
            self._lines_about.setdefault(about, []).append(observation.subject)

    def commits(self, cluster: str, group: str, topic: str, partition: int) -> History[Commit]:
        """The committed offsets of a group on a partition."""
        return self._histories.get(("commit", cluster, group, topic, partition), _EMPTY)

    def log_offsets(self, cluster: str, topic: str, partition: int) -> History[LogOffsets]:
        """The partition's log start and end."""
        return self._histories.get(("log_offsets", cluster, topic, partition), _EMPTY)

    def partition(self, cluster: str, topic: str, partition: int) -> History[PartitionState]:
        """Who led the partition."""
        return self._histories.get(("partition_state", cluster, topic, partition), _EMPTY)

    def broker(self, cluster: str, broker: int) -> History[BrokerRegistration]:
        """The broker's registrations."""
        return self._histories.get(("broker_registration", cluster, broker), _EMPTY)

    def controller(self, cluster: str) -> History[Controller]:
        """The cluster's controllers."""
        return self._histories.get(("controller", cluster), _EMPTY)

    def group(self, cluster: str, group: str) -> History[GroupState]:
        """The group's states."""
        return self._histories.get(("group_state", cluster, group), _EMPTY)

    def positions(self, cluster: str, job: str, topic: str, partition: int) -> History[Position]:
        """Where a Flink job reads in a partition."""
        return self._histories.get(("position", cluster, job, topic, partition), _EMPTY)

    def readers_of(self, cluster: str, topic: str, partition: int) -> Sequence[str]:
        """The Flink jobs that have read the partition, sorted."""
        return self._readers_of.get((cluster, topic, partition), ())

    def read_by(self, job: str) -> Sequence[Partition]:
        """The (cluster, topic, partition) that the Flink job has read, sorted."""
        return self._read_by.get(job, ())

    def job(self, cluster: str, job: str) -> History[FlinkJob]:
        """The states of a job on a Flink cluster."""
        return self._histories.get(("flink_job", cluster, job), _EMPTY)

    def jobs_in(self, cluster: str) -> Sequence[str]:
        """The jobs of the Flink cluster known, sorted; those that have ended among them."""
        return self._jobs_in.get(cluster, ())

    def job_listing(self, cluster: str) -> History[JobListing]:
        """The listings of the Flink cluster's jobs; `confirmed` is when the last was read."""
        return self._histories.get(("job_listing", cluster), _EMPTY)

    def checkpoints(self, cluster: str, job: str) -> History[Checkpoints]:
        """The job's checkpoints, and what it was restored from."""
        return self._histories.get(("checkpoints", cluster, job), _EMPTY)

    def job_manager_leader(self, cluster: str) -> History[JobManagerLeader]:
        """Which JobManager led the Flink cluster."""
        return self._histories.get(("job_manager_leader", cluster), _EMPTY)

    def job_graph(self, cluster: str, job: str) -> History[JobGraph]:
        """The job's graph in ZooKeeper."""
        return self._histories.get(("job_graph", cluster, job), _EMPTY)

    def job_graphs_in(self, cluster: str) -> Sequence[str]:
        """The jobs of the Flink cluster that have had a graph, sorted."""
        return self._graphs_in.get(cluster, ())

    def job_graph_file(self, cluster: str, file: str) -> History[JobGraphFile]:
        """A file in the Flink cluster's HA storage directory."""
        return self._histories.get(("job_graph_file", cluster, file), _EMPTY)

    def job_graph_files_in(self, cluster: str) -> Sequence[str]:
        """The files that have stood in the Flink cluster's HA storage directory, sorted."""
        return self._graph_files_in.get(cluster, ())

    def streams_application(self, cluster: str, application: str) -> History[StreamsApplication]:
        """What there was of a Kafka Streams application."""
        return self._histories.get(("streams_application", cluster, application), _EMPTY)

    def streams_applications_in(self, cluster: str) -> Sequence[str]:
        """The Kafka Streams applications of the cluster known, sorted; those that are gone among them."""
        return self._applications_in.get(cluster, ())

    def task_restores(self, cluster: str, application: str) -> Sequence[History[TaskRestore]]:
        """What the tasks of a Kafka Streams application have restored, by instance and task."""
        return [self._histories[one] for one in self._restores_of.get((cluster, application), ())]

    def changelog_falls(self, cluster: str, topic: str, partition: int) -> History[ChangelogDecreases]:
        """What went back in a changelog partition."""
        return self._histories.get(("changelog_falls", cluster, topic, partition), _EMPTY)

    def log_lines(self, subject: Subject) -> History[LogLine]:
        """The lines of a log that matched a pattern and name the same things, by the lines' subject."""
        return self._histories.get(subject, _EMPTY)

    def lines_about(self, cluster: str, pattern: str, topic: str | None, partition: int | None) -> list[LogLine]:
        """The lines of all logs that matched a pattern and name the partition, or name none, oldest first."""
        subjects = self._lines_about.get((cluster, pattern, topic, partition), ())
        return sorted((line for one in subjects for line in self._histories[one]), key=attrgetter("at", "log", "text"))

    def check_findings(self, subject: Subject) -> History[CheckFinding]:
        """What the latest runs of a check found about a subject, each sighting a change."""
        return self._histories.get(subject, _EMPTY)

    def check_runs(self, cluster: str, check: str) -> History[CheckRun]:
        """The check's runs."""
        return self._histories.get(("check_run", cluster, check), _EMPTY)

    def sight(self, subject: Subject) -> History[Availability]:
        """When a source did and did not see a subject."""
        return self._histories.get(subject, _EMPTY)

    def groups_of(self, cluster: str, topic: str, partition: int) -> Sequence[str]:
        """The groups that have committed an offset of the partition, sorted."""
        return self._groups_of.get((cluster, topic, partition), ())

    def partitions_of(self, cluster: str, group: str) -> Sequence[tuple[str, int]]:
        """The (topic, partition) pairs that the group has committed, sorted."""
        return self._partitions_of.get((cluster, group), ())

    def partitions_in(self, cluster: str, topic: str) -> Sequence[int]:
        """The topic's partitions known, sorted."""
        return self._partitions_in.get((cluster, topic), ())

    def brokers_in(self, cluster: str) -> Sequence[int]:
        """The cluster's brokers known, sorted; those that are gone among them."""
        return self._brokers_in.get(cluster, ())

    def had_members(self, cluster: str, group: str, at: int) -> bool:
        """Whether the group had been seen with members by then."""
        return self._with_members.get((cluster, group), at + 1) <= at

    def blind(self) -> list[Unavailable]:
        """What cannot be seen at present."""
        return list(self._blind.values())

    def latest(self) -> Iterable[Observation]:
        """What sources last saw of each subject, as of when it was last seen to hold."""
        return [
            msgspec.structs.replace(history.changes[-1], at=history.confirmed)
            for history in self._histories.values()
            if not isinstance(history.changes[-1], Tick | CheckFinding | CheckRun | LogLine)
        ]


def _at(observation: Observation) -> int:
    return observation.at


_FACT = {
    kind: attrgetter("__class__", *(name for name in kind.__struct_fields__ if name not in _SAME_OF_A_SUBJECT))
    for kind in KINDS.values()
} | {
    CheckFinding: attrgetter("at", "finding"),
    LogLine: attrgetter("at", "text"),
    CheckRun: attrgetter("at", "outcome", "complete", "reason"),
}
"""What each kind says of its subject. Each run of a check is news, and so is what it found, be it the same again."""


def _same_fact(old: Observation, new: Observation) -> bool:
    """Whether both say the same of their subject, times apart."""
    fact = _FACT[type(new)]
    return type(old) is type(new) and fact(old) == fact(new)
