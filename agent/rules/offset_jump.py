"""offset_jump: a committed offset leaps ahead over records that cannot have been read."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, Records, Severity
from agent.model.observations import Commit, GroupState, LogOffsets, Observation
from agent.rules.queries.operators import by_operator, stopped
from agent.rules.queries.partitions import CLOCK_SLACK_MS, earliest, end_of, moves, recreated
from agent.rules.queries.subjects import groups_of, partitions_of

_RHYTHM = 3
_RECENT = 8


class OffsetJump(GroupRule):
    """A group's committed offset leaps ahead over records it cannot have read: they were skipped (a reset to latest).

    Told when it came back to the log's end after Kafka had forgotten its offset (`after_expiry`), after its offset had
    fallen below the log's start (only what retention had left counts as skipped), when an operator moved an idle group
    (`operator_reset`; info), when it advanced faster than `max_rate`, or when a group that lagged leapt to the log's
    end `surge` times faster than it had ever read while it lagged (three moves at least tell that).
    Not: catching up, transaction markers, a topic created again, records deleted unread (retention_overrun tells that).
    Recovers when the group goes back to where it leapt from, to read what it skipped.
    """

    title = "{group} skipped {records} records on {topic}[{partition}]"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="read {place} offsets {low}-{high} again with {reader} before retention deletes them.",
            prevent="auto.offset.reset=none or earliest for {reader}.",
        ),
    }
    observes = (Commit, LogOffsets, GroupState)

    min_records: int = 1000
    """Smallest leap told, in records skipped."""
    max_rate: int = 1_000_000
    """Records per second that no consumer reads from one partition."""
    surge: int = 20
    """How many times faster than ever before a lagging group may catch up."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each commit that advanced by `min_records` as none before it; what comes late and may tell why it did."""
        match observation:
            case Commit(cluster=cluster, group=group, topic=topic, partition=partition, offset=int() as offset):
                recent = facts.history(Commit, cluster, group, topic, partition).changes[-_RECENT:]
                old = recent[-2].offset if len(recent) > 1 else offset
                if old is not None and offset - old < self.min_records:
                    return ()
                known = moves(recent)
                told = len(known) > 1 and (
                    len(known) < len(recent) or not self._reads(known, facts) or _passed(facts, known[-2], observation)
                )
                groups = [group] if told else []
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_start=start):
                last = facts.history(LogOffsets, cluster, topic, partition).changes[-2:]
                groups = [*groups_of(facts, cluster, topic, partition)] if last[0].log_start < start else []
            case GroupState(cluster=cluster, group=group, at=at):
                return [
                    Scope(cluster, group, *pair)
                    for pair in partitions_of(facts, cluster, group)
                    if facts.history(Commit, cluster, group, *pair).after(at) and self.applies_to(group, pair[0])
                ]
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each leap that cannot have been read."""
        history, ends = facts.history(Commit, *scope.series), facts.history(LogOffsets, *scope.in_partition)
        series = moves(history)
        for index, (before, after) in enumerate(pairwise(series)):
            old, new = before.offset or 0, after.offset or 0
            reading = ends.as_of(after.at)
            start = reading.log_start if reading is not None else 0
            skipped = new - max(old, start)
            if skipped < self.min_records or recreated(facts, scope.in_partition, before.at, after.at):
                continue
            forgotten = any(one.offset is None for one in history.between(before.at - 1, after.at - 1))
            if not forgotten and old >= start and self._reads(series[max(index + 2 - _RECENT, 0) : index + 2], facts):
                continue
            operator = by_operator(facts, before, after, self.min_records)
            to_latest = _to_latest(ends, before, after)
            unread = _end(ends, after.start) - max(old, start)
            came_back = to_latest and (forgotten or old < start) and unread >= self.min_records
            if not (
                operator
                or came_back
                or self._too_fast(series[max(index - 20, 0) : index + 1], after, ends, to_latest=to_latest)
            ):
                continue
            labels = {"to_latest": to_latest, "after_expiry": forgotten, "operator_reset": operator}
            yield self.make_finding(
                scope,
                after,
                detail=(
                    f"{scope.group} on {scope.topic}[{scope.partition}] leapt from {old:,} to {new:,}: "
                    f"{skipped:,} records were not read"
                ),
                severity=Severity.INFO if operator else None,
                labels=[label for label, holds in labels.items() if holds],
                previous={"offset": old},
                current={"offset": new},
                records=Records(skipped=skipped),
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the group goes back to read what it skipped, or the partition is no more."""
        old = int(finding.previous["offset"])
        after = facts.history(Commit, *scope.series).after(finding.at)
        back = (one.at for one in after if one.offset is not None and one.offset <= old)
        return recovered(finding, earliest(back, end_of(facts, scope.in_partition, finding.at)))

    def _reads(self, commits: list[Commit], facts: Facts) -> bool:
        """Whether the last of these moves went no further, in no longer time, than those before. Cheap.

        Where a group's pace is not known yet, all that a consumer can read is believed, unless its members are gone.
        """
        *earlier, (took, leap) = [
            (two.at - one.at, (two.offset or 0) - (one.offset or 0)) for one, two in pairwise(commits)
        ]
        if len(earlier) < _RHYTHM:
            return leap * 1000 <= self.max_rate * max(took, 1000) and not stopped(facts, commits[-1])
        return took <= 3 * max(earlier)[0] and leap <= 2 * max(advance for _, advance in earlier)

    def _too_fast(self, earlier: list[Commit], after: Commit, ends: History[LogOffsets], *, to_latest: bool) -> bool:
        """Whether nobody reads that fast, or this group never did. earlier: the moves up to the leap."""
        before = earlier[-1]
        # Commits may come in bunches, after a coordinator was away for a moment: measured over a second at least.
        leap = ((after.offset or 0) - (before.offset or 0)) * 1000 / max(after.at - before.start, 1000)
        rates = [
            ((two.offset or 0) - (one.offset or 0)) * 1000 / max(two.at - one.at, 1)
            for one, two in pairwise(earlier)
            if self._lagged(one, ends) and self._lagged(two, ends)
        ]
        surge = to_latest and len(rates) >= _RHYTHM and self._lagged(before, ends)
        return leap > self.max_rate or (surge and leap > self.surge * max(rates) > 0)

    def _lagged(self, commit: Commit, ends: History[LogOffsets]) -> bool:
        return _end(ends, commit.at) - (commit.offset or 0) >= self.min_records


def _passed(facts: Facts, before: Commit, after: Observation) -> bool:
    """Whether the log's start had passed the commit."""
    reading = facts.history(LogOffsets, before.cluster, before.topic, before.partition).as_of(after.at)
    return reading is not None and reading.log_start > (before.offset or 0)


def _end(ends: History[LogOffsets], at: int) -> int:
    """The log's end as known at that moment; 0 where it was not."""
    reading = ends.as_of(at)
    return 0 if reading is None else reading.log_end


def _to_latest(ends: History[LogOffsets], before: Commit, after: Commit) -> bool:
    """Whether the leap went to the log's end or beyond, as it was when the group can have been reset."""
    end = _end(ends, max(before.at, after.start - CLOCK_SLACK_MS))
    return 0 < end <= (after.offset or 0)
