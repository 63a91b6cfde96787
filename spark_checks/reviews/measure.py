"""The measurements of a review: Spark's over the journal, and what the state file holds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.model.findings import Incident
from agent.storage.journal.places import Place, find_segments
from agent.storage.journal.segments import DAY_MS
from spark_checks.journal.files import JournalWindow
from spark_checks.reviews.availability import find_outages
from spark_checks.reviews.changes import find_broker_losses, find_rebalances
from spark_checks.reviews.facts import Facts, now
from spark_checks.reviews.incidents import count_kinds, count_rules, detected, silent_rules, unclean_elections
from spark_checks.reviews.lags import Samples
from spark_checks.reviews.periods import Periods
from spark_checks.reviews.tables import JournalTables

CURVES = 10
"""Of how many groups the lag is drawn over time."""


class Subject(NamedTuple):
    """What is reviewed beside the journal.

    incidents: None if there is no state file; incidents_since: since when all are known, ms. rules: the configured
    ones. idle: after how long without commits a group stands still, ms. is_wanted: takes a group, and a topic if it is
    about one.
    """

    incidents: Sequence[Incident] | None
    rules: Sequence[str]
    idle: int
    is_wanted: Callable[[str, str | None], bool]
    incidents_since: int = 0


def measure(window: JournalWindow, periods: Periods, subject: Subject) -> Facts:
    """Return what a review needs. Damaged files of the journal are left out, and counted by the window."""
    return window.without_damaged(lambda: _measure(JournalTables(window), periods, subject))


def covered_weeks(journal: Place, periods: Periods) -> tuple[int, ...]:
    """Return the weeks before that the journal covers: it has ticks from the first of their dates on."""
    first = min((segment.day for segment in find_segments(journal, ["tick"])), default=None)
    if first is None:
        return ()
    return tuple(week for week in range(1, periods.before + 1) if periods.bounds(week)[0] // DAY_MS >= first)


def _measure(tables: JournalTables, periods: Periods, subject: Subject) -> Facts:
    incidents, rules, idle, is_wanted, incidents_since = subject
    samples = Samples(tables, periods)
    try:
        lags = [lag for lag in samples.lags() if is_wanted(lag.group, None)]
        drawn = [lag.group for lag in now(lags) if lag.largest > 0][:CURVES]
        points = samples.points(drawn)
        margins = [margin for margin in samples.margins() if is_wanted(margin.group, margin.topic)]
        standstills = [stand for stand in samples.standstills(idle) if is_wanted(stand.group, None)]
    finally:
        samples.close()
    posted = detected(incidents or (), periods)
    return Facts(
        cluster=tables.window.cluster,
        label=tables.window.cluster,
        periods=periods,
        weeks=covered_weeks(tables.window.journal, periods),
        has_incidents=incidents is not None and incidents_since < periods.until,
        incidents_since=incidents_since,
        incidents=posted,
        kinds=count_kinds(posted, periods),
        rules=count_rules(posted, periods),
        silent_rules=()
        if incidents is None or incidents_since > periods.since
        else silent_rules(rules, incidents, periods),
        lags=lags,
        points={group: [point for point in points if point.group == group] for group in drawn},
        margins=margins,
        standstills=standstills,
        brokers=find_broker_losses(tables, periods),
        elections=unclean_elections(incidents or (), periods),
        rebalances=[change for change in find_rebalances(tables, periods) if is_wanted(change.group, None)],
        outages=find_outages(tables, periods),
    )
