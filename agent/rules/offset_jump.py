"""offset_jump: a committed offset jumps ahead over records that cannot have been read."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, History
from agent.engine.ordinary import CommitProgress
from agent.engine.rule import Advice, ChosenSeverity, GroupRule, Scope
from agent.model.batches import UNKNOWN, Flags
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, TopicSettings
from agent.model.text import count, place
from agent.rules.queries.causes import FORGOTTEN, check_commit_causes, why_forgotten
from agent.rules.queries.operators import (
    find_last_return,
    histories_of_group,
    is_moved_by_operator,
    is_stopped,
    may_be_moved_by_operator,
)
from agent.rules.queries.partitions import CLOCK_SLACK_MS, drop_unmoved, is_recreated
from agent.rules.queries.positions import (
    absent_until,
    drop_foreign,
    find_absence,
    is_beyond_usual_growth,
    log_end,
    read_before,
)
from agent.rules.queries.subjects import may_end, recovered_or_ended

_RHYTHM = 3
"""How many moves show a group's pace."""

_RECENT = 8
_PACE = 20
_SECOND_MS = 1_000

_RETURN_MS = 600_000
"""For how long after it has members again a group's moves are looked at."""


class _Jump(NamedTuple):
    """A move ahead. first: the first record that it may have skipped. is_to_latest: whether it reached the log end.

    unread: the records between that the log held for certain before the move. forgotten: the reading without an offset
    from which the group returned, if it did. begin: from when on it can have read, ms.
    """

    before: Commit
    after: Commit
    begin: int
    first: int
    unread: int
    is_to_latest: bool
    is_out_of_range: bool
    forgotten: Commit | None

    @property
    def skipped(self) -> int:
        return (self.after.offset or 0) - self.first

    @property
    def rate(self) -> float:
        """Records per second that a group must read not to have skipped any.

        Commits may come in bunches after a coordinator was down for a moment: measured over a second at least.
        """
        return self.skipped * 1000 / max(self.after.at - self.begin, _SECOND_MS)


