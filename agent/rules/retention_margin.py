"""retention_margin: the records that a group reads next will soon be deleted."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import ClassVar

import numpy as np

from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, LONG_AGO, History
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.batches import Flags
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, reader
from agent.model.observations.kafka import Commit, LogOffsets, TopicSettings
from agent.model.text import count, day_of, instant, place, span
from agent.rules.queries.partitions import find_deletion
from agent.rules.queries.retention import MIN_AGE_MS, Margin, find_margin, is_age_known, may_have_speed
from agent.rules.queries.unread import (
    first_not_final,
    last_moves,
    log_end_at,
    longest_interval,
    read_until,
    remembered,
    sample_times,
    was_observed,
    was_written_by,
    written_by,
)

_SHARE = 5
"""The warning comes at the earliest in the last fifth of the time for which records are kept."""

_INTERVALS = 3
_WINDOW_MS = FINALIZATION_MS


class RetentionMargin(GroupRule):
    """The oldest records that a group has not read may be deleted within `within`, and it is not catching up.

    With the topic's settings: retention.ms after they were written, as the history of the log end offset shows. If
    retention.ms is unknown or retention.bytes is set: when the log start offset will reach them at the speed at which
    it has risen (three times or more). At the earliest in the last fifth of the time for which records are kept.
    Not: a topic without retention, a group that reads faster than records expire, a group abandoned for a day, up to
    ten offsets at a log end that was there a minute after the group's last move (transaction markers).
    Recovers when the margin is twice that. Over when the records are deleted (retention_overrun) or the topic is.
    """

    title = "{group} is about to lose unread records on {topic}[{partition}] to retention"
    is_ongoing = True
    is_single = True
    is_delay = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Raise retention.ms and retention.bytes of {topic} now (kafka-configs --alter --entity-type topics), "
            "then start or speed up {reader}.",
            only_while_open=True,
        ),
    }
    observes = ()
    revisits = Commit

    within: PositiveDuration = 14_400_000
    """How long before records may be deleted the warning comes at the earliest."""
    abandoned_after: PositiveDuration = 86_400_000
    """How long after it last read a group is abandoned."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        deleted_from = finding.current.get("deleted_from")
        if deleted_from is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: unread records may be deleted from {instant(deleted_from, day)} on"

    def revisit(self, history: History[Commit], facts: Facts) -> Iterable[Scope]:
        oldest = history.changes[0]
        log = facts.history(LogOffsets, oldest.cluster, oldest.topic, oldest.partition)
        for commit in (oldest, first_not_final(facts, history)):  # the former is quickly found
            offset = commit.offset
            if offset is None or not was_written_by(log, offset, facts.now - MIN_AGE_MS):
                return ()
        if offset is None or not self.applies_to(oldest.group, oldest.topic):
            return ()
        last = log.changes[-1]
        settings = facts.history(TopicSettings, oldest.cluster, oldest.topic).last
        is_old = False
        if settings is not None and settings.retention_ms > 0:
            # Between two readings the record may have been written before the second: look somewhat earlier.
            age = settings.retention_ms - 2 * self._limit(settings.retention_ms)
            log_end = log_end_at(log, facts.now - age)
            is_old = log_end is not None and log_end > offset
        is_near = last.log_start <= offset <= last.log_start + (last.log_end - last.log_start) / _SHARE
        if not is_old and not (is_near and may_have_speed(settings, log)):
            return ()
        return (Scope(oldest.cluster, oldest.group, oldest.topic, oldest.partition),)

    def ignores_series(self, series: SeriesAtRest, facts: Facts) -> Flags:
        return np.asarray(series.oldest_offset >= series.by_partition(partial(self._endangered_below, facts)))

    def _endangered_below(self, facts: Facts, partition: tuple[str, str, int]) -> int:
        """Return an offset from which on no unread record is old enough for `revisit`."""
        settings = facts.history(TopicSettings, *partition[:2]).last
        log, old, near = facts.history(LogOffsets, *partition), LONG_AGO, LONG_AGO
        if settings is not None and settings.retention_ms > 0:
            age = settings.retention_ms - 2 * self._limit(settings.retention_ms)
            log_end = log_end_at(log, facts.now - age)
            old = LONG_AGO if log_end is None else math.ceil(log_end)
        if log.last is not None and may_have_speed(settings, log):
            near = log.last.log_start + (log.last.log_end - log.last.log_start) // _SHARE + 1
        return min(max(old, near), written_by(facts, facts.now - MIN_AGE_MS, partition))

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield the first of the last minutes at which the margin was too small."""
        history = facts.history(Commit, *scope.series)
        readings = remembered(facts.history(LogOffsets, *scope.in_partition))
        for at in sample_times(facts):
            commit = history.as_of(at) if was_observed(facts, scope.series, at) else None
            if commit is None or commit.offset is None or not self._is_endangered(scope, facts, readings, at):
                continue
            margin = _margin(scope, facts, readings, commit, at)
            read = read_until(facts, scope, at)
            if margin is None or read is None or at > read + self.abandoned_after:
                continue
            end = next(reading.log_end for reading in reversed(readings) if reading.at <= at)
            deleted_from, day = int(margin.deleted_from), day_of(at)
            left = span(max(deleted_from - at, 0))
            yield self.make_finding(
                scope,
                commit,
                at=at,
                since=at,
                known_at=at,
                detail=f"{scope.group} has read {scope.topic}[{scope.partition}] up to {commit.offset:,}: of "
                f"{count(end - commit.offset, 'unread record')}, the oldest may be deleted from "
                f"{instant(deleted_from, day)} UTC on, {left} after {instant(at, day)} UTC",
                previous={"offset": commit.offset},
                current={"deleted_from": deleted_from, "unread": end - commit.offset},
            )
            return

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        log = facts.history(LogOffsets, *scope.in_partition)
        readings, history = remembered(log), facts.history(Commit, *scope.series)
        ends: list[tuple[int, str]] = []
        for reading in log.after(finding.at):
            commit = history.as_of(reading.at)
            if commit is not None and commit.offset is not None and commit.offset < reading.log_start:
                ends.append((reading.at, "records have been deleted"))
                break
        settings = facts.history(TopicSettings, scope.cluster, scope.topic).after(finding.at)
        for at in sorted(change.at for change in [*history.after(finding.at), *settings]):
            commit = history.as_of(at)
            if commit is None:
                continue
            if commit.offset is None:
                ends.append((at, "its committed offset was deleted"))
                break
            if not is_age_known(readings, commit.offset, at):
                continue
            margin = _margin(scope, facts, readings, commit, at)
            if margin is None or margin.deleted_from - at >= 2 * self._limit(margin.kept):
                ends.append((at, ""))
                break
        deleted = find_deletion(facts, scope.in_partition, finding.at)
        if deleted is not None:
            ends.append((deleted, "the topic was deleted"))
        if not ends:
            return finding
        at, reason = min(ends)
        return ended(finding, at, reason) if reason else recovered(finding, at)

    def _limit(self, kept: float) -> int:
        """Return how long before deletion the warning comes, ms."""
        return int(min(self.within, kept / _SHARE))

    def _is_endangered(self, scope: Scope, facts: Facts, readings: list[LogOffsets], at: int) -> bool:
        """Return whether the margin is too small at that moment and does not grow."""
        history = facts.history(Commit, *scope.series)
        commit = history.as_of(at)
        margin = None if commit is None or commit.offset is None else _margin(scope, facts, readings, commit, at)
        if margin is None or margin.deleted_from - at >= self._limit(margin.kept):
            return False
        begin = at - max(_WINDOW_MS, _INTERVALS * longest_interval(last_moves(history, at)))
        before = history.as_of(begin)
        earlier = None if before is None or before.offset is None else _margin(scope, facts, readings, before, begin)
        return earlier is None or margin.deleted_from - at <= earlier.deleted_from - begin


def _margin(scope: Scope, facts: Facts, readings: list[LogOffsets], commit: Commit, at: int) -> Margin | None:
    settings = facts.history(TopicSettings, scope.cluster, scope.topic).as_of(at)
    return find_margin(settings, readings, commit, at)
