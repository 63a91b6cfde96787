"""new_partition_skipped: a group begins on a new partition at the log end and skips what the partition already held."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, History
from agent.engine.rule import Advice, GroupRule, Scope
from agent.model.batches import UNKNOWN
from agent.model.findings import Finding, Records, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from agent.model.text import count, place, span
from agent.rules.queries.partitions import CLOCK_SLACK_MS, drop_unmoved, is_recreated
from agent.rules.queries.positions import log_end
from agent.rules.queries.subjects import may_end, partitions_of, recovered_or_ended
from agent.rules.queries.unread import remembered

_USUAL_RATE = 5_000
"""Records per second that any consumer may read, however few it has had to read so far."""


class _Start(NamedTuple):
    """A group's start on a new partition. assigned: the first group state in which a member has the partition."""

    commit: Commit
    assigned: GroupState
    log_start: int
    log_end: int

    @property
    def rate(self) -> float:
        """Records per second that it must have read if it began at the log start offset."""
        return ((self.commit.offset or 0) - self.log_start) * 1000 / max(self.commit.at - self.assigned.start, 1000)


class NewPartitionSkipped(GroupRule):
    """A topic got more partitions, and a group's first commit on one of them is at the log end: it was reset to latest.

    Consumers discover new partitions minutes after their creation; what was written until then is skipped with
    auto.offset.reset=latest. Reported if the partition held records when it was assigned to a member, and the group,
    which read the topic before, must have read them `surge` times faster than it was ever observed to read the topic,
    and faster than 5,000 records/s.
    Probable, not proven: the consumers may be that fast.
    Not: a group that is new to the topic, a partition that existed before Backflow watched the topic, consumers without
    group membership, a first commit below what the log held at the assignment.
    Recovers when the group moves back to read what it skipped.
    """

    title = "{group} probably skipped {records} records of new partition {topic}[{partition}]"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Check auto.offset.reset of {reader}. If it is latest, have {reader} read the new partitions of "
            "{topic} from their log start before retention deletes the records.",
            prevent="Set auto.offset.reset=earliest for {reader}, or by_duration on Kafka 4.0 or later (KIP-1106).",
        ),
    }
    observes = (Commit, GroupState)
    ignores_all_progress = True

    min_records: int = 1000
    """The fewest skipped records reported."""
    surge: int = 10
    """How many times faster than ever before the group must have read."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        offset = finding.current.get("offset")
        if offset is None:
            return super().timeline(finding, day)
        return f"{reader(finding.subject)} began on new partition {place(finding.subject)} at {offset:,}, the log end"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scope of each first commit, also when it is known only later that it was assigned."""
        match observation:
            case Commit(cluster=cluster, group=group, topic=topic, partition=partition, offset=int() as offset):
                if offset < self.min_records or len(facts.history_of(observation).changes) > 1:
                    return ()
                places = [(topic, partition)]
            case GroupState(cluster=cluster, group=group):
                places = facts.begun_since(cluster, group, observation.at - LATENESS_MS)
            case _:
                return ()
        scopes = [Scope(cluster, group, *place) for place in places if self.applies_to(group, place[0])]
        return [scope for scope in scopes if _find_assignment(scope, facts) is not None]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        start = _find_start(scope, facts)
        if start is None or start.log_end - start.log_start < self.min_records:
            return
        if (start.commit.offset or 0) < start.log_end or not _is_new_partition(scope, start, facts):
            return
        pace = _find_pace(scope, start, facts)
        if pace <= 0 or start.rate <= max(pace * self.surge, _USUAL_RATE):
            return
        skipped = (start.commit.offset or 0) - start.log_start
        yield self.make_finding(
            scope,
            start.commit,
            since=start.assigned.start,
            # The log end offset of the same poll may arrive a little later.
            known_at=start.commit.seen + CLOCK_SLACK_MS,
            detail=(
                f"{scope.group} began on new partition {scope.topic}[{scope.partition}] at {start.commit.offset:,}, "
                f"{span(max(start.commit.at - start.assigned.start, 0))} after it was assigned: it probably skipped "
                f"{count(skipped, 'record')}; the fastest it was seen to read {scope.topic} is {pace:,.0f} records/s"
            ),
            labels=("probable", "to_latest"),
            previous={"log_start": start.log_start},
            current={"offset": start.commit.offset},
            records=Records(skipped=skipped),
        )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        lowest = int(finding.current["offset"]) - self.min_records
        commits = facts.history(Commit, *scope.series)
        returned_at = commits.when(finding.at, "offset", lambda offset: (offset != UNKNOWN) & (offset <= lowest))
        return recovered_or_ended(finding, returned_at, scope, facts)

    def concerns(self, finding: Finding, observation: Observation) -> bool:
        lowest = int(finding.current["offset"]) - self.min_records
        return may_end(observation, lambda offset: offset <= lowest)


def _find_start(scope: Scope, facts: Facts) -> _Start | None:
    """Return how the group began to read the partition, or None if that was not observed."""
    commit = next(iter(facts.history(Commit, *scope.series)), None)
    assigned = _find_assignment(scope, facts)
    if commit is None or commit.offset is None or assigned is None or assigned.start > commit.at:
        return None
    readings = facts.history(LogOffsets, *scope.in_partition)
    reading = readings.as_of(assigned.start)
    if reading is None:
        return None
    return _Start(commit, assigned, reading.log_start, log_end(readings, assigned.start))


def _find_assignment(scope: Scope, facts: Facts) -> GroupState | None:
    """Return the first state in which the group was assigned the partition, if it is known without it."""
    states = pairwise(facts.history(GroupState, scope.cluster, scope.group or ""))
    assigned = (after for before, after in states if _has_partition(after, scope) and not _has_partition(before, scope))
    return next(assigned, None)


def _has_partition(state: GroupState, scope: Scope) -> bool:
    return any((scope.topic, scope.partition) in member.partitions for member in state.members)


def _is_new_partition(scope: Scope, start: _Start, facts: Facts) -> bool:
    """Return whether the partition was created after the group began to read its topic, and its log was seen to begin.

    Partitions that were known before a restart of Backflow are not new: their logs had grown before.
    """
    cluster, group, topic, partition = scope.series
    first_state = next(iter(facts.history(PartitionState, *scope.in_partition)), None)
    first_reading = next(iter(remembered(facts.history(LogOffsets, *scope.in_partition))), None)
    if first_state is None or first_reading is None or first_reading.log_end > start.log_end / 2:
        return False
    if is_recreated(facts, scope.in_partition, first_state.at, start.commit.at):
        return False
    return any(
        _began_before(facts.history(PartitionState, cluster, topic, other), first_state.at)
        and _began_before(facts.history(Commit, cluster, group, topic, other), start.assigned.start)
        for name, other in partitions_of(facts, cluster, group)
        if name == topic and other != partition
    )


def _began_before(history: History[Any], at: int) -> bool:
    return bool(history.changes) and history.changes[0].at < at


def _find_pace(scope: Scope, start: _Start, facts: Facts) -> float:
    """Return the highest rate at which the group was observed to read any partition of the topic; 0 if unknown."""
    cluster, group, topic, _ = scope.series
    histories = facts.histories(Commit, cluster=cluster, group=group, topic=topic)
    return max(
        (
            ((after.offset or 0) - (before.offset or 0)) * 1000 / max(after.at - before.at, 1000)
            for history in histories
            for before, after in pairwise(drop_unmoved(history))
            if after.at <= start.assigned.start
        ),
        default=0,
    )