class OffsetJump(GroupRule):
    """A group's committed offset jumps ahead over records it cannot have read: they were skipped (a reset to latest).

    Reported if it resumed at the log end after Kafka had forgotten its offset, by expiry or deletion (`after_expiry`),
    or if an operator moved an idle group (`operator_reset`; info, or what the option of that name says). Else the pace
    decides. Too fast is more than `max_rate`, or a lagging group that reaches the log end `surge` times faster than its
    present consumers ever read while they lagged, as at least three moves show. It must also be faster than 5 % of
    `max_rate`, unless its offset was below the log start offset: then it was reset for certain. Records that retention
    deleted, or that the group had read before it moved backwards, do not count as skipped.
    Not: catching up, gaps of compacted topics and of transaction markers, offsets that the log never had
    (foreign_offset), a re-created topic, unread records that were deleted (retention_overrun), a group's first commit
    (new_partition_skipped), a group that returned below its forgotten offset on another partition: it reads all again.
    Recovers when the group moves back to where it jumped from, to read what it skipped. Ends when the topic or the
    committed offset is deleted.
    """

    title = "{group} skipped {records} records on {topic}[{partition}]"
    titles: ClassVar[Mapping[str, str]] = {
        "operator_reset": "An operator moved {group} ahead by {records} records on {topic}[{partition}]"
    }
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "": Advice(
            now="Have {reader} read {place} offsets {low}-{high} before retention deletes them.",
            prevent="Set auto.offset.reset=none or earliest for {reader}.",
        ),
    }
    observes = (Commit, LogOffsets, GroupState)
    ignores_growth = True

    min_records: int = 1000
    """The smallest jump reported, in records skipped."""
    max_rate: int = 1_000_000
    """Records per second that no consumer can read from one partition."""
    surge: int = 20
    """How many times faster than ever before a lagging group may catch up."""
    operator_reset: ChosenSeverity = "info"
    """Severity of what an operator did (label `operator_reset`), whatever `severity` is."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        old, new = finding.previous.get("offset"), finding.current.get("offset")
        if old is None or new is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: jumped {old:,} -> {new:,}, {count(finding.records.skipped, 'record')} skipped"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scope of each commit that advanced further than those before, as far as is known by now."""
        histories: Iterable[History[Commit]]
        match observation:
            case Commit(at=at):
                histories, since = [facts.history_of(observation)], at - 1
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, at=at, log_start=log_start):
                before = facts.history(LogOffsets, cluster, topic, partition).changes[-2:][0]
                has_risen = before.log_start < log_start
                if not has_risen:
                    return ()
                histories, since = facts.histories(Commit, cluster=cluster, topic=topic, partition=partition), at
            case GroupState(cluster=cluster, group=group, at=at):
                histories, since = facts.histories(Commit, cluster=cluster, group=group), at
            case _:
                return ()
        moved = [history.changes[-1] for history in histories if self._is_suspicious(history, since, facts)]
        return [
            Scope(commit.cluster, commit.group, commit.topic, commit.partition)
            for commit in moved
            if self.applies_to(commit.group, commit.topic)
        ]

    def ignores_progress(self, progress: CommitProgress, facts: Facts) -> Flags:
        ignored = progress.offset - progress.offset_before < self.min_records
        is_in_log = progress.offset_before >= progress.of_partition(facts.partitions.log_start)
        was_in_log = progress.offset_before >= progress.logs.log_start
        rows = ~ignored & is_in_log & was_in_log
        took, advance, exists = progress.last_moves(rows, _RECENT - 1)
        is_known = exists[:, 1:].sum(axis=1) >= _RHYTHM
        longest, furthest = (np.where(exists[:, 1:], moves[:, 1:], 0).max(axis=1) for moves in (took, advance))
        is_even = (took[:, 0] <= 3 * longest) & (advance[:, 0] <= 2 * furthest)
        is_slow = advance[:, 0] * 1000 <= self._least_rate * np.maximum(took[:, 0], _SECOND_MS)
        ignored[rows] = is_known & (is_even | is_slow)
        is_left = rows.copy()
        is_left[rows] = is_known & ~is_even & is_slow
        ignored &= ~progress.where(is_left, partial(_needs_a_closer_look, facts))
        return ignored

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(Commit, *scope.series)
        if not any(self._may_skip(before, after, facts) for before, after in pairwise(drop_unmoved(history))):
            return
        commits = drop_unmoved(drop_foreign(facts, history))
        for index, (before, after) in enumerate(pairwise(commits)):
            if not self._may_skip(before, after, facts):
                continue
            is_reset = find_absence(facts, after) is not None or _is_below_log_start(facts, before, after)
            if not is_reset and self._is_readable(commits[max(index + 2 - _RECENT, 0) : index + 2], facts):
                continue
            jump = self._measure(before, after, facts)
            if jump.skipped < self.min_records or is_recreated(facts, scope.in_partition, before.at, after.at):
                continue
            by_operator = is_moved_by_operator(facts, before, after)
            if not by_operator and not self._is_skip(jump, commits[max(index - _PACE, 0) : index + 1], facts):
                continue
            yield self._finding(scope, jump, facts, by_operator=by_operator)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        commits = facts.history(Commit, *scope.series)
        returned_at = commits.when(finding.at, "offset", lambda offset: (offset != UNKNOWN) & (offset <= old))
        return recovered_or_ended(finding, returned_at, scope, facts)

    def concerns(self, finding: Finding, observation: Observation) -> bool:
        old = int(finding.previous["offset"])
        return may_end(observation, lambda offset: offset <= old)

    def _is_suspicious(self, history: History[Commit], since: int, facts: Facts) -> bool:
        """Return whether a commit after `since` advanced further than those before. Cheap: called per commit."""
        changes = history.changes
        for index in range(len(changes) - 1, 0, -1):
            before, after = changes[index - 1], changes[index]
            if after.at <= since:
                break
            if after.offset is None or after.offset - (before.offset or 0) < self.min_records:
                continue
            recent = changes[max(index + 1 - _RECENT, 0) : index + 1]
            known = drop_unmoved(recent)
            if len(known) > 1 and (
                len(known) < len(recent)
                or not (self._is_readable(known, facts) or self._is_slow(known, facts))
                or _is_below_log_start(facts, known[-2], after)
            ):
                return True
        return False

    def _may_skip(self, before: Commit, after: Commit, facts: Facts) -> bool:
        """Return whether the move is large enough, and a finding about it would not be final."""
        is_large = (after.offset or 0) - (before.offset or 0) >= self.min_records
        return is_large and after.seen > facts.final_before - CLOCK_SLACK_MS

    def _measure(self, before: Commit, after: Commit, facts: Facts) -> _Jump:
        readings = facts.history(LogOffsets, after.cluster, after.topic, after.partition)
        reading = readings.as_of(after.at)
        log_start = reading.log_start if reading is not None else 0
        first = max(before.offset or 0, log_start, read_before(facts, after))
        # A reset comes after the last sighting of the old offset; consumers commit within a minute after it.
        begin = max(after.start, after.at - LATENESS_MS)
        end = log_end(readings, max(before.at, begin - CLOCK_SLACK_MS))
        return _Jump(
            before,
            after,
            _find_begin(before.start, after, facts),
            first,
            unread=log_end(readings, begin) - first,
            is_to_latest=0 < end <= (after.offset or 0),
            is_out_of_range=(before.offset or 0) < log_start,
            forgotten=find_absence(facts, after),
        )

    def _is_skip(self, jump: _Jump, earlier: list[Commit], facts: Facts) -> bool:
        """Return whether the group cannot have read the records. earlier: the commits up to the jump."""
        has_unread = jump.is_to_latest and jump.unread >= self.min_records
        if jump.forgotten is not None:
            return has_unread and not _returned_at_earliest(jump.after, facts)
        known = facts.history(TopicSettings, jump.after.cluster, jump.after.topic)
        settings = known.as_of(jump.after.at + LATENESS_MS)
        if settings is not None and (settings.is_compacted or jump.rate > self.max_rate):
            return not settings.is_compacted
        pace = self._find_pace(jump, earlier, facts)
        least = 0 if jump.is_out_of_range else self._least_rate
        return has_unread and pace > 0 and jump.rate > max(self.surge * pace, least)

    def _find_pace(self, jump: _Jump, earlier: list[Commit], facts: Facts) -> float:
        """Return the highest rate at which the group's present consumers have read while lagging; 0 if unknown."""
        readings = facts.history(LogOffsets, jump.after.cluster, jump.after.topic, jump.after.partition)
        state = facts.history(GroupState, jump.after.cluster, jump.after.group).as_of(jump.after.at)
        rates = [
            ((later.offset or 0) - (commit.offset or 0)) * 1000 / max(later.at - commit.at, 1)
            for commit, later in pairwise(earlier)
            if (state is None or commit.at >= state.at)
            and self._is_lagging(commit, readings)
            and self._is_lagging(later, readings)
        ]
        return max(rates) if len(rates) >= _RHYTHM else 0

    def _is_lagging(self, commit: Commit, readings: History[LogOffsets]) -> bool:
        return log_end(readings, commit.at) - (commit.offset or 0) >= self.min_records

    def _finding(self, scope: Scope, jump: _Jump, facts: Facts, *, by_operator: bool) -> Finding:
        before, after, forgotten = jump.before, jump.after, jump.forgotten
        old, new = before.offset or 0, after.offset or 0
        labels = {
            "to_latest": jump.is_to_latest,
            "after_expiry": forgotten is not None,
            "operator_reset": by_operator,
        }
        why = "" if forgotten is None else why_forgotten(facts, before, after) or FORGOTTEN
        found = [label for label, applies in labels.items() if applies]
        finding = self.make_finding(
            scope,
            after,
            # An offset that the log may never have had proves to be one (foreign_offset) at the next reading.
            known_at=after.seen + (CLOCK_SLACK_MS if is_beyond_usual_growth(facts, after) else 0),
            since=None if forgotten is None else absent_until(facts, forgotten, after),
            detail=(
                f"{scope.group} on {scope.topic}[{scope.partition}] {_describe(labels, why)}: {old:,} -> {new:,}, "
                f"{count(jump.skipped, 'record')} skipped"
            ),
            labels=found,
            previous={"offset": old},
            current={"offset": new, **({"forgotten": why} if why else {})},
            records=Records(skipped=jump.skipped),
            checks=check_commit_causes(facts, before, after, found),
        )
        return replace(finding, severity=Severity(self.operator_reset)) if by_operator else finding

    @property
    def _least_rate(self) -> float:
        """Records per second that a group may have read, whatever its pace was, if its offset was in the log.

        A sink that was slow may be fast again, and the true pace of its consumers higher than was ever observed.
        """
        return self.max_rate / 20

    def _is_slow(self, commits: list[Commit], facts: Facts) -> bool:
        """Return whether the last of these moves, if it was in the log, is for certain none that is reported. Cheap."""
        before, after = commits[-2:]
        advance = (after.offset or 0) - (before.offset or 0)
        took = max(after.at - _find_begin(before.at, after, facts), _SECOND_MS)
        if len(commits) <= _RHYTHM + 1 or advance * 1000 > self._least_rate * took:
            return False
        return not may_be_moved_by_operator(facts, after.cluster, after.group, after.start, after.at)

    def _is_readable(self, commits: list[Commit], facts: Facts) -> bool:
        """Return whether the last of these moves went little further, in little more time, than those before. Cheap.

        If a group's pace is not known yet, everything a consumer can read is believed, unless its members are gone.
        """
        *earlier, (took, advance) = [
            (after.at - before.at, (after.offset or 0) - (before.offset or 0)) for before, after in pairwise(commits)
        ]
        if len(earlier) < _RHYTHM:
            took = commits[-1].at - _find_begin(commits[-2].at, commits[-1], facts)
            return advance * 1000 <= self.max_rate * max(took, _SECOND_MS) and not is_stopped(facts, commits[-1])
        return took <= 3 * max(earlier)[0] and advance <= 2 * max(earlier_advance for _, earlier_advance in earlier)


