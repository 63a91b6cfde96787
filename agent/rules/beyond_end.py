"""beyond_end: a committed offset lies beyond the end of the log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, Records
from agent.model.observations import Commit, LogOffsets, Observation
from agent.rules.queries.advice import DURABLE_WRITES
from agent.rules.queries.partitions import earliest, end_of, recreated, sure_low, unclean_near
from agent.rules.queries.subjects import groups_of


class BeyondEnd(GroupRule):
    """The log's end, read after a commit, lies below it: the group has read records that the log no longer holds.

    Told at once after an unclean election, else when the end is still lower 5 s later.
    Not: an end read before the commit, a high watermark that dips on a clean leader change (before 2.2), a topic
    created again.
    Recovers when the log has grown past the offset again or the group has gone back into the log.
    """

    title = "{group} has read {records} records on {topic}[{partition}] that the log no longer holds"
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="watch {reader} on {place}: its next fetch is out of range, and auto.offset.reset decides where it goes on.",
            prevent=DURABLE_WRITES,
            only_while_open=True,
        ),
    }
    observes = (Commit, LogOffsets)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each reading below a group's last commit, and each commit above a later reading."""
        match observation:
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_end=end):
                groups = [
                    group
                    for group in groups_of(facts, cluster, topic, partition)
                    for held in [facts.history(Commit, cluster, group, topic, partition).as_of(observation.at - 1)]
                    if held is not None and (held.offset or 0) > end
                ]
            case Commit(cluster=cluster, topic=topic, partition=partition, offset=int() as offset, at=at):
                later = facts.history(LogOffsets, cluster, topic, partition).after(at)
                groups = [observation.group] if any(one.log_end < offset for one in later) else []
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """The first reading of each time that the end lay below the last commit before it."""
        beyond: int | None = None
        for reading in facts.history(LogOffsets, *scope.in_partition):
            commit = facts.history(Commit, *scope.series).as_of(reading.at - 1)
            offset = commit.offset if commit is not None else None
            if commit is None or offset is None or offset <= reading.log_end:
                beyond = None
                continue
            if offset == beyond or recreated(facts, scope.in_partition, commit.at, reading.at):
                continue
            beyond = offset
            known_at = sure_low(facts, scope.in_partition, offset, commit.at, reading)
            if known_at is not None:
                yield self._finding(scope, commit, reading, known_at, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the log holds the offset again, the group went back, or the partition is no more."""
        offset, end = int(finding.previous["offset"]), int(finding.current["log_end"])
        commits, readings = facts.history(Commit, *scope.series), facts.history(LogOffsets, *scope.in_partition)
        regained = (one.at for one in readings.after(finding.at) if one.log_end >= offset)
        back = (one.at for one in commits.after(finding.at) if one.offset is not None and one.offset <= end)
        over = earliest(back, end_of(facts, scope.in_partition, finding.at))
        return recovered(finding, earliest(regained, over))

    def _finding(self, scope: Scope, commit: Commit, reading: LogOffsets, known_at: int, facts: Facts) -> Finding:
        offset = commit.offset or 0
        return self.make_finding(
            scope,
            reading,
            since=max(commit.at, reading.since or commit.at),
            known_at=max(known_at, commit.seen),
            detail=(
                f"{scope.group} on {scope.topic}[{scope.partition}] had read up to {offset:,} when the log's end was "
                f"{reading.log_end:,}: at least {offset - reading.log_end:,} records are lost"
            ),
            labels=("unclean",) if unclean_near(facts, scope.in_partition, commit.at, reading.at) else (),
            previous={"offset": offset},
            current={"log_end": reading.log_end},
            records=Records(lost=offset - reading.log_end),
        )
