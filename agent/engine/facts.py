"""What has been observed, as rules see it: a short history per subject. No clock, no I/O, no evaluation.

Facts record which subjects and indexes a rule reads, so that the evaluator knows what a result depends on.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
import numpy as np

from agent.engine.commit_columns import ColumnHistory, CommitColumns
from agent.engine.commit_rings import LENGTHS
from agent.engine.history import (
    FINALIZATION_MS,
    FLOOR,
    LATENESS_MS,
    LONG_AGO,
    RETENTION_MS,
    Change,
    History,
    Ticks,
)
from agent.engine.partition_columns import Partition, PartitionColumns
from agent.engine.presence import GroupStates, Presence
from agent.engine.subject_index import SubjectIndex, sort_key
from agent.model.observations.base import Availability, Observation, Subject, Tick, Unavailable
from agent.model.observations.kafka import (
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    PartitionState,
    TopicSettings,
)

GONE_MS = 900_000
"""How long a group or partition that no longer exists is remembered with its history."""

GONE_GROUPS = 500
GONE_CHANGES = 3
"""How many more groups are remembered that no longer exist, and how much of each, should they return."""

GONE_PARTITIONS = 500
"""How many partitions are remembered for longer, should their topics be created again."""

_KAFKA = "kafka"
"""The source of groups."""

DependencyKey: TypeAlias = Hashable
"""A subject that was read by itself, or (kind, field names, values) of an index that was read as a whole."""

T = TypeVar("T", bound=Observation)


class Facts:
    """Histories of all subjects. now: the latest moment of any observation, ms. logs: of log offsets, by partition."""

    def __init__(self) -> None:
        self.now = LONG_AGO
        self.partitions = PartitionColumns()
        self.commits = CommitColumns(self.partitions)
        self.logs: dict[int, History[LogOffsets]] = {}
        self._histories: dict[Hashable, dict[Subject, History[Any]]] = defaultdict(dict)
        self._indexes: dict[type[Observation], dict[tuple[str, ...], SubjectIndex[History[Any]]]] = {}
        self._absorbed: tuple[Observation | None, History[Any]] = (None, _EMPTY)
        self._reads: dict[DependencyKey, None] | None = None
        self._views: dict[int, ColumnHistory] = {}
        self._first_members: dict[Subject, int] = {}
        self._peaks: dict[Subject, list[tuple[int, Commit]]] = {}
        self._unavailable: dict[Subject, Unavailable] = {}
        self._gone: dict[tuple[str, str], int] = {}
        self._long_gone: dict[tuple[str, str], None] = {}
        self._deleted: dict[Partition, int] = {}

    @property
    def final_before(self) -> int:
        """Findings that were known by then are final: rules need not find them again."""
        return self.now - FINALIZATION_MS

    @property
    def suspended_since(self) -> int | None:
        """When the last tick came if Backflow must have been suspended since, ms; None otherwise."""
        ticks = self.history(Tick)
        is_late = isinstance(ticks, Ticks) and ticks.are_regular and self.now > ticks.confirmed + LATENESS_MS
        return ticks.confirmed if is_late else None

    def in_order(self, event: Observation) -> Observation:
        """Return an event as not before the last one of its subject: threads do not write their lines in order."""
        history = self._kept(event.subject)
        if history is None or event.at >= history.confirmed:
            return event
        since = event.at if event.since is None else event.since
        return msgspec.structs.replace(
            event, at=history.confirmed, seen_at=max(event.seen, history.confirmed), since=since
        )

    def absorb(self, observation: Observation) -> Change:
        """Take an observation in and return what it changed."""
        subject = observation.subject
        history = self._kept(subject)
        if history is None:
            history = self._begin(observation, subject)
        self._absorbed = observation, history
        change = history.add(observation)
        if change is not Change.CHANGED:
            return change
        if isinstance(observation, Commit):
            self.partitions.update(observation)
            self._keep_peak(history)
        elif isinstance(observation, GroupState):
            if observation.members or observation.simple is False:
                self._first_members.setdefault(subject, observation.at)
            group = (observation.cluster, observation.group)
            for gone in (self._gone, self._long_gone):
                gone.pop(group, None)
            if observation.is_gone:
                self._gone[group] = observation.seen
        elif isinstance(observation, LogOffsets | PartitionState):
            self.partitions.update(observation)
            if isinstance(observation, PartitionState):
                partition = (observation.cluster, observation.topic, observation.partition)
                self._deleted.pop(partition, None)
                if observation.is_deleted:
                    self._deleted[partition] = observation.seen
        elif isinstance(observation, Unavailable):
            self._unavailable[subject] = observation
        elif isinstance(observation, Availability):
            self._unavailable.pop(subject, None)
        return change

    def _begin(self, observation: Observation, subject: Subject) -> History[Any]:
        """Return a new history for an observation, or that of a series in columns."""
        if isinstance(observation, Commit) and (number := self.commits.find(subject)) is not None:
            return self._open(number)
        created: History[Any]
        if isinstance(observation, Tick):
            created = Ticks(subject)
        elif isinstance(observation, GroupState):
            created = GroupStates(subject)
        else:
            created = History(subject, compact=observation.is_compact)
        self._add(created, observation)
        return created

    def _add(self, history: History[Any], observation: Observation) -> None:
        self._histories[history.subject[0]][history.subject] = history
        if isinstance(observation, LogOffsets):
            partition = (observation.cluster, observation.topic, observation.partition)
            self.logs[self.partitions.number_of(partition)] = history
        for index in self._indexes.get(observation.__class__, {}).values():
            index.add(observation, history)

    def _open(self, number: int) -> History[Commit]:
        """Keep a history for a series in columns from now on."""
        history = self._view(number)
        self._add(history, history.changes[-1])
        self.commits.remove(number)
        return history

    def close(self, history: History[Commit]) -> None:
        """Keep a series as columns if it fits, once nothing depends on it."""
        kept = history.count_from(history.changes[-1].at - RETENTION_MS) + FLOOR
        if kept <= LENGTHS[-1] and self.commits.put(history.changes[-kept:], history.confirmed):
            for index in self._indexes.get(Commit, {}).values():
                index.remove(history)
            del self._histories[history.subject[0]][history.subject]

    def is_open(self, subject: Subject) -> bool:
        """Return whether a subject has a history, and is not kept as columns."""
        return self._kept(subject) is not None

    def open_histories(self, kinds: Collection[Hashable] | None = None) -> list[History[Any]]:
        """Return the histories of subjects of these kinds, by default of all, without the series in columns."""
        return [
            history
            for kind, histories in self._histories.items()
            if kinds is None or kind in kinds
            for history in histories.values()
        ]

    def open_commits(self) -> list[History[Commit]]:
        """Return the histories of commits, without the series in columns."""
        return self.open_histories((Commit.subject_kind,))

    def _kept(self, subject: Subject) -> History[Any] | None:
        """Return the history of a subject; None if there is none, or only a series in columns."""
        return self._histories[subject[0]].get(subject)

    def groups_with_offsets(self) -> set[tuple[str, str]]:
        """Return the cluster and group of all committed offsets."""
        last = [history.changes[-1] for history in self.open_commits()]
        return self.commits.groups | {(commit.cluster, commit.group) for commit in last if commit.offset is not None}

    def _view(self, number: int) -> History[Commit]:
        """Return a series in columns as it is now; the same one for as long as reads are recorded."""
        if self._reads is None:
            return ColumnHistory(self.commits, number)
        view = self._views.get(number)
        if view is None:
            view = self._views[number] = ColumnHistory(self.commits, number)
        return view

    def _find(self, subject: Subject) -> History[Any]:
        """Return the history of a subject."""
        history = self._kept(subject)
        if history is None and subject[0] == Commit.subject_kind:
            number = self.commits.find(subject)
            if number is not None:
                history = self._view(number)
        return _EMPTY if history is None else history

    def history(self, kind: type[T], *key: Hashable) -> History[T]:
        """Return the history of the subject with these key values (the kind's `key` fields); empty if never seen."""
        subject = (kind.subject_kind, *key)
        if self._reads is not None:
            self._reads[subject] = None
        return self._find(subject)

    def history_of(self, observation: T) -> History[T]:
        """Return the history of the observation's subject. Cheap for the one that was absorbed last."""
        if observation is self._absorbed[0] and self._reads is None:
            return self._absorbed[1]
        subject = observation.subject
        if self._reads is not None:
            self._reads[subject] = None
        return self._find(subject)

    def histories(self, kind: type[T], **fields: Hashable) -> Sequence[History[T]]:
        """Return the histories of all subjects with these values of some key fields, sorted by their keys."""
        names = tuple(fields)
        index = self._index(kind, names)
        values = fields[names[0]] if len(names) == 1 else tuple(fields.values())
        numbers = self.commits.matching(fields) if kind is Commit else []
        if self._reads is not None:
            self._reads[kind, names, values] = None
        found = index.members.get(values, ())
        if not numbers:
            return found
        views: list[History[Any]] = [self._view(number) for number in numbers]
        return sorted([*found, *views], key=sort_key)

    def _index(self, kind: type[Observation], names: tuple[str, ...]) -> SubjectIndex[History[Any]]:
        indexes = self._indexes.setdefault(kind, {})
        index = indexes.get(names)
        if index is None:
            index = indexes[names] = SubjectIndex(names)
            for history in self._histories[kind.subject_kind].values():
                if history.changes[0].__class__ is kind:
                    index.add(history.changes[0], history)
        return index

    def is_indexed(self, kind: type[Observation]) -> bool:
        """Return whether subjects of this kind have been looked up by some of their key fields."""
        return kind in self._indexes

    def begun_since(self, cluster: str, group: str, since: int) -> list[tuple[str, int]]:
        """Return the (topic, partition) of a group whose first commit that is kept was made at that moment or later."""
        ids = np.array(self.commits.matching({"cluster": cluster, "group": group}), np.int64)
        begun = ids[self.commits.first_at(ids) >= since].tolist()
        opened = self._index(Commit, ("cluster", "group")).members.get((cluster, group), ())
        subjects = [self.commits.subject(number) for number in begun]
        subjects += [history.subject for history in opened if history.changes[0].at >= since]
        return [(str(topic), int(str(partition))) for *_, topic, partition in subjects]

    def commits_beyond(self, cluster: str, topic: str, partition: int, offset: int) -> Sequence[History[Commit]]:
        """Return the histories of all groups that may have committed more than this offset of a partition."""
        numbers = self.commits.of_partition(cluster, topic, partition)
        views = [
            ColumnHistory(self.commits, number)
            for number in numbers[self.commits.last_offset[numbers] > offset].tolist()
        ]
        index = self._index(Commit, ("cluster", "topic", "partition"))
        return [*index.members.get((cluster, topic, partition), ()), *views]

    def record_reads(self) -> dict[DependencyKey, None]:
        """Begin to record what is read, in the order of first reading, until the next call of `stop_recording`."""
        self._reads = {}
        return self._reads

    def open_read(self) -> None:
        """Keep histories from now on for the series in columns that were read since recording began."""
        for number in list(self._views):
            self._open(number)

    def stop_recording(self) -> None:
        """Stop recording what is read."""
        self._reads = None
        self._views.clear()

    def dependency_keys(self, observation: Observation) -> Iterator[DependencyKey]:
        """Yield every key under which the observation's subject may have been read."""
        yield observation.subject
        kind = observation.__class__
        for names, index in self._indexes.get(kind, {}).items():
            yield kind, names, index.values_of(observation)

    def had_members(self, cluster: str, group: str, at: int) -> bool:
        """Return whether the group had been seen with members by then."""
        subject = (GroupState.subject_kind, cluster, group)
        if self._reads is not None:
            self._reads[subject] = None
        return self._first_members.get(subject, at + 1) <= at

    def presence(self, cluster: str, group: str) -> Presence:
        """Return when the group had consumers before the changes that its history still holds."""
        history = self.history(GroupState, cluster, group)
        return history.presence if isinstance(history, GroupStates) else Presence()

    def forget_gone(self, is_read: Callable[[Subject], bool]) -> None:
        """Forget partitions that no longer exist but for the last ones, groups likewise, and most of what these did.

        is_read: whether an evaluation still depends on a subject.
        """
        for partition, at in list(self._deleted.items())[: max(len(self._deleted) - GONE_PARTITIONS, 0)]:
            if at >= self.now - GONE_MS:
                break
            histories = self._histories_at(*partition)
            if not any(is_read(history.subject) for history in histories):
                del self._deleted[partition]
                for history in histories:
                    self.forget(history)
        for group, at in list(self._gone.items()):
            if at >= self.now - GONE_MS:
                break
            histories = self._histories_of(*group)
            if not any(is_read(history.subject) for history in histories):
                del self._gone[group]
                self._long_gone[group] = None
                for history in histories:
                    history.drop(max(len(history.changes) - GONE_CHANGES, 0))
        while len(self._long_gone) > GONE_GROUPS:
            group = next(iter(self._long_gone))
            del self._long_gone[group]
            for history in self._histories_of(*group):
                self.forget(history)

    def _histories_of(self, cluster: str, group: str) -> list[History[Any]]:
        """Return the histories of a group's state and commits, and of whether they could be read."""
        for number in self.commits.matching({"cluster": cluster, "group": group}):
            self._open(number)
        histories: list[History[Any]] = [*self.histories(Commit, cluster=cluster, group=group)]
        places = [history.subject[3:] for history in histories]
        subjects: list[Subject] = [(GroupState.subject_kind, cluster, group)]
        subjects += [(Availability.subject_kind, _KAFKA, cluster, group, *place) for place in [(None, None), *places]]
        return histories + [history for history in map(self._kept, subjects) if history is not None]

    def _histories_at(self, cluster: str, topic: str, partition: int) -> list[History[Any]]:
        """Return the histories of a deleted partition, and of the offsets that groups had there."""
        place = (cluster, topic, partition)
        subjects: list[Subject] = [
            (kind.subject_kind, *place) for kind in (PartitionState, LogOffsets, LastStableOffset)
        ]
        subjects += [(Availability.subject_kind, _KAFKA, cluster, None, topic, partition)]
        if partition == 0:
            subjects += [(TopicSettings.subject_kind, cluster, topic)]
        commits = self._index(Commit, ("cluster", "topic", "partition")).members.get(place, ())
        histories = [history for history in commits if history.changes[-1].offset is None]
        return histories + [history for history in map(self._kept, subjects) if history is not None]

    def forget_subjects(self, subjects: Iterable[Subject]) -> None:
        """Forget these subjects, if they are known."""
        for subject in subjects:
            number = self.commits.find(subject) if subject[0] == Commit.subject_kind else None
            history = self._kept(subject) if number is None else self._open(number)
            if history is not None:
                self.forget(history)

    def forget(self, history: History[Any]) -> None:
        """Forget a subject."""
        subject = history.subject
        if subject[0] == LogOffsets.subject_kind:
            partition = cast("Partition", subject[1:])
            del self.logs[self.partitions.number_of(partition)]
            self.partitions.forget_log(partition)
        for kind, indexes in self._indexes.items():
            if kind.subject_kind == subject[0]:
                for index in indexes.values():
                    index.remove(history)
        of_kind: dict[Subject, Any] = self._histories[subject[0]]
        for by_subject in (of_kind, self._first_members, self._peaks, self._unavailable):
            by_subject.pop(subject, None)

    def all_histories(self) -> Iterable[History[Any]]:
        """Return the history of each subject."""
        views = (ColumnHistory(self.commits, number) for number in self.commits.used().tolist())
        return [*self.open_histories(), *views]

    def peaks(self, commit: Commit) -> list[Commit]:
        """Return from where the group moved backwards by that commit: what is recent, and the furthest ever."""
        if self._reads is not None:
            self._reads[commit.subject] = None
        return [peak for left_at, peak in self._peaks.get(commit.subject, ()) if left_at <= commit.at]

    def unavailable(self) -> list[Unavailable]:
        """Return what cannot be read at present."""
        return list(self._unavailable.values())

    def _keep_peak(self, history: History[Commit]) -> None:
        """Keep from where a committed offset moved backwards: the history of its changes may be too short for that."""
        changes = history.changes
        if len(changes) < 2:
            return
        commit, peak = changes[-1], changes[-2]
        if peak.offset is None and len(changes) > 2:
            peak = changes[-3]
        if peak.offset is None or commit.offset is None or peak.offset <= commit.offset:
            return
        peaks = self._peaks.get(commit.subject, [])
        recent = [entry for entry in peaks if entry[0] > commit.at - RETENTION_MS]
        furthest = max(peaks, key=lambda entry: entry[1].offset or 0, default=None)
        self._peaks[commit.subject] = [
            *([furthest] if furthest is not None and furthest not in recent else []),
            *recent,
            (commit.at, peak),
        ]

    def latest(self) -> Iterable[Observation]:
        """Return the last known state of each subject, as of when it was last seen to hold."""
        return [
            msgspec.structs.replace(history.changes[-1], at=history.confirmed)
            for history in self.all_histories()
            if not history.changes[-1].is_event and not isinstance(history.changes[-1], Tick)
        ]


_EMPTY: History[Any] = History()
