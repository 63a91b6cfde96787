"""hidden_reset: a committed offset stops moving because its consumer is reprocessing old records."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from agent.model.text import place
from agent.model.times import clock
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    commit_intervals,
    drop_unmoved,
    earliest,
    find_deletion,
    find_leader_changes,
    find_truncations,
    is_rebalancing,
    is_recreated,
)
from agent.rules.queries.subjects import groups_of

_REGULAR = 4
"""How many commits make a rhythm."""

_RECENT = 20
_STALE_MS = 60_000


class HiddenReset(GroupRule):
    """A committed offset moved regularly until a leader change or a truncation, and has not moved since.

    librdkafka's auto-commit never commits below the last committed offset, so a consumer that was reset and reprocesses
    old records looks like this: the offset is stuck for max(`wait`, 3 x its longest interval) while the log grows and
    the group has members or commits other partitions; rebalances do not count. Probable, not proven: positions, logs or
    client statistics prove it.
    Not: a log that does not grow, a group at the log end or busy with what has just been written, a group without
    consumers, an offset that had not moved regularly (four moves) or was stuck long before the leader change, a
    re-created topic.
    Recovers when the offset moves on.
    """

    title = "{group} on {topic}[{partition}] is stuck since a leader change or truncation: probably reset"
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Search the log of {reader}'s consumer for 'offset reset' or 'out of range' on {place}. If it was "
            "reset, deduplicate its output since {start}.",
            prevent="Commit offsets explicitly in {reader}: librdkafka's auto-commit hides a reset.",
        ),
    }
    observes = (Commit, LogOffsets, PartitionState)

    wait: Duration = 15_000
    """The shortest standstill reported."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        offset = finding.previous.get("offset")
        stuck = "" if offset is None else f" at {offset:,}"
        return f"{reader(finding.subject)} on {place(finding.subject)}: committed offset stuck{stuck}, probably reset"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        match observation:
            case PartitionState(cluster=cluster, topic=topic, partition=partition):
                has_changed = len(facts.history(PartitionState, cluster, topic, partition).changes) > 1
                groups = groups_of(facts, cluster, topic, partition) if has_changed else []
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, at=at):
                has_decreased = _has_decreased(facts.history(LogOffsets, cluster, topic, partition), at - 1)
                groups = groups_of(facts, cluster, topic, partition) if has_decreased else []
            case Commit(cluster=cluster, topic=topic, partition=partition, at=at):
                state = facts.history(PartitionState, cluster, topic, partition).last
                has_changed = state is not None and state.at >= at - CLOCK_SLACK_MS
                readings = facts.history(LogOffsets, cluster, topic, partition)
                is_late = has_changed or _has_decreased(readings, at - CLOCK_SLACK_MS)
                groups = [observation.group] if is_late else []
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield the standstill after the first leader change or truncation that no commit followed."""
        history = facts.history(Commit, *scope.series)
        for at in sorted(_find_triggers(facts, scope.in_partition)):
            last = history.as_of(at + CLOCK_SLACK_MS)
            soon_after = history.between(at + CLOCK_SLACK_MS, at + self.wait - 1)
            if last is None or any(commit.offset not in (None, last.offset) for commit in soon_after):
                continue
            commits = drop_unmoved(history)
            until_then = [commit for commit in commits if commit.at <= at + CLOCK_SLACK_MS]
            if len(until_then) < _REGULAR:
                continue
            stuck, longest = until_then[-1], max(commit_intervals(until_then[-_RECENT:]))
            known_at = self._known_at(scope, stuck, max(at, stuck.at), longest, facts)
            if known_at is None or any(
                commit.start < known_at for commit in commits if stuck.at < commit.at <= known_at + LATENESS_MS
            ):
                continue
            if at - stuck.at > max(_STALE_MS, 3 * longest):
                continue
            if is_recreated(facts, scope.in_partition, stuck.at, known_at):
                continue
            yield self.make_finding(
                scope,
                stuck,
                at=at,
                since=stuck.at if stuck.at < at else None,
                known_at=known_at,
                detail=(
                    f"{scope.group} has committed {stuck.offset:,} on {scope.topic}[{scope.partition}] since "
                    f"{clock(stuck.at)} UTC while the log grows: probably reset and reprocessing old records, hidden "
                    "by an auto-commit that never commits a lower offset"
                ),
                labels=("probable",),
                previous={"offset": stuck.offset},
                current={"offset": stuck.offset},
            )
            return

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        commits = facts.history(Commit, *scope.series).after(finding.at)
        moved_on = (commit.at for commit in commits if (commit.offset or 0) > old)
        return recovered(finding, earliest(moved_on, find_deletion(facts, scope.in_partition, finding.at)))

    def _known_at(self, scope: Scope, stuck: Commit, since: int, longest: int, facts: Facts) -> int | None:
        """Return when the standstill has lasted although there were records to read, or None if that is unknown."""
        wait = max(self.wait, 3 * longest)
        due = _find_end_of_rebalances(facts, scope, since, wait) + wait
        if facts.now < due:
            return due
        grown_at = _find_growth(facts, scope.in_partition, stuck.offset or 0, since)
        known_at = max(due, (grown_at or 0) + longest + CLOCK_SLACK_MS)
        return known_at if grown_at is not None and _is_active(facts, scope, since, known_at) else None


def _has_decreased(readings: History[LogOffsets], since: int) -> bool:
    """Return whether the log end offset has decreased in any reading after that moment. Cheap: called per commit."""
    later = readings.after(since)
    return bool(later) and any(
        after.log_end < before.log_end for before, after in pairwise([readings.as_of(since) or later[0], *later])
    )


def _find_triggers(facts: Facts, partition: tuple[str, str, int]) -> list[int]:
    changes = [new.at for _, new in find_leader_changes(facts.history(PartitionState, *partition))]
    truncations = find_truncations(facts, partition)
    return changes + [truncation.after.at for truncation in truncations if truncation.known_at <= facts.now]


def _find_growth(facts: Facts, partition: tuple[str, str, int], offset: int, since: int) -> int | None:
    """Return when the log was first seen to have grown since then, other than up to the group's committed offset."""
    history = facts.history(LogOffsets, *partition)
    last = history.as_of(since)
    lowest = None if last is None else last.log_end
    for reading in history.after(since):
        if lowest is not None and reading.log_end > lowest and reading.log_end != offset:
            return reading.seen
        lowest = reading.log_end if lowest is None else min(lowest, reading.log_end)
    return None


def _find_end_of_rebalances(facts: Facts, scope: Scope, since: int, wait: int) -> int:
    """Return the end of the rebalances that left the group less than `wait` to commit, or `since` without any."""
    for before, after in pairwise(facts.history(GroupState, scope.cluster, scope.group or "")):
        if is_rebalancing(before) and before.at < since + wait and after.at > since:
            since = after.at
    return since


def _is_active(facts: Facts, scope: Scope, since: int, until: int) -> bool:
    """Return whether the group has a member for the partition at `until`, or has committed other partitions since."""
    cluster, group, topic, partition = scope.series
    state = facts.history(GroupState, cluster, group).as_of(until)
    if state is not None and is_rebalancing(state):
        return False
    if state is not None and state.members:
        assigned = {pair for member in state.members for pair in member.partitions}
        return not assigned or (topic, partition) in assigned
    return any(
        since < commit.at <= until
        for history in facts.histories(Commit, cluster=cluster, group=group)
        if history.subject[-2:] != (topic, partition)
        for commit in drop_unmoved(history)[1:]
    )
