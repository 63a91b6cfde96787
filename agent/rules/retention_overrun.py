"""retention_overrun: records are deleted before a living group has read them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from msgspec.structs import replace

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding, Records
from agent.model.observations import Commit, GroupState, LogOffsets, Observation
from agent.rules.queries.partitions import CLOCK_SLACK_MS, earliest, end_of, intervals, moves, recreated
from agent.rules.queries.subjects import groups_of, partitions_of


class RetentionOverrun(GroupRule):
    """The log's start passes the committed offset of a living group: records were deleted unread.

    By retention or DeleteRecords. A group lives by its own rhythm: it has a member for the partition, or has committed
    the topic within max(`alive`, 3 x its longest interval). What is deleted while it stands there adds up.
    Not: abandoned groups, groups at the end of their log, a topic created again, a start already passed when first
    seen, an offset that may have been committed before the start was read (Kafka Streams deletes what it has committed:
    where both are polled, told when the offset is still below 5 s later).
    Recovers when the group commits an offset within the log.
    """

    title = "{group} lost {records} unread records on {topic}[{partition}] to retention"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="raise retention.ms and retention.bytes of {topic} until {reader} has caught up; what was deleted is to be had only where it came from.",
            prevent="why does {reader} read {topic} more slowly than it is written?",
        ),
    }
    observes = (Commit, LogOffsets)

    alive: Duration = 60_000
    """How long after its last commit a group surely lives."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each reading whose start passed a group's offset, and each commit below a later start."""
        match observation:
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_start=start):
                last = facts.history(LogOffsets, cluster, topic, partition).changes[-2:]
                if last[0].log_start >= start:
                    return ()
                groups = [
                    group
                    for group in groups_of(facts, cluster, topic, partition)
                    for held in [facts.history(Commit, cluster, group, topic, partition).as_of(observation.at)]
                    if held is not None and held.offset is not None and held.offset < start
                ]
            case Commit(cluster=cluster, topic=topic, partition=partition, offset=int() as offset, at=at):
                later = facts.history(LogOffsets, cluster, topic, partition).after(at - 1)
                groups = [observation.group] if any(one.log_start > offset for one in later) else []
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each reading whose start passed the offset that held then."""
        history = facts.history(Commit, *scope.series)
        for before, after in pairwise(facts.history(LogOffsets, *scope.in_partition)):
            commit = history.as_of(after.at)
            offset = commit.offset if commit is not None else None
            if commit is None or offset is None or not before.log_start <= offset < after.log_start:
                continue
            later = (one for one in history.after(after.at) if one.at <= after.at + LATENESS_MS)
            if any(one.start <= after.at and (one.offset or 0) >= after.log_start for one in later):
                continue
            if recreated(facts, scope.in_partition, min(before.at, commit.at), after.at):
                continue
            if self._lives(scope, after.at, facts):
                polled_ms = CLOCK_SLACK_MS if after.since is not None else 0
                yield self.make_finding(
                    scope,
                    after,
                    known_at=max(after.seen + polled_ms, commit.seen),
                    detail=_detail(scope, offset, after.log_start),
                    previous={"offset": offset, "log_start": before.log_start},
                    current={"log_start": after.log_start},
                    records=Records(lost=after.log_start - offset),
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the group commits within the log again, or the partition is no more; until then losses add up."""
        ends, commits = (
            facts.history(LogOffsets, *scope.in_partition),
            facts.history(Commit, *scope.series).after(finding.at),
        )
        within = (one.at for one in commits if (one.offset or 0) >= _start(ends.as_of(one.at)))
        over = earliest(within, end_of(facts, scope.in_partition, finding.at))
        reading = ends.last if over is None else ends.as_of(over)
        offset = int(finding.previous["offset"])
        start = int(finding.current["log_start"]) if reading is None else max(reading.log_start, offset)
        grown = replace(
            finding,
            detail=_detail(scope, offset, start),
            current={"log_start": start},
            records=Records(lost=start - offset),
        )
        return recovered(grown, over)

    def _lives(self, scope: Scope, at: int, facts: Facts) -> bool:
        cluster, group, topic, partition = scope.series
        state = facts.history(GroupState, cluster, group).as_of(at)
        assigned = {pair for member in state.members for pair in member.partitions} if state is not None else set()
        if assigned:
            return (topic, partition) in assigned
        for one, number in partitions_of(facts, cluster, group):
            series = [commit for commit in moves(facts.history(Commit, cluster, group, one, number)) if commit.at <= at]
            longest = max(intervals(series[-20:]), default=0)
            if one == topic and longest and at - series[-1].at <= max(self.alive, 3 * longest):
                return True
        return False


def _start(reading: LogOffsets | None) -> int:
    return 0 if reading is None else reading.log_start


def _detail(scope: Scope, offset: int, start: int) -> str:
    return (
        f"{scope.group} on {scope.topic}[{scope.partition}] stood at {offset:,} when the log's start rose to {start:,}: "
        f"{start - offset:,} records were deleted unread"
    )
