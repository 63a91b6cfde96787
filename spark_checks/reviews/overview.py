"""The top of the page: the verdict, the tasks, and the numbers of the week beside the usual ones."""

from collections.abc import Sequence

from agent.model.text import count
from spark_checks.reviews import charts
from spark_checks.reviews.actions import Action
from spark_checks.reviews.facts import Facts, of_week
from spark_checks.reviews.markup import Html, element, with_code
from spark_checks.reviews.words import factor, forgotten, lasted, period, short, week_word

TASKS = 6
"""How many tasks are listed; more would not be done."""

_URGENT = 80


def header(facts: Facts, tasks: Sequence[Action]) -> Html:
    """Return the title and the verdict."""
    urgent = sum(task.weight >= _URGENT for task in tasks)
    word = week_word(facts.periods)
    if urgent:
        kind, verdict = "critical", f"{count(urgent, 'task')} cannot wait, of {len(tasks)} that this {word} leaves."
    elif tasks:
        kind, verdict = "warning", f"Nothing urgent. {count(len(tasks), 'task')} to plan."
    elif facts.lacks_incidents():
        kind, verdict = "warning", f"Nothing to do is known: {forgotten(facts.incidents_since)}."
    elif facts.has_incidents:
        kind, verdict = "good", f"A quiet {word}: nothing to do."
    else:
        kind, verdict = "warning", "The journal leaves nothing to do. Incidents are unknown."
    return Html(
        element("h1", f"Review of {facts.label}")
        + element("p", f"{period(facts.periods)}, all times in UTC", of="soft")
        + element("div", verdict, of=f"verdict {kind}")
    )


def task_list(facts: Facts, tasks: Sequence[Action]) -> Html:
    """Return the tasks in order."""
    if not tasks:
        return Html()
    items = [
        element(
            "li",
            element("h3", task.what),
            element("p", task.why, of="soft"),
            element("p", with_code(task.how), " ", element("a", "details", href=f"#{task.section}")),
        )
        for task in tasks[:TASKS]
    ]
    more = len(tasks) - TASKS
    rest = element("p", f"{count(more, 'smaller task')} can be seen in the tables below.", of="soft small")
    title = element("h2", f"Do this {week_word(facts.periods)}" if week_word(facts.periods) == "week" else "To do")
    return element("section", title, element("ol", *items, of="tasks"), *([rest] if more > 0 else []))


def tiles(facts: Facts) -> Html:
    """Return the numbers of the week, with the weeks before as bars."""
    weeks = (*sorted(facts.weeks, reverse=True), 0)
    with_incidents = (*sorted(facts.incident_weeks, reverse=True), 0)
    incidents = {week: float(len(of_week(facts.incidents, week))) for week in with_incidents}
    critical = {week: float(facts.critical(week)) for week in with_incidents}
    of_incidents = [
        _tile("incidents", incidents, facts, kind="warning"),
        _tile("of them critical", critical, facts, kind="critical"),
    ]
    near = {week: float(len(facts.near_loss(week))) for week in (with_incidents if facts.has_incidents else weeks)}
    rebalances = {week: float(sum(row.times for row in of_week(facts.rebalances, week))) for week in weeks}
    losses = {week: float(sum(row.losses for row in of_week(facts.brokers, week))) for week in weeks}
    unavailable = {week: float(facts.unseen(week)) for week in weeks}
    shown = [
        *(of_incidents if facts.has_incidents else ()),
        _tile("groups near data loss", near, facts, kind="critical"),
        _tile("broker drop-outs", losses, facts),
        _tile("rebalances", rebalances, facts),
        _tile("sources unavailable", unavailable, facts, is_time=True),
    ]
    return element("div", *shown, of="tiles")


def records_line(facts: Facts) -> str:
    """Return what the incidents of the week did to records, as known when each was found; empty if nothing."""
    records = facts.records()
    parts = [
        f"{short(number)} {word}"
        for number, word in (
            (records.reread, "reprocessed"),
            (records.lost, "lost"),
            (records.skipped, "skipped"),
        )
        if number
    ]
    return f"Records, as counted when found: {', '.join(parts)}." if parts else ""


def _tile(label: str, by_week: dict[int, float], facts: Facts, kind: str = "", *, is_time: bool = False) -> Html:
    number = by_week[0]
    usual = facts.usual(by_week, [week for week in by_week if week])
    if usual is None:
        compared = "not compared" if facts.weeks else "first review"
    elif is_time:
        compared = f"usually {lasted(int(usual))}" if usual else "usually never"
    else:
        compared = factor(number, usual)
    shown = (lasted(int(number)) if number else "never") if is_time else short(number)
    return element(
        "div",
        element("span", label, of="small soft"),
        element("b", shown),
        element("span", compared, of="small soft"),
        charts.weeks(list(by_week.values())) if len(by_week) > 1 else "",
        of=f"tile {kind if number else ''}".strip(),
    )


def weeks_note(facts: Facts) -> str:
    """Return with what the numbers are compared."""
    word = week_word(facts.periods)
    if not facts.weeks:
        return f"The journal has no complete {word} before this one, so nothing is compared."
    note = f"Compared with the median of the {count(len(facts.weeks), word)} before; small bars: oldest first."
    if facts.incident_weeks != facts.weeks:
        unknown = forgotten(facts.incidents_since)
        note = f"{note} {unknown[0].upper()}{unknown[1:]}."
    return note
