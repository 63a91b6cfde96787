"""Retention of a week: readings of the log are thinned out to one in 17 hours until then."""

import pytest

from agent.engine.facts import Facts
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Scope
from agent.model.observations.kafka import Commit, LogOffsets, Member, TopicSettings
from agent.rules.queries.unread import first_unread, log_end_at, remembered
from agent.rules.retention_margin import RetentionMargin
from agent.rules.retention_overrun import RetentionOverrun
from tests.builders import CLUSTER, after, commit, group_state

HOUR = 3_600
WEEK = 168 * HOUR
POLL = 600
SCOPE = Scope(CLUSTER, "g", "t", 0)


def facts_of(hours: float, log_start: int = 0) -> Facts:
    """Return the facts so many hours after a group began to wait at 36,000; a record is written every second."""
    facts, member = Facts(), Member(id="m", partitions=(("t", 0),))
    facts.absorb(group_state(0, "Stable", (member,)))
    settings = TopicSettings(
        at=after(0), cluster=CLUSTER, topic="t", cleanup_policy="delete", retention_ms=1_000 * WEEK
    )
    facts.absorb(settings)
    end = round((10 + hours) * HOUR)
    for second in range(0, end + 1, POLL):
        start = log_start if second + POLL > end else 0
        facts.absorb(reading(second, start))
        facts.absorb(commit(second + 0.1, min(second, 10 * HOUR)))
    facts.now = after(end)
    return facts


def reading(second: int, log_start: int) -> LogOffsets:
    return LogOffsets(
        at=after(second),
        since=after(second - POLL),
        cluster=CLUSTER,
        topic="t",
        partition=0,
        log_start=log_start,
        log_end=second,
    )


def test_records_that_have_expired_were_deleted_by_retention() -> None:
    facts = facts_of(hours=169, log_start=11 * HOUR)
    findings = list(RetentionOverrun().detect(SCOPE, facts))
    assert [(finding.labels, finding.records.lost) for finding in findings] == [((), HOUR)]


def test_a_record_may_have_been_written_since_the_last_reading_that_is_known() -> None:
    facts = facts_of(hours=160)
    log = facts.history(LogOffsets, CLUSTER, "t", 0)
    for offset in range(HOUR, 170 * HOUR, 7 * HOUR):
        begin, end = first_unread(remembered(log), offset) or (None, 0)
        assert begin is not None
        assert begin <= after(offset) < end


def test_thinned_out_readings_are_interpolated() -> None:
    log = facts_of(hours=160).history(LogOffsets, CLUSTER, "t", 0)
    ends = [log_end_at(log, after(second)) for second in range(0, 170 * HOUR, 5 * HOUR + 7)]
    assert ends == pytest.approx(range(0, 170 * HOUR, 5 * HOUR + 7))
    assert log_end_at(log, after(-1)) is None


@pytest.mark.parametrize(("hours", "is_late"), [(163.5, False), (164.5, True), (167, True)])
def test_the_warning_comes_four_hours_before_records_are_deleted(hours: float, *, is_late: bool) -> None:
    rule, facts = RetentionMargin(), facts_of(hours)
    history = facts.history(Commit, CLUSTER, "g", "t", 0)
    assert list(rule.revisit(history, facts)) == [SCOPE]
    due = [finding.current["deleted_from"] - after(10 * HOUR + WEEK) for finding in rule.detect(SCOPE, facts)]
    assert due == ([pytest.approx(0, abs=2_000)] if is_late else [])


@pytest.mark.parametrize(("hours", "is_ignored"), [(150, True), (164.5, False)])
def test_a_series_in_columns_is_looked_into_in_time(hours: float, *, is_ignored: bool) -> None:
    facts = facts_of(hours)
    facts.close(facts.history(Commit, CLUSTER, "g", "t", 0))
    series = SeriesAtRest(facts.commits, facts.commits.used(), facts.now)
    assert bool(RetentionMargin().ignores_series(series, facts).all()) is is_ignored
