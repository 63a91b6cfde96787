"""The review in a few lines of plain text, for summary.txt and the message to people.

The first line is the title. Lines under "Do now:" are tasks.
"""

from collections.abc import Iterator

from agent.model.text import count, visible
from spark_checks.reviews.actions import actions
from spark_checks.reviews.facts import Facts, now, of_week
from spark_checks.reviews.overview import records_line
from spark_checks.reviews.words import distance, factor, lasted, percent, period, short, week_word, where

_TASKS = 3


def summary(facts: Facts, page: str | None) -> str:
    """Return the lines. page: where people find the whole review, if that is kept."""
    tasks = actions(facts)
    lines = [_title(facts), *_lines(facts), *(f"{note[0].upper()}{note[1:]}." for note in facts.notes)]
    if page is not None:
        lines.append(f"Full page: {page}")
    if tasks:
        lines += ["Do now:", *(f"{task.what}. {task.how}" for task in tasks[:_TASKS])]
        if len(tasks) > _TASKS:
            lines.append(f"And {count(len(tasks) - _TASKS, 'more task')}: see the page.")
    return "\n".join(map(visible, lines))


def _title(facts: Facts) -> str:
    near = len(facts.near_misses)
    parts = (
        [f"{count(len(now(facts.incidents)), 'incident')}, {facts.critical()} critical"] if facts.has_incidents else []
    )
    parts.append(f"{count(near, 'group')} near data loss" if near else "no group near data loss")
    return f"Review of {facts.cluster}, {period(facts.periods)}: {'; '.join(parts)}"


def _lines(facts: Facts) -> Iterator[str]:
    if facts.has_incidents:
        usual = facts.usual({week: len(of_week(facts.incidents, week)) for week in facts.weeks})
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
        yield (
            f"Closest to data loss: {margin.group} on {where(margin.topic, margin.partition)}, {distance(margin)} "
            f"({percent(max(0.0, margin.share))} of the log)."
        )
    for lag in now(facts.lags)[:1]:
        if lag.largest:
            before = facts.usual({row.week: row.p95 for row in facts.lags if row.group == lag.group})
            compared = "" if before is None else f", {factor(lag.p95, before)}"
            yield f"Largest lag: {lag.group}, p95 {short(lag.p95)}, at most {short(lag.largest)} records{compared}."
    losses, elections = sum(row.losses for row in now(facts.brokers)), len(now(facts.elections))
    rebalances = sum(row.times for row in now(facts.rebalances))
    yield (
        f"Brokers dropped out {count(losses, 'time')}; {count(elections, 'unclean leader election')}; "
        f"{count(rebalances, 'rebalance')}."
        if losses or elections or rebalances
        else f"No broker dropped out, and no group rebalanced this {week_word(facts.periods)}."
    )
    if facts.unseen():
        yield f"Backflow could not see everything for {lasted(facts.unseen())}."
