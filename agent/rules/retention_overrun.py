"""retention_overrun: records are deleted before an active group has read them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from msgspec.structs import replace

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding, Records, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.model.text import place
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    commit_intervals,
    drop_unmoved,
    earliest,
    find_deletion,
    is_recreated,
)
from agent.rules.queries.subjects import groups_of


class RetentionOverrun(GroupRule):
    """The log start offset passes the committed offset of an active group: retention deleted unread records.

    Or DeleteRecords did. A group is active by its own rhythm: it has a member for the partition, or has committed the
    topic within max(`alive`, 3 x its longest interval). What is deleted while its offset stays there adds up.
    Not: abandoned groups, groups at the end of their log, a re-created topic, a log start offset that had already
    passed when first seen, an offset that may have been committed before the log start offset was read (Kafka Streams
    deletes what it has committed: if both are polled, reported when the offset is still lower 5 s later).
    Recovers when the group commits an offset within the log.
    """

    title = "{group} lost {records} unread records on {topic}[{partition}] to retention"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Raise retention.ms and retention.bytes of {topic} until {reader} has caught up. Deleted records can "
            "only be recovered from the source system.",
            prevent="Find out why {reader} reads {topic} more slowly than it is written.",
        ),
    }
    observes = (Commit, LogOffsets)

    alive: Duration = 60_000
    """How long after its last commit a group is active in any case."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        offset, start = finding.previous.get("offset"), finding.current.get("log_start")
        if offset is None or start is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: {finding.records.lost:,} unread records deleted (read to {offset:,}, log starts at {start:,})"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        match observation:
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_start=log_start):
                last = facts.history(LogOffsets, cluster, topic, partition).changes[-2:]
                if last[0].log_start >= log_start:
                    return ()
                groups = [
                    group
                    for group in groups_of(facts, cluster, topic, partition)
                    for commit in [facts.history(Commit, cluster, group, topic, partition).as_of(observation.at)]
                    if commit is not None and commit.offset is not None and commit.offset < log_start
                ]
            case Commit(cluster=cluster, topic=topic, partition=partition, offset=int() as offset, at=at):
                later = facts.history(LogOffsets, cluster, topic, partition).after(at - 1)
                groups = [observation.group] if any(reading.log_start > offset for reading in later) else []
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(Commit, *scope.series)
        for before, after in pairwise(facts.history(LogOffsets, *scope.in_partition)):
            commit = history.as_of(after.at)
            offset = commit.offset if commit is not None else None
            if commit is None or offset is None or not before.log_start <= offset < after.log_start:
                continue
            later = (commit for commit in history.after(after.at) if commit.at <= after.at + LATENESS_MS)
            if any(commit.start <= after.at and (commit.offset or 0) >= after.log_start for commit in later):
                continue
            if is_recreated(facts, scope.in_partition, min(before.at, commit.at), after.at):
                continue
            if self._is_active(scope, after.at, facts):
                polled_ms = CLOCK_SLACK_MS if after.since is not None else 0
                yield self.make_finding(
                    scope,
                    after,
                    known_at=max(after.seen + polled_ms, commit.seen),
                    detail=_describe(scope, offset, after.log_start),
                    previous={"offset": offset, "log_start": before.log_start},
                    current={"log_start": after.log_start},
                    records=Records(lost=after.log_start - offset),
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding with the losses until now, recovered when the group commits within the log again."""
        readings, commits = (
            facts.history(LogOffsets, *scope.in_partition),
            facts.history(Commit, *scope.series).after(finding.at),
        )
        within = (commit.at for commit in commits if (commit.offset or 0) >= _log_start(readings.as_of(commit.at)))
        over = earliest(within, find_deletion(facts, scope.in_partition, finding.at))
        reading = readings.last if over is None else readings.as_of(over)
        offset = int(finding.previous["offset"])
        start = int(finding.current["log_start"]) if reading is None else max(reading.log_start, offset)
        grown = replace(
            finding,
            detail=_describe(scope, offset, start),
            current={"log_start": start},
            records=Records(lost=start - offset),
        )
        return recovered(grown, over)

    def _is_active(self, scope: Scope, at: int, facts: Facts) -> bool:
        cluster, group, topic, partition = scope.series
        state = facts.history(GroupState, cluster, group).as_of(at)
        assigned = {pair for member in state.members for pair in member.partitions} if state is not None else set()
        if assigned:
            return (topic, partition) in assigned
        for history in facts.histories(Commit, cluster=cluster, group=group, topic=topic):
            commits = [commit for commit in drop_unmoved(history) if commit.at <= at]
            longest = max(commit_intervals(commits[-20:]), default=0)
            if longest and at - commits[-1].at <= max(self.alive, 3 * longest):
                return True
        return False


def _log_start(reading: LogOffsets | None) -> int:
    return 0 if reading is None else reading.log_start


def _describe(scope: Scope, offset: int, start: int) -> str:
    return (
        f"{scope.group} had read {scope.topic}[{scope.partition}] up to {offset:,} when the log start offset rose to "
        f"{start:,}: {start - offset:,} unread records deleted"
    )
