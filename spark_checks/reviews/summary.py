"""The review in a few lines of plain text, for summary.txt and the message to people.

The first line is the title. Lines under "Do now:" are tasks.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agent.model.check_protocol import TASKS
from agent.model.text import count, visible
from spark_checks.reviews.actions import actions
from spark_checks.reviews.facts import Facts, now, of_week
from spark_checks.reviews.overview import records_line
from spark_checks.reviews.words import (
    brief,
    distance,
    factor,
    forgotten,
    lasted,
    names,
    percent,
    period,
    short,
    week_word,
    where,
)

_MOST_TASKS = 3
_WORTH_MS = 60_000
"""The shortest outage that the message names; the page has all."""


def summary(facts: Facts, page: str | None) -> str:
    """Return the lines. page: where people find the whole review, if that is kept."""
    tasks = actions(facts)
    title = f"Review of {facts.label}, {period(facts.periods)}: {_verdict(facts)}"
    lines = [title, *_lines(facts), *(f"{note[0].upper()}{note[1:]}." for note in _notes(facts))]
    if page is not None:
        lines.append(f"Full page: {page}")
    if tasks:
        lines += [TASKS, *_numbered(f"{task.what}. {task.how}" for task in tasks[:_MOST_TASKS])]
        lines += _more(len(tasks) - _MOST_TASKS, "page")
    return "\n".join(map(visible, lines))


def fleet_summary(reviews: Sequence[Facts], pages: Sequence[Path | None]) -> str:
    """Return the lines of several clusters, the most urgent first. pages: of each review, where people find it."""
    tasks = [(facts, task) for facts in reviews for task in actions(facts)]
    tasks.sort(key=lambda of_cluster: -of_cluster[1].weight)
    ranked = sorted(zip(reviews, pages, strict=True), key=lambda review: urgency(review[0]), reverse=True)
    lines = [f"Review of {count(len(reviews), 'cluster')}, {period(reviews[0].periods)}"]
    for facts, page in ranked:
        parts = [_verdict(facts), count(len(actions(facts)), "task"), *_notes(facts), *([str(page)] if page else [])]
        lines.append(f"{facts.label}: {'; '.join(parts)}.")
    if tasks:
        lines += [TASKS, *_numbered(f"{facts.label}: {task.what}. {task.how}" for facts, task in tasks[:_MOST_TASKS])]
        lines += _more(len(tasks) - _MOST_TASKS, "pages")
    return "\n".join(map(visible, lines))


def _notes(facts: Facts) -> Iterator[str]:
    """Yield what is missing."""
    if facts.lacks_incidents():
        yield forgotten(facts.incidents_since)
    yield from facts.notes


def urgency(facts: Facts) -> list[int]:
    """Return what sorts reviews by the urgency of their tasks."""
    return [task.weight for task in actions(facts)]


def _numbered(lines: Iterable[str]) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines, 1)]


def _more(tasks: int, where: str) -> list[str]:
    return [f"And {count(tasks, 'more task')}: see the {where}."] if tasks > 0 else []


def _verdict(facts: Facts) -> str:
    if facts.is_blind:
        return f"nothing was observed for {lasted(facts.unseen())}"
    lost, incidents = facts.lost, "incidents unknown"
    near = len(facts.near_loss() - lost)
    if facts.has_incidents:
        incidents = f"{count(len(now(facts.incidents)), 'incident')}, {facts.critical()} critical"
    losses = [f"{count(len(lost), 'group')} lost unread records"] if lost else []
    if near or not lost:
        losses.append(f"{count(near, 'group') if near else 'no group'} near data loss")
    return f"{incidents}; {', '.join(losses)}"


def _lines(facts: Facts) -> Iterator[str]:
    if facts.is_blind:
        return
    if facts.has_incidents:
        weeks_before = facts.incident_weeks
        usual = facts.usual({week: len(of_week(facts.incidents, week)) for week in weeks_before}, weeks_before)
        waiting = sum(incident.acknowledged_by is None for incident in facts.still_open)
        compared = "" if usual is None else f" (usually {usual:,.0f})"
        still = (
            f"; {len(facts.still_open)} still open, {waiting} not acknowledged"
            if facts.still_open
            else "; none is open"
        )
        yield " ".join(
            filter(None, (f"Incidents: {len(now(facts.incidents)):,}{compared}{still}.", records_line(facts)))
        )
    for margin in now(facts.margins)[:1]:
        place = where(brief(margin.topic), margin.partition)
        label, share = "Closest to data loss", f" ({percent(margin.share)} of the log)"
        if margin.margin < 0:
            label, share = "Lost to retention", ""
        yield f"{label}: {brief(margin.group)} on {place}, {distance(margin)}{share}."
    if facts.alarmed() and not now(facts.margins):
        yield f"Rules reported unread records that retention deletes: {names(sorted(facts.alarmed()))}."
    for lag in now(facts.lags)[:1]:
        if lag.largest:
            before = facts.usual({row.week: row.p95 for row in facts.lags if row.group == lag.group})
            compared = "" if before is None else f", {factor(lag.p95, before)}"
            numbers = f"p95 {short(lag.p95)}, at most {short(lag.largest)} records{compared}"
            yield f"Largest lag: {brief(lag.group)}, {numbers}."
    weeks = range(facts.periods.before + 1)
    losses, *losses_before = [sum(row.losses for row in of_week(facts.brokers, week)) for week in weeks]
    rebalances, *rebalances_before = [sum(row.times for row in of_week(facts.rebalances, week)) for week in weeks]
    elections = len(now(facts.elections))
    yield (
        f"Brokers dropped out {count(losses, 'time')}{_usually(facts, losses_before)}; "
        f"{count(elections, 'unclean leader election')}; "
        f"{count(rebalances, 'rebalance')}{_usually(facts, rebalances_before)}."
        if losses or elections or rebalances
        else f"No broker dropped out, and no group rebalanced this {week_word(facts.periods)}."
    )
    if facts.unseen() >= _WORTH_MS:
        yield f"Backflow could not see everything for {lasted(facts.unseen())}."


def _usually(facts: Facts, before: Sequence[int]) -> str:
    usual = facts.usual(dict(enumerate(before, 1)))
    return "" if usual is None else f" (usually {short(usual) if usual < 10 else f'{usual:,.0f}'})"
