"""log_truncated: the end of a partition's log falls."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.findings import Finding, Records
from agent.model.observations import Commit, LogOffsets, Observation
from agent.rules.queries.advice import DURABLE_WRITES
from agent.rules.queries.partitions import earliest, end_falls, end_of, recreated, unclean_near
from agent.rules.queries.subjects import groups_of


class LogTruncated(TopicRule):
    """A log's end falls within one incarnation of the topic (topic id, or czxid of its znode): records are lost.

    At least the fall is lost, and at least position - end where a consumer had read further. The end falls between
    two reads; told at once after an unclean election, else when it is still lower 5 s later.
    Not: a topic deleted and created again (topic_recreated), retention or DeleteRecords (they raise the log's start),
    a high watermark that dips on a clean leader change (before 2.2), a partition whose leader is away.
    Recovers when the log has grown to its old end.
    """

    title = "{topic}[{partition}] lost at least {records} records: its log was truncated"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="have the producers of {topic} send again what they wrote to {place} shortly before {start}.",
            prevent=DURABLE_WRITES,
        ),
    }
    observes = (LogOffsets,)

    min_records: int = 1
    """Smallest fall told, in records."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each reading below the one before it."""
        if not isinstance(observation, LogOffsets) or not self.topics.match(observation.topic):
            return ()
        readings = facts.history(LogOffsets, observation.cluster, observation.topic, observation.partition).changes[-2:]
        fell = len(readings) > 1 and readings[0].log_end - readings[1].log_end >= self.min_records
        return (Scope(observation.cluster, None, observation.topic, observation.partition),) if fell else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each fall that is no passing dip."""
        for before, after, known_at in end_falls(facts, scope.in_partition):
            fall = before.log_end - after.log_end
            if fall < self.min_records:
                continue
            furthest, reader = max(_positions(facts, scope.in_partition, before, after), default=(0, ""))
            lost = max(fall, furthest - after.log_end)
            read = f"; {reader} had read up to {furthest:,}" if lost > fall else ""
            ends = f"log end {before.log_end:,} -> {after.log_end:,}"
            yield self.make_finding(
                scope,
                after,
                since=before.at if after.since is None else after.since,
                known_at=known_at,
                detail=f"{scope.topic}[{scope.partition}]: {ends}{read}: at least {lost:,} records are lost",
                labels=("unclean",) if unclean_near(facts, scope.in_partition, before.at, after.at) else (),
                previous={"log_end": before.log_end},
                current={"log_end": after.log_end},
                records=Records(lost=lost),
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the log has grown to its old end, or the partition is no more."""
        old = int(finding.previous["log_end"])
        regained = (
            one.at for one in facts.history(LogOffsets, *scope.in_partition).after(finding.at) if one.log_end >= old
        )
        return recovered(finding, earliest(regained, end_of(facts, scope.in_partition, finding.at)))


def _positions(
    facts: Facts, partition: tuple[str, str, int], before: LogOffsets, after: LogOffsets
) -> Iterator[tuple[int, str]]:
    """(offset, group) of what had been committed between the two readings, in this incarnation of the partition."""
    cluster, topic, number = partition
    for group in groups_of(facts, *partition):
        history = facts.history(Commit, cluster, group, topic, number)
        held = history.as_of(before.at)
        for commit in [*([] if held is None else [held]), *history.after(before.at)]:
            if commit.offset is None or commit.at > after.at or recreated(facts, partition, commit.at, after.at):
                continue
            yield commit.offset, group