def _find_begin(before: int, after: Commit, facts: Facts) -> int:
    """Return from when on the group can have read: since the commit before, or since it has members again.

    before: when that commit was made, ms.
    """
    returned = find_last_return(facts, after.cluster, after.group, after.at)
    return before if returned is None else max(before, returned)


def _needs_a_closer_look(facts: Facts, cluster: str, group: str, start: int, at: int) -> bool:
    """Return whether a move that is slow since the commit before may be an operator's, or fast since the group is back.

    start, at: of the move, ms.
    """
    returned = find_last_return(facts, cluster, group, at)
    is_back = returned is not None and at - returned < _RETURN_MS
    return is_back or may_be_moved_by_operator(facts, cluster, group, start, at)


def _describe(labels: Mapping[str, bool], forgotten: str) -> str:
    if labels["operator_reset"]:
        return "was moved ahead by an operator"
    if labels["after_expiry"]:
        return f"resumed at the log end after its committed offset {forgotten}"
    return "jumped to the log end" if labels["to_latest"] else "jumped ahead"


def _is_below_log_start(facts: Facts, before: Commit, after: Observation) -> bool:
    reading = facts.history(LogOffsets, before.cluster, before.topic, before.partition).as_of(after.at)
    return reading is not None and reading.log_start > (before.offset or 0)


def _returned_at_earliest(back: Commit, facts: Facts) -> bool:
    """Return whether the group returned at the same time below another offset that Kafka had forgotten."""
    return any(
        gone.offset is None and (later.offset or 0) < (before.offset or 0)
        for history in histories_of_group(facts, back)
        for before, gone, later in zip(history.changes, history.changes[1:], history.changes[2:], strict=False)
        if abs(later.at - back.at) <= LATENESS_MS
    )
