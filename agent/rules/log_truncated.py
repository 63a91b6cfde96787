"""log_truncated: a partition's log end offset decreases."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.findings import Finding, Records
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.text import count
from agent.rules.queries.advice import REUSED_OFFSETS, prevent_truncation
from agent.rules.queries.causes import check_recreation
from agent.rules.queries.partitions import (
    earliest,
    find_deletion,
    find_leader,
    find_replicas,
    find_truncations,
    has_unclean_election,
    is_recreated,
)
from agent.rules.queries.positions import is_foreign_offset
from agent.rules.queries.subjects import groups_of


class LogTruncated(TopicRule):
    """A log end offset decreases within one incarnation of the topic (topic id, or czxid of its znode): records lost.

    At least the difference is lost, and at least position - log end offset if a consumer had read further. New records
    reuse the offsets of the lost ones. Reported at once after an unclean election, else when the log end offset is
    still lower 5 s later.
    Not: a re-created topic (topic_recreated), retention or DeleteRecords (they raise the log start offset), a high
    watermark that drops for a moment on a clean leader change (before Kafka 2.2), a partition without a leader.
    Recovers when the log has grown to its old end.
    """

    title = "{topic}[{partition}] lost {records} records: its log was truncated"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Have the producers of {topic} resend what they wrote to {place} before {start} "
            f"(offsets {{low}}-{{high}}). {REUSED_OFFSETS}",
        ),
    }
    observes = (LogOffsets,)
    ignores_growth = True

    min_records: int = 1
    """The smallest truncation reported, in records."""

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        return super().advice_for(finding)._replace(prevent=prevent_truncation(finding))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return finding.detail.partition(" (")[0]

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, LogOffsets) or not self.topics.match(observation.topic):
            return ()
        readings = facts.history(LogOffsets, observation.cluster, observation.topic, observation.partition).changes[-2:]
        decreased = len(readings) > 1 and readings[0].log_end - readings[1].log_end >= self.min_records
        return (Scope.of_partition(observation),) if decreased else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for before, after, known_at in find_truncations(facts, scope.in_partition):
            decrease = before.log_end - after.log_end
            if decrease < self.min_records:
                continue
            furthest, reader = max(_find_positions(facts, scope.in_partition, before, after), default=(0, ""))
            lost = max(decrease, furthest - after.log_end)
            read = f" ({reader} had read up to {furthest:,})" if lost > decrease else ""
            ends = f"log truncated {before.log_end:,} -> {after.log_end:,}"
            is_unclean = has_unclean_election(facts, scope.in_partition, before.at, after.at)
            yield self.make_finding(
                scope,
                after,
                since=before.at if after.since is None else after.since,
                known_at=known_at,
                detail=f"{scope.topic}[{scope.partition}]: {ends}, at least {count(lost, 'record')} lost{read}",
                labels=("unclean",) if is_unclean else (),
                previous={"log_end": before.log_end},
                current={
                    "log_end": after.log_end,
                    **find_replicas(facts, scope.in_partition, after.at),
                    **find_leader(facts, scope.in_partition, after.at),
                },
                records=Records(lost=lost),
                checks=[check_recreation(facts, scope.in_partition, before.at, after.at)],
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["log_end"])
        readings = facts.history(LogOffsets, *scope.in_partition)
        regrown_at = readings.when(finding.at, "log_end", lambda log_end: log_end >= old)
        return recovered(finding, earliest(regrown_at, find_deletion(facts, scope.in_partition, finding.at)))


def _find_positions(
    facts: Facts, partition: tuple[str, str, int], before: LogOffsets, after: LogOffsets
) -> Iterator[tuple[int, str]]:
    """Yield (offset, group) of the commits between the two readings, within this incarnation of the partition."""
    cluster, topic, number = partition
    for group in groups_of(facts, *partition):
        history = facts.history(Commit, cluster, group, topic, number)
        last = history.as_of(before.at)
        for commit in [*([] if last is None else [last]), *history.after(before.at)]:
            if commit.offset is None or commit.at > after.at or is_foreign_offset(facts, commit):
                continue
            if not is_recreated(facts, partition, commit.at, after.at):
                yield commit.offset, group
