"""How far consumer groups are, as last observed: members, committed offsets, lag, rates, time to retention."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from agent.engine.history import FINALIZATION_MS, History
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    GroupState,
    LogOffsets,
    Member,
    PartitionState,
    TopicSettings,
)
from agent.rules.queries.retention import MIN_AGE_MS, find_margin
from agent.rules.queries.unread import MARKER, remembered, was_written_by

RATE_WINDOW_MS = FINALIZATION_MS
"""Over how long rates are measured."""

T = TypeVar("T", bound=Observation)
Number = TypeVar("Number", int, float)


class _Logs(NamedTuple):
    """The logs that groups read, with the settings of their topics, as of now (ms)."""

    offsets: dict[tuple[str, str, int], History[LogOffsets]]
    settings: dict[tuple[str, str], TopicSettings]
    now: int
    write_rates: dict[tuple[str, str, int], float | None]
    """Those that are known so far: many groups may read one log."""

    def write_rate(self, place: tuple[str, str, int]) -> float | None:
        """Return the records that are written to a partition a second; None if unknown."""
        if place not in self.write_rates:
            log = self.offsets.get(place)
            self.write_rates[place] = None if log is None else _rate(log, lambda reading: reading.log_end, self.now)
        return self.write_rates[place]


class PartitionProgress(Struct, frozen=True, kw_only=True):
    """How far a group is on one partition.

    member: who reads it, as `client.id@host`; null if none is assigned. committed: the committed offset; committed_at:
    when it was last seen to change. log_start, log_end: the log start and end offsets; null if unknown. lag: records
    between the committed offset and the log end. read_rate, write_rate: records/s over the last three minutes; null if
    unknown. kept_ms: how long the next record to read is still kept, ms; null if that is unknown or there is none.
    kept_is_bound: whether it may be deleted earlier.
    """

    topic: str
    partition: int
    member: str | None = None
    committed: int
    committed_at: int
    log_start: int | None = None
    log_end: int | None = None
    lag: int | None = None
    read_rate: float | None = None
    write_rate: float | None = None
    kept_ms: int | None = None
    kept_is_bound: bool = False


class GroupProgress(Struct, frozen=True, kw_only=True):
    """How far a group is on all of its partitions together.

    cluster: the cluster's name in rules.toml. state: as Kafka names it; null if unknown. members: how many it has.
    lag: records over all partitions whose log end is known; null if none is. read_rate, write_rate: records/s over all.
    kept_ms: the shortest of its partitions. partitions: each of them; empty in the list of all groups.
    partition_count: how many partitions it has committed offsets for.
    """

    cluster: str
    group: str
    state: str | None
    members: int
    partition_count: int
    lag: int | None
    read_rate: float | None
    write_rate: float | None
    kept_ms: int | None
    kept_is_bound: bool = False
    partitions: tuple[PartitionProgress, ...] = ()


def group_progress(
    histories: Iterable[History[Any]], now: int, pattern: str = "*", *, in_detail: bool = False
) -> list[GroupProgress]:
    """Return the groups whose name is or matches the pattern, by cluster and name. now: ms.

    in_detail: with their partitions.
    """
    commits: dict[tuple[str, str], list[History[Commit]]] = defaultdict(list)
    states: dict[tuple[str, str], GroupState] = {}
    logs = _Logs({}, {}, now, {})
    for history in histories:
        match history.last:
            case Commit(cluster=cluster, group=group, offset=int()) if _is_selected(group, pattern):
                commits[cluster, group].append(history)
            case GroupState(cluster=cluster, group=group) as state if _is_selected(group, pattern):
                states[cluster, group] = state
            case LogOffsets(cluster=cluster, topic=topic, partition=partition):
                logs.offsets[cluster, topic, partition] = history
            case TopicSettings(cluster=cluster, topic=topic) as settings:
                logs.settings[cluster, topic] = settings
    living = {key for key, state in states.items() if not state.is_gone}
    return [
        _progress(key, commits.get(key, ()), states.get(key), logs, in_detail=in_detail)
        for key in sorted(commits.keys() | living)
    ]


def count_subjects(
    last_known: Iterable[Observation], groups_with_offsets: Iterable[tuple[str, str]]
) -> dict[str, dict[str, int]]:
    """Return the number of brokers, topics, partitions and groups of each Kafka cluster.

    last_known: the last observation of each subject. groups_with_offsets: their clusters and names.
    """
    found: dict[str, dict[str, set[object]]] = defaultdict(lambda: defaultdict(set))
    deleted: dict[str, set[object]] = defaultdict(set)
    for cluster, group in groups_with_offsets:
        found[cluster]["groups"].add(group)
    for observation in last_known:
        match observation:
            case BrokerRegistration(cluster=cluster, broker=broker) as registration if not registration.gone:
                found[cluster]["brokers"].add(broker)
            case PartitionState(cluster=cluster, topic=topic, partition=partition, replicas=()):
                deleted[cluster].add((topic, partition))
            case (
                PartitionState(cluster=cluster, topic=topic, partition=partition)
                | LogOffsets(cluster=cluster, topic=topic, partition=partition)
            ):
                found[cluster]["partitions"].add((topic, partition))
            case GroupState(cluster=cluster, group=group, state=state) if state != "Dead":
                found[cluster]["groups"].add(group)
    counts = {}
    for cluster, nouns in sorted(found.items()):
        partitions: set[Any] = nouns["partitions"] - deleted[cluster]
        topics = {topic for topic, _ in partitions}
        counts[cluster] = {
            "brokers": len(nouns["brokers"]),
            "topics": len(topics),
            "partitions": len(partitions),
            "groups": len(nouns["groups"]),
        }
    return counts


def by_lag(groups: Iterable[GroupProgress]) -> list[GroupProgress]:
    """Return the groups with the largest lag first, those of unknown lag last."""
    return sorted(groups, key=lambda group: -1 if group.lag is None else group.lag, reverse=True)


def _is_selected(group: str, pattern: str) -> bool:
    return pattern in {"*", group} or fnmatchcase(group, pattern)


def _progress(
    key: tuple[str, str],
    commits: Sequence[History[Commit]],
    state: GroupState | None,
    logs: _Logs,
    *,
    in_detail: bool,
) -> GroupProgress:
    cluster, group = key
    members = () if state is None else state.members
    readers = {place: member for member in members for place in member.partitions}
    partitions = []
    for history in commits:
        commit = history.last
        if commit is not None:
            member = readers.get((commit.topic, commit.partition))
            partitions.append(_partition_progress(history, commit, member, logs))
    partitions.sort(key=lambda progress: (progress.topic, progress.partition))
    kept = [(progress.kept_ms, progress.kept_is_bound) for progress in partitions if progress.kept_ms is not None]
    shortest = min(kept, default=(None, False))
    return GroupProgress(
        cluster=cluster,
        group=group,
        state=None if state is None else state.state,
        members=len(members),
        partition_count=len(partitions),
        lag=_sum(progress.lag for progress in partitions),
        read_rate=_sum(progress.read_rate for progress in partitions),
        write_rate=_sum(progress.write_rate for progress in partitions),
        kept_ms=shortest[0],
        kept_is_bound=shortest[1],
        partitions=tuple(partitions) if in_detail else (),
    )


def _partition_progress(
    history: History[Commit],
    commit: Commit,
    member: Member | None,
    logs: _Logs,
) -> PartitionProgress:
    offset, now = commit.offset or 0, logs.now
    place = (commit.cluster, commit.topic, commit.partition)
    log = logs.offsets.get(place)
    reading = None if log is None else log.last
    margin = None
    if log is not None and was_written_by(log, offset + MARKER, now - MIN_AGE_MS):
        margin = find_margin(logs.settings.get((commit.cluster, commit.topic)), remembered(log), commit, now)
    return PartitionProgress(
        topic=commit.topic,
        partition=commit.partition,
        member=None if member is None else f"{member.client_id or member.id}@{member.host.lstrip('/') or '?'}",
        committed=offset,
        committed_at=commit.at,
        log_start=None if reading is None else reading.log_start,
        log_end=None if reading is None else reading.log_end,
        lag=None if reading is None else max(0, reading.log_end - offset),
        read_rate=_rate(history, lambda commit: commit.offset, now),
        write_rate=logs.write_rate(place),
        kept_ms=None if margin is None else max(0, round(margin.deleted_from) - now),
        kept_is_bound=margin is not None and margin.is_bound,
    )


def _rate(history: History[T], offset_of: Callable[[T], int | None], now: int) -> float | None:
    """Return by how much an offset has grown a second, since it last decreased; None if that is not known yet."""
    changes = list(history.changes)  # the pipeline's thread may add to it meanwhile
    begin = now - RATE_WINDOW_MS
    first = last = None
    for change in reversed(changes):
        offset = offset_of(change)
        if offset is None or (first is not None and offset > first[1]):
            break
        first = (change.at, offset)
        last = last or first
        if change.at <= begin:
            break
    if first is None or last is None or (first == last and first[0] > begin):
        return None
    since, until = max(first[0], begin), max(now, last[0])
    return (last[1] - first[1]) / (until - since) * 1000 if until - since >= 1_000 else None


def _sum(numbers: Iterable[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None
