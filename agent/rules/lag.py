"""lag: a group reads more slowly than its topics are written, and its oldest unread records are old."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, History
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.batches import UNKNOWN, Flags
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.model.text import count, place, places, span
from agent.model.times import clock
from agent.rules.queries.subjects import partitions_of
from agent.rules.queries.unread import (
    REGULAR,
    first_not_final,
    first_unread,
    is_known_by,
    is_waiting_for_transaction,
    last_moves,
    log_end_at,
    longest_interval,
    never_below,
    remembered,
    sample_times,
    was_observed,
    was_written_by,
    written_by,
)

_INTERVALS = 3
"""Of how many of its longest commit intervals a group's pace is measured, and its lag is ordinary."""

_WINDOW_MS = FINALIZATION_MS
"""Over how long a group's pace is measured at least: histories hold that much and what may still change."""

_MINUTE_MS = 60_000

_PACE = 0.9
"""A group falls behind if it reads less than this share of what is written."""


class _Lag(NamedTuple):
    """How far behind a group is on a partition. age: of the oldest unread record at least, ms; rates: records/s."""

    commit: Commit
    age: int
    unread: int
    read_rate: float
    write_rate: float


class Lag(GroupRule):
    """A group falls behind: it reads, but less than 90 % of what is written, and its oldest unread record is old.

    Older than max(`longer_than`, 3 x its longest commit interval), as the history of the log end offset shows, with at
    least `min_records` unread on the partition. Its pace is measured over the last three minutes, or three of its
    longest intervals if that is more, in which no member joined or left.
    Not: a group that is catching up after a deployment or a burst, a group at the log end, a group that does not read
    at all (consumer_stalled, consumer_stopped), a read_committed group that waits for an open transaction.
    Recovers when the oldest unread records of these partitions are half as old. Over when the group has no members any
    more.
    """

    title = "{group} is falling behind"
    is_ongoing = True
    is_single = True
    is_delay = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out what slows {reader} down (its log, its sink), or add consumers, at most one per partition.",
            only_while_open=True,
        ),
    }
    observes = ()
    revisits = Commit

    longer_than: PositiveDuration = 900_000
    """How old the oldest unread record may be in any case."""
    min_records: int = Field(1000, ge=1)
    """Fewest unread records of a partition that count."""

    def revisit(self, history: History[Commit], facts: Facts) -> Iterable[Scope]:
        oldest = history.changes[0]
        log = facts.history(LogOffsets, oldest.cluster, oldest.topic, oldest.partition)
        for commit in (oldest, first_not_final(facts, history)):  # the former is quickly found
            offset = commit.offset
            if offset is None or log.last is None or log.last.log_end - offset < self.min_records:
                return ()
            if not was_written_by(log, offset, facts.now - self.longer_than):
                return ()
        if not self.applies_to(oldest.group, oldest.topic):
            return ()
        if not any(self._find_lag(history, log, at, facts) for at in sample_times(facts)):
            return ()
        return (Scope(oldest.cluster, oldest.group),)

    def ignores_series(self, series: SeriesAtRest, facts: Facts) -> Flags:
        written = series.by_partition(partial(written_by, facts, series.now - self.longer_than))
        ignored = (series.oldest_offset >= written) | (series.log_end - series.oldest_offset < self.min_records)
        measured = ~ignored
        # The pace of the others is measured over three of their intervals.
        measured[measured] = ~series.has_paused(measured, _WINDOW_MS // _INTERVALS + 1)
        if measured.any():
            ignored[measured] = _keep_pace(series.select(measured), facts)
        return np.asarray(ignored)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield the first of the last minutes at which the group was falling behind."""
        cluster, group = scope.cluster, scope.group or ""
        partitions = [pair for pair in partitions_of(facts, cluster, group) if self.topics.match(pair[0])]
        for at in sample_times(facts):
            pairs = (
                (facts.history(Commit, cluster, group, *pair), facts.history(LogOffsets, cluster, *pair))
                for pair in partitions
            )
            lags = [found for pair in pairs if (found := self._find_lag(*pair, at, facts))]
            if not lags:
                continue
            worst = max(lags, key=attrgetter("age", "unread"))
            behind = [{"topic": lag.commit.topic, "partition": lag.commit.partition} for lag in lags]
            oldest = place({"topic": worst.commit.topic, "partition": worst.commit.partition})
            yield self.make_finding(
                scope,
                worst.commit,
                at=at,
                since=at,
                known_at=at,
                detail=f"{group} reads {places(behind)} more slowly than it is written, at {clock(at)} UTC: "
                f"{count(sum(lag.unread for lag in lags), 'record')} unread, the oldest for {span(worst.age)} or more "
                f"({oldest}: {worst.read_rate:,.0f} records/s are read, {worst.write_rate:,.0f} written)",
                current={
                    "unread": sum(lag.unread for lag in lags),
                    "age": worst.age,
                    "behind": [[lag.commit.topic, lag.commit.partition] for lag in lags],
                },
            )
            return

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, group = scope.cluster, scope.group or ""
        states = facts.history(GroupState, cluster, group)
        before = states.as_of(finding.at)
        for state in states.after(finding.at):
            if state.is_gone:
                return ended(finding, state.at, "the group was deleted")
            if before is not None and before.has_consumers and not state.has_consumers:
                return ended(finding, state.at, "the group has no members")
            before = state
        ends = [self._caught_up(finding, (cluster, group, *pair), facts) for pair in finding.current["behind"]]
        known = [at for at in ends if at is not None]
        return recovered(finding, max(known) if len(known) == len(ends) else None)

    def _find_lag(self, history: History[Commit], log: History[LogOffsets], at: int, facts: Facts) -> _Lag | None:
        """Return the lag of a group on a partition if it was falling behind at that moment."""
        now = history.as_of(at) if history.count_until(at - _WINDOW_MS) else None
        if now is None or now.offset is None or not was_written_by(log, now.offset, at - self.longer_than):
            return None
        partition = (now.cluster, now.topic, now.partition)
        if not was_observed(facts, (now.cluster, now.group, now.topic, now.partition), at):
            return None
        moves = last_moves(history, at)
        longest = longest_interval(moves)
        begin = at - max(_WINDOW_MS, _INTERVALS * longest)
        before = history.as_of(begin)
        if len(moves) < REGULAR or before is None or before.offset is None or now.offset <= before.offset:
            return None
        has_stopped = at - moves[-1].at > max(longest, _MINUTE_MS)
        if has_stopped or facts.history(GroupState, now.cluster, now.group).between(begin, at):
            return None
        log_end, earlier_log_end = log_end_at(log, at), log_end_at(log, begin)
        unread = first_unread(remembered(log), now.offset)
        if log_end is None or earlier_log_end is None or unread is None:
            return None
        age, seconds = at - unread[1], (at - begin) / 1000
        written, read = log_end - earlier_log_end, now.offset - before.offset
        if age < max(self.longer_than, _INTERVALS * longest) or log_end - now.offset < self.min_records:
            return None
        if read >= _PACE * written or is_waiting_for_transaction(facts, partition, now.offset, at):
            return None
        return _Lag(now, age, int(log_end) - now.offset, read / seconds, written / seconds)

    def _caught_up(self, finding: Finding, series: tuple[str, str, str, int], facts: Facts) -> int | None:
        """Return when the oldest unread record of the partition was half as old as it may be, or None."""
        cluster, _, topic, partition = series
        log, history = facts.history(LogOffsets, cluster, topic, partition), facts.history(Commit, *series)
        age = self.longer_than // 2
        begin = max(finding.at, history.changes[0].at if history.changes else finding.at)
        least = never_below(log, begin - age)
        may_be = history.when(begin - 1, "offset", lambda offset: (offset == UNKNOWN) | (offset >= least))
        for commit in [] if may_be is None else history.after(max(may_be - 1, finding.at)):
            if commit.offset is None or _is_recent(log, commit.offset, commit.at, age):
                return commit.at
        return None


def _is_recent(log: History[LogOffsets], offset: int, at: int, age: int) -> bool:
    """Return whether the record at the offset was younger than `age` at that moment, or not yet written."""
    if is_known_by(log, at - age):
        return not was_written_by(log, offset, at - age)
    reading = log.as_of(at)
    return reading is not None and reading.log_end <= offset


def _keep_pace(series: SeriesAtRest, facts: Facts) -> Flags:
    """Return which groups read no more slowly than is written, whenever it is looked at; they commit once a minute."""
    times = sample_times(facts)

    def written_in_windows(partition: tuple[str, str, int]) -> list[float]:
        log = facts.history(LogOffsets, *partition)
        ends = [(log_end_at(log, at - _WINDOW_MS), log_end_at(log, at)) for at in times]
        return [0 if before is None or now is None else now - before for before, now in ends]

    written = series.by_partition(written_in_windows)
    keep: Flags = np.all(~(written > 0), axis=1)
    rows = ~keep
    before, now = np.split(series.select(rows).offsets_as_of([*(at - _WINDOW_MS for at in times), *times]), 2, axis=1)
    is_slower = (before != UNKNOWN) & (now > before) & (now - before < _PACE * written[rows])
    keep[rows] = ~is_slower.any(axis=1)
    return keep
