"""topic_recreated: a topic was deleted and re-created under its name, or deleted with unread records."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, RETENTION_MS
from agent.engine.rule import Advice, EventRule, Scope, TopicRule
from agent.model.config_types import Duration
from agent.model.findings import Finding, Records, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from agent.model.text import MAX_PLACES, join_names, more
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    IncarnationEnd,
    drop_unmoved,
    find_incarnation_ends,
)
from agent.rules.queries.subjects import groups_of, partitions_in
from agent.rules.queries.unread import MARKER, longest_interval, remembered

_GONE_MS = 300_000
"""How long a topic must be missing to be gone for good: metadata may lack one for a while."""


class _Log(NamedTuple):
    """Of a group in one partition: the unread records when its topic was deleted, of all in the log."""

    unread: int
    size: int


class TopicRecreated(EventRule, TopicRule):
    """A topic has another id (before Kafka 2.8: another czxid of its znode), or exists again after its deletion. Info.

    Its offsets start at 0 again: no other rule reports this as a rewind or a truncation.
    A warning, with the label `unread`, if a group had not read `min_records` of the old topic, or most of it: they are
    lost. What was written since the group could have committed last does not count, nor do abandoned groups, nor a
    single offset at the log end, which may be a transaction marker.
    Label `unproven`: the topic was missing from the metadata, and neither ids nor log ends show whether it is another.
    Label `gone`: the topic has been missing for five minutes, reported only if records were unread.
    Not: an id that was unknown before, a UUID in place of a czxid (an upgrade to 2.8), a topic that was missing from
    the metadata for however long and has its old id, or its old log, when it is listed again.
    """

    title = "{topic} was deleted and re-created"
    titles: ClassVar[Mapping[str, str]] = {
        "unread": "{topic} was deleted and re-created: {records} unread records are lost",
        "gone": "{topic} is gone: {records} unread records are lost",
        "unproven": "{topic} was missing from the metadata",
    }
    default_severity = Severity.INFO
    recreates_topic = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "unread": Advice(
            now="Find out who deleted {topic}. What its groups had not read can only be recovered from the source "
            "system.",
            prevent="Before you delete {topic}, wait until its groups have read it; restrict deletion by ACLs.",
        ),
        "gone": Advice(
            now="Find out who deleted {topic}, or whether Backflow may no longer describe it (ACLs). What its groups "
            "had not read can only be recovered from the source system.",
            prevent="Before you delete {topic}, wait until its groups have read it; restrict deletion by ACLs.",
        ),
        "unproven": Advice(now="Find out why {topic} was missing from the metadata, and whether it was re-created."),
        "": Advice(
            now="Find out who deleted {topic}, unless it was intended. Its offsets start at 0 again.",
            prevent="Set auto.create.topics.enable=false and restrict the deletion of topics by ACLs.",
        ),
    }
    observes = (PartitionState,)

    min_records: int = 100
    """Fewest unread records of a group that make it a warning; most of a smaller topic do as well."""

    abandoned_after: Duration = 86_400_000
    """How long after its last commit a group without members still reads the topic."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, PartitionState) or not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition)
        before = history.changes[-2] if len(history.changes) > 1 else None
        is_edge = observation.is_deleted or (before is not None and before.is_deleted)
        changed = before is not None and (is_edge or before.topic_id != observation.topic_id)
        return (Scope(observation.cluster, topic=observation.topic),) if changed else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield each incarnation after the first, at the earliest state of any of its partitions, and deletions."""
        topic = scope.topic or ""
        ends_of_all = [
            end
            for partition in partitions_in(facts, scope.cluster, topic)
            for end in find_incarnation_ends(facts, (scope.cluster, topic, partition))
        ]
        yield from self._find_gone(scope, [end for end in ends_of_all if _is_gone(end)], facts)
        endings = [(end, end.new) for end in ends_of_all if end.new is not None]
        reported: list[tuple[PartitionState, list[IncarnationEnd]]] = []
        for end, new in sorted(endings, key=lambda ending: (ending[1].at, ending[1].partition)):
            ends = next((ends for first, ends in reported if _is_same_incarnation(first, new)), None)
            if ends is None:
                reported.append((new, [end]))
            else:
                ends.append(end)
        for new, ends in reported:
            yield self._describe(scope, new, ends, facts)

    def _describe(self, scope: Scope, new: PartitionState, ends: list[IncarnationEnd], facts: Facts) -> Finding:
        """Return the finding of the incarnation that begins with `new`. ends: of the old one, by partition."""
        is_certain, old_id = any(end.is_certain for end in ends), ends[0].old_id
        left = [end for end in ends if not _is_gone(end)]  # what is lost of the others was reported
        unread = self._find_unread(scope, left, facts) if is_certain else {}
        ids = f"id {old_id or 'unknown'} -> {new.topic_id or 'unknown'}"
        detail = f"{scope.topic} was deleted and re-created ({ids})"
        if not is_certain:
            detail = f"{scope.topic} was missing from the metadata; it may have been deleted and re-created ({ids})"
        of_groups = _sum_by_group(unread)
        return self.make_finding(
            scope,
            new,
            severity=Severity.WARNING if unread else None,
            labels=("unread",) if unread else () if is_certain else ("unproven",),
            detail=detail + _describe_unread(of_groups),
            previous={"topic_id": old_id},
            current={"topic_id": new.topic_id, **({"unread": of_groups} if unread else {})},
            records=_sum_lost(unread),
        )

    def _find_gone(self, scope: Scope, ends: list[IncarnationEnd], facts: Facts) -> Iterator[Finding]:
        """Yield the deletions with unread records. ends: of partitions that did not come back soon."""
        deletions: list[list[IncarnationEnd]] = []
        for end in sorted(ends, key=lambda end: (end.first.at, end.first.partition)):
            if deletions and end.first.at - deletions[-1][0].first.at <= LATENESS_MS:
                deletions[-1].append(end)
            else:
                deletions.append([end])
        for deletion in deletions:
            first, unread = deletion[0].first, self._find_unread(scope, deletion, facts)
            of_groups = _sum_by_group(unread)
            if unread:
                yield self.make_finding(
                    scope,
                    first,
                    known_at=first.seen + _GONE_MS,
                    severity=Severity.WARNING,
                    labels=("gone",),
                    detail=f"{scope.topic} was deleted, or cannot be described any more{_describe_unread(of_groups)}",
                    previous={"topic_id": deletion[0].old_id},
                    current={"unread": of_groups},
                    records=_sum_lost(unread),
                )

    def _find_unread(self, scope: Scope, ends: list[IncarnationEnd], facts: Facts) -> dict[str, dict[int, _Log]]:
        """Return the unread records of the old topic, by group and partition."""
        by_group: dict[str, dict[int, _Log]] = {}
        for end in ends:
            partition = end.first.partition
            for group in groups_of(facts, scope.cluster, end.first.topic, partition):
                log = self._measure_unread(group, end.first, facts)
                if log is not None:
                    by_group.setdefault(group, {})[partition] = log
        return {group: logs for group, logs in by_group.items() if self._is_much(logs.values())}

    def _is_much(self, logs: Iterable[_Log]) -> bool:
        unread, size = map(sum, zip(*logs, strict=True))
        return bool(unread >= self.min_records or 2 * unread > size)

    def _measure_unread(self, group: str, deleted: PartitionState, facts: Facts) -> _Log | None:
        """Return what the group had surely not read when the partition was deleted; None if it did not read it."""
        partition, begin = (deleted.cluster, deleted.topic, deleted.partition), deleted.start
        history = facts.history(Commit, deleted.cluster, group, deleted.topic, deleted.partition)
        commits = drop_unmoved(commit for commit in history if commit.at <= begin)
        # Kafka forgets the offsets of a deleted topic at once, so only an earlier tombstone is the group's own.
        last = history.as_of(begin - LATENESS_MS)
        if not commits or (last is not None and last.offset is None) or not self._is_reading(commits[-1], begin, facts):
            return None
        # What was written since the last moment at which it may have committed may have been read.
        uncommitted_ms = min(longest_interval(commits), RETENTION_MS)
        until = begin - uncommitted_ms - CLOCK_SLACK_MS
        readings = remembered(facts.history(LogOffsets, *partition))
        log = next((reading for reading in reversed(readings) if reading.at <= until), None)
        if log is None:
            return None
        unread = log.log_end - max(commits[-1].offset or 0, log.log_start)
        return _Log(unread if unread > MARKER else 0, log.log_end - log.log_start)

    def _is_reading(self, commit: Commit, at: int, facts: Facts) -> bool:
        """Return whether the group of the commit had a member for the partition, or if unknown, committed recently."""
        history, begin = facts.history(GroupState, commit.cluster, commit.group), at - LATENESS_MS
        # While a topic is being deleted, its groups have already dropped its partitions.
        states = [state for state in (history.as_of(begin), *history.between(begin, at)) if state is not None]
        assigned = {pair for state in states for member in state.members for pair in member.partitions}
        if assigned:
            return (commit.topic, commit.partition) in assigned
        return commit.at >= at - self.abandoned_after


def _is_gone(end: IncarnationEnd) -> bool:
    """Return whether the partition did not come back soon after its deletion."""
    return end.first.is_deleted and (end.new is None or end.new.at > end.first.seen + _GONE_MS + LATENESS_MS)


def _sum_by_group(unread: Mapping[str, Mapping[int, _Log]]) -> dict[str, int]:
    return {group: sum(log.unread for log in logs.values()) for group, logs in unread.items()}


def _sum_lost(unread: Mapping[str, Mapping[int, _Log]]) -> Records:
    """Return the lost records: of each partition those that the group which had read least had not read."""
    lost = Counter[int]()
    for logs in unread.values():
        for partition, log in logs.items():
            lost[partition] = max(lost[partition], log.unread)
    return Records(lost=lost.total())


def _describe_unread(of_groups: Mapping[str, int]) -> str:
    if not of_groups:
        return ""
    largest = sorted(of_groups, key=lambda group: (-of_groups[group], group))
    names = join_names(f"{group} ({of_groups[group]:,})" for group in largest[:MAX_PLACES])
    rest = "".join(f" {left}" for left in more(len(largest) - MAX_PLACES, "more group"))
    return f"; records not read by {names}{rest} are lost"


def _is_same_incarnation(earlier: PartitionState, later: PartitionState) -> bool:
    """Return whether both states began with the same creation of their topic: by id, or by time if that is unknown."""
    if earlier.topic_id and later.topic_id and earlier.at != later.at:
        return earlier.topic_id == later.topic_id
    return later.at - earlier.at <= LATENESS_MS
