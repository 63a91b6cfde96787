"""hidden_reset: a committed offset that stands still because its consumer is reading old records again."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations import Commit, GroupState, LogOffsets, Observation, PartitionState, clock
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    earliest,
    end_falls,
    end_of,
    intervals,
    leader_moves,
    moves,
    rebalancing,
    recreated,
)
from agent.rules.queries.subjects import groups_of, partitions_of

_REGULAR = 4
_RECENT = 20


class HiddenReset(GroupRule):
    """A committed offset that moved regularly until the leader moved or the log was truncated, and stands still since.

    librdkafka's auto-commit never commits below the last committed offset, so a consumer that was reset and reads old
    records again looks like this: the offset frozen for max(`wait`, 3 x its longest interval) while the log grows and
    the group has members or commits other partitions; a rebalance does not count. Probable, not proven: positions,
    logs or client statistics prove it.
    Not: a log that does not grow, a group at its end or busy with what has just been written, a group that is gone, an
    offset that had not moved regularly (four moves) or stood long before the leader moved, a topic created again.
    Recovers when the offset moves on.
    """

    title = "{group} on {topic}[{partition}] stands still since its leader moved: probably reset"
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="look for 'offset reset' or 'out of range' on {place} in the log of {reader}'s consumer: its committed offset hides where it reads; dedupe its output from {start}.",
            prevent="commit offsets explicitly in {reader}: librdkafka's auto-commit never goes back.",
        ),
    }
    observes = (Commit, LogOffsets, PartitionState)

    wait: Duration = 15_000
    """Shortest standstill told."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Every group on a partition whose state changed or whose log was cut; each commit dated before that."""
        match observation:
            case PartitionState(cluster=cluster, topic=topic, partition=partition):
                changed = len(facts.history(PartitionState, cluster, topic, partition).changes) > 1
                groups = groups_of(facts, cluster, topic, partition) if changed else []
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, at=at):
                fell = _fell(facts.history(LogOffsets, cluster, topic, partition), at - 1)
                groups = groups_of(facts, cluster, topic, partition) if fell else []
            case Commit(cluster=cluster, topic=topic, partition=partition, at=at):
                state = facts.history(PartitionState, cluster, topic, partition).last
                changed = state is not None and state.at >= at - CLOCK_SLACK_MS
                late = changed or _fell(facts.history(LogOffsets, cluster, topic, partition), at - CLOCK_SLACK_MS)
                groups = [observation.group] if late else []
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """The standstill after the first leader move or truncation that no commit followed."""
        history = facts.history(Commit, *scope.series)
        for at in sorted(_triggers(facts, scope.in_partition)):
            held = history.as_of(at + CLOCK_SLACK_MS)
            soon_after = history.between(at + CLOCK_SLACK_MS, at + self.wait - 1)
            if held is None or any(one.offset not in (None, held.offset) for one in soon_after):
                continue
            series = moves(history)
            until_then = [one for one in series if one.at <= at + CLOCK_SLACK_MS]
            if len(until_then) < _REGULAR:
                continue
            stood, longest = until_then[-1], max(intervals(until_then[-_RECENT:]))
            known_at = self._known_at(scope, stood, max(at, stood.at), longest, facts)
            if known_at is None or any(
                one.start < known_at for one in series if stood.at < one.at <= known_at + LATENESS_MS
            ):
                continue
            if at - stood.at > max(60_000, 3 * longest) or recreated(facts, scope.in_partition, stood.at, known_at):
                continue
            yield self.make_finding(
                scope,
                stood,
                at=at,
                since=stood.at if stood.at < at else None,
                known_at=known_at,
                detail=(
                    f"{scope.group} on {scope.topic}[{scope.partition}] has stood at {stood.offset:,} since "
                    f"{clock(stood.at)} UTC while the log grows: probably reset and reading old records again "
                    "(an auto-commit that never goes back hides it)"
                ),
                labels=("probable",),
                previous={"offset": stood.offset},
                current={"offset": stood.offset},
            )
            return

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the offset moves on, or the partition is no more."""
        old = int(finding.previous["offset"])
        moved_on = (one.at for one in facts.history(Commit, *scope.series).after(finding.at) if (one.offset or 0) > old)
        return recovered(finding, earliest(moved_on, end_of(facts, scope.in_partition, finding.at)))

    def _known_at(self, scope: Scope, stood: Commit, since: int, longest: int, facts: Facts) -> int | None:
        """When the standstill has lasted though there was to read; None where that cannot be said."""
        wait = max(self.wait, 3 * longest)
        due = _rebalanced(facts, scope, since, wait) + wait
        if facts.now < due:
            return due
        grown_at = _grown_at(facts, scope.in_partition, stood.offset or 0, since)
        known_at = max(due, (grown_at or 0) + longest + CLOCK_SLACK_MS)
        return known_at if grown_at is not None and _alive(facts, scope, since, known_at) else None


def _fell(ends: History[LogOffsets], since: int) -> bool:
    """Whether the log's end has fallen in any reading after that moment: cheap, asked for each commit."""
    later = ends.after(since)
    return bool(later) and any(
        two.log_end < one.log_end for one, two in pairwise([ends.as_of(since) or later[0], *later])
    )


def _triggers(facts: Facts, partition: tuple[str, str, int]) -> list[int]:
    moved = [new.at for _, new in leader_moves(facts.history(PartitionState, *partition))]
    return moved + [low.at for _, low, known_at in end_falls(facts, partition) if known_at <= facts.now]


def _grown_at(facts: Facts, partition: tuple[str, str, int], offset: int, since: int) -> int | None:
    """When the log was first seen to have grown since then, other than up to what the group has committed."""
    history = facts.history(LogOffsets, *partition)
    held = history.as_of(since)
    lowest = None if held is None else held.log_end
    for one in history.after(since):
        if lowest is not None and one.log_end > lowest and one.log_end != offset:
            return one.seen
        lowest = one.log_end if lowest is None else min(lowest, one.log_end)
    return None


def _rebalanced(facts: Facts, scope: Scope, since: int, wait: int) -> int:
    """When the group was done with rebalances that left it less than `wait` to commit; `since` without any."""
    for before, after in pairwise(facts.history(GroupState, scope.cluster, scope.group or "")):
        if rebalancing(before) and before.at < since + wait and after.at > since:
            since = after.at
    return since


def _alive(facts: Facts, scope: Scope, since: int, until: int) -> bool:
    """Whether the group has a member for the partition by `until`, or has committed other partitions since then."""
    cluster, group, topic, partition = scope.series
    state = facts.history(GroupState, cluster, group).as_of(until)
    if state is not None and rebalancing(state):
        return False
    if state is not None and state.members:
        assigned = {pair for member in state.members for pair in member.partitions}
        return not assigned or (topic, partition) in assigned
    return any(
        since < one.at <= until
        for pair in partitions_of(facts, cluster, group)
        if pair != (topic, partition)
        for one in moves(facts.history(Commit, cluster, group, *pair))[1:]
    )
