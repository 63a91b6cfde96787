"""offset_jump: a committed offset jumps ahead over records that cannot have been read."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.model.text import place
from agent.rules.queries.operators import is_moved_by_operator, is_stopped
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    drop_unmoved,
    earliest,
    find_deletion,
    is_recreated,
)
from agent.rules.queries.subjects import groups_of, partitions_of

_RHYTHM = 3
"""How many moves show a group's pace."""

_RECENT = 8
_PACE = 20


class OffsetJump(GroupRule):
    """A group's committed offset jumps ahead over records it cannot have read: they were skipped (a reset to latest).

    Reported if it resumed at the log end after Kafka had forgotten its offset (`after_expiry`), or after its offset was
    below the log start offset (only what retention had left counts as skipped). Also if an operator moved an idle group
    (`operator_reset`; info), if it advanced faster than `max_rate`, or if a lagging group jumped to the log end `surge`
    times faster than it had ever read while lagging (at least three moves show that).
    Not: catching up, transaction markers, a re-created topic, unread records that were deleted (retention_overrun).
    Recovers when the group moves back to where it jumped from, to read what it skipped.
    """

    title = "{group} skipped {records} records on {topic}[{partition}]"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Have {reader} read {place} offsets {low}-{high} before retention deletes them.",
            prevent="Set auto.offset.reset=none or earliest for {reader}.",
        ),
    }
    observes = (Commit, LogOffsets, GroupState)

    min_records: int = 1000
    """The smallest jump reported, in records skipped."""
    max_rate: int = 1_000_000
    """Records per second that no consumer can read from one partition."""
    surge: int = 20
    """How many times faster than ever before a lagging group may catch up."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        old, new = finding.previous.get("offset"), finding.current.get("offset")
        if old is None or new is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: jumped {old:,} -> {new:,}, {finding.records.skipped:,} records skipped"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scope of each commit that advanced further than those before, and of what may explain it later."""
        match observation:
            case Commit(cluster=cluster, group=group, topic=topic, partition=partition, offset=int() as offset):
                recent = facts.history(Commit, cluster, group, topic, partition).changes[-_RECENT:]
                old = recent[-2].offset if len(recent) > 1 else offset
                if old is not None and offset - old < self.min_records:
                    return ()
                known = drop_unmoved(recent)
                is_suspicious = len(known) > 1 and (
                    len(known) < len(recent)
                    or not self._is_readable(known, facts)
                    or _is_below_log_start(facts, known[-2], observation)
                )
                groups = [group] if is_suspicious else []
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_start=log_start):
                last = facts.history(LogOffsets, cluster, topic, partition).changes[-2:]
                groups = [*groups_of(facts, cluster, topic, partition)] if last[0].log_start < log_start else []
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
        history, readings = facts.history(Commit, *scope.series), facts.history(LogOffsets, *scope.in_partition)
        commits = drop_unmoved(history)
        for index, (before, after) in enumerate(pairwise(commits)):
            old, new = before.offset or 0, after.offset or 0
            reading = readings.as_of(after.at)
            log_start = reading.log_start if reading is not None else 0
            skipped = new - max(old, log_start)
            if skipped < self.min_records or is_recreated(facts, scope.in_partition, before.at, after.at):
                continue
            is_forgotten = any(commit.offset is None for commit in history.between(before.at - 1, after.at - 1))
            recent = commits[max(index + 2 - _RECENT, 0) : index + 2]
            if not is_forgotten and old >= log_start and self._is_readable(recent, facts):
                continue
            by_operator = is_moved_by_operator(facts, before, after, self.min_records)
            to_latest = _is_to_latest(readings, before, after)
            unread = _log_end(readings, after.start) - max(old, log_start)
            is_reset = to_latest and (is_forgotten or old < log_start) and unread >= self.min_records
            earlier = commits[max(index - _PACE, 0) : index + 1]
            if not (by_operator or is_reset or self._is_too_fast(earlier, after, readings, to_latest=to_latest)):
                continue
            labels = {"to_latest": to_latest, "after_expiry": is_forgotten, "operator_reset": by_operator}
            yield self.make_finding(
                scope,
                after,
                detail=(
                    f"{scope.group} on {scope.topic}[{scope.partition}] {_describe(labels)}: {old:,} -> {new:,}, "
                    f"{skipped:,} records skipped"
                ),
                severity=Severity.INFO if by_operator else None,
                labels=[label for label, applies in labels.items() if applies],
                previous={"offset": old},
                current={"offset": new},
                records=Records(skipped=skipped),
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        commits = facts.history(Commit, *scope.series).after(finding.at)
        moved_back = (commit.at for commit in commits if commit.offset is not None and commit.offset <= old)
        return recovered(finding, earliest(moved_back, find_deletion(facts, scope.in_partition, finding.at)))

    def _is_readable(self, commits: list[Commit], facts: Facts) -> bool:
        """Return whether the last of these moves went little further, in little more time, than those before. Cheap.

        If a group's pace is not known yet, everything a consumer can read is believed, unless its members are gone.
        """
        *earlier, (took, advance) = [
            (after.at - before.at, (after.offset or 0) - (before.offset or 0)) for before, after in pairwise(commits)
        ]
        if len(earlier) < _RHYTHM:
            return advance * 1000 <= self.max_rate * max(took, 1000) and not is_stopped(facts, commits[-1])
        return took <= 3 * max(earlier)[0] and advance <= 2 * max(earlier_advance for _, earlier_advance in earlier)

    def _is_too_fast(
        self, earlier: list[Commit], after: Commit, readings: History[LogOffsets], *, to_latest: bool
    ) -> bool:
        """Return whether no consumer reads that fast, or this group never did. earlier: the moves up to the jump."""
        before = earlier[-1]
        # Commits may come in bunches after a coordinator was down for a moment: measure over a second at least.
        rate = ((after.offset or 0) - (before.offset or 0)) * 1000 / max(after.at - before.start, 1000)
        earlier_rates = [
            ((later.offset or 0) - (commit.offset or 0)) * 1000 / max(later.at - commit.at, 1)
            for commit, later in pairwise(earlier)
            if self._is_lagging(commit, readings) and self._is_lagging(later, readings)
        ]
        can_surge = to_latest and len(earlier_rates) >= _RHYTHM and self._is_lagging(before, readings)
        return rate > self.max_rate or (can_surge and rate > self.surge * max(earlier_rates) > 0)

    def _is_lagging(self, commit: Commit, readings: History[LogOffsets]) -> bool:
        return _log_end(readings, commit.at) - (commit.offset or 0) >= self.min_records


def _describe(labels: Mapping[str, bool]) -> str:
    if labels["operator_reset"]:
        return "was moved ahead by an operator"
    jump = "jumped to the log end" if labels["to_latest"] else "jumped ahead"
    return f"{jump} after its committed offset expired" if labels["after_expiry"] else jump


def _is_below_log_start(facts: Facts, before: Commit, after: Observation) -> bool:
    reading = facts.history(LogOffsets, before.cluster, before.topic, before.partition).as_of(after.at)
    return reading is not None and reading.log_start > (before.offset or 0)


def _log_end(readings: History[LogOffsets], at: int) -> int:
    """Return the log end offset as known at that moment, or 0 if it was not known."""
    reading = readings.as_of(at)
    return 0 if reading is None else reading.log_end


def _is_to_latest(readings: History[LogOffsets], before: Commit, after: Commit) -> bool:
    """Return whether the jump went to the log end offset or beyond, as of when the group may have been reset."""
    end = _log_end(readings, max(before.at, after.start - CLOCK_SLACK_MS))
    return 0 < end <= (after.offset or 0)
