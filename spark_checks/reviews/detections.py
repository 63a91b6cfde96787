"""The sections of the page about what was detected: incidents by day and kind, and how useful the rules are."""

from agent.model.findings import Severity
from agent.model.text import count
from spark_checks.reviews import charts
from spark_checks.reviews.facts import FREQUENT, Facts, now
from spark_checks.reviews.incidents import Detected, KindCount
from spark_checks.reviews.markup import Heading, Html, badge, element, joined, table
from spark_checks.reviews.overview import records_line
from spark_checks.reviews.periods import DAY_MS
from spark_checks.reviews.sections import ROWS, left_out, section
from spark_checks.reviews.words import day, forgotten, lasted, moment, week_word

UNKNOWN = "Unknown, because no state file of the agent was read; a journal has no incidents."


def incidents(facts: Facts) -> Html:
    """Return the incidents: per day, those that are open, and by kind."""
    title = "Incidents"
    if not facts.has_incidents and facts.incidents_since:
        return section("incidents", title, "", element("p", _unknown(facts), of="soft"))
    if not facts.has_incidents:
        return section("incidents", title, "Name the agent's state file with `--store` to see them.",
                       element("p", UNKNOWN, of="soft"))  # fmt: skip
    found, still_open = now(facts.incidents), facts.still_open
    if not found and not still_open:
        none = f"None is known. {_unknown(facts)}" if facts.lacks_incidents() else "None."
        return section("incidents", title, "", element("p", none, of="soft"), _chart(facts))
    lead = " ".join(filter(None, (_sentence(facts, found), records_line(facts))))
    parts = [element("p", lead), _chart(facts)]
    if facts.lacks_incidents():
        parts.append(element("p", _unknown(facts), of="soft"))
    if still_open:
        parts += [element("h3", "Still open"), _open(still_open)]
    over = [incident for incident in found if incident.severity is Severity.CRITICAL and not incident.is_open]
    if over:
        parts += [element("h3", "Critical, and over"), _over(over)]
    if found:
        parts += [element("h3", "By kind"), _kinds(facts)]
    do = "Open one with `backflow incidents show ID`. Acknowledge what somebody works on, close what is done."
    return section("incidents", title, do if still_open else "", *parts)


def rules(facts: Facts) -> Html:
    """Return the rules that fire too often, and those that never do."""
    if not facts.has_incidents:
        return section("rules", "Rules", "", element("p", _unknown(facts), of="soft"))
    frequent, word = facts.frequent_rules, week_word(facts.periods)
    parts: list[Html] = []
    if frequent:
        rows = [
            (
                element("b", rule.rule),
                f"{rule.incidents:,}",
                f"{rule.short:,}",
                f"{rule.unacknowledged:,}",
                ", ".join(f"{rule.before[week - 1]:,}" for week in sorted(facts.incident_weeks, reverse=True)) or "-",
            )
            for rule in frequent[:ROWS]
        ]
        parts.append(
            table(
                [
                    Heading("Rule"), Heading("Incidents", "n"), Heading("Over in 5 min", "n"),
                    Heading("Not acknowledged", "n"), Heading("Before", "wide"),
                ],
                rows,
            )
        )  # fmt: skip
    else:
        parts.append(element("p", f"No rule made {FREQUENT} incidents or more this {word}.", of="soft"))
    if facts.silent_rules:
        names = joined((element("code", name) for name in facts.silent_rules), " ")
        times = f"{len(facts.incident_weeks) + 1} {word}s" if facts.incident_weeks else word
        parts.append(
            element(
                "details",
                element("summary", f"{count(len(facts.silent_rules), 'rule')} never fired in {times}"),
                element(
                    "p",
                    "Most wait for something rare, and silence is good news. Check those that you have changed or "
                    "written: backflow test-rules shows whether they can fire at all.",
                    of="soft small",
                ),
                element("p", names),
            )
        )
    do = (
        "Raise the limits of a rule that fires often and is over at once, or people stop reading it."
        if frequent
        else ""
    )
    return section("rules", "Rules", do, *parts)


def _unknown(facts: Facts) -> str:
    """Return why incidents of this week are unknown."""
    why = forgotten(facts.incidents_since)
    return f"{why[0].upper()}{why[1:]}." if facts.incidents_since else UNKNOWN


def _sentence(facts: Facts, found: list[Detected]) -> str:
    critical = facts.critical()
    taken = sum(incident.acknowledged_by is not None for incident in found)
    weeks = facts.incident_weeks
    usual = facts.usual(
        {week: float(sum(incident.week == week for incident in facts.incidents)) for week in weeks}, weeks
    )
    compared = "" if usual is None else f", usually {usual:,.0f}"
    return f"{count(len(found), 'incident')} ({critical:,} critical){compared}; {taken:,} acknowledged."


def _open(found: list[Detected]) -> Html:
    rows = [
        (
            joined((badge(incident.severity.value, incident.severity.value), _named(incident)), " "),
            lasted(incident.lasted),
            incident.acknowledged_by or badge("no one yet", "warning"),
        )
        for incident in found[:ROWS]
    ]
    shown = table([Heading("Incident"), Heading("Open for", "n"), Heading("Acknowledged by")], rows)
    return joined((shown, left_out(len(found) - ROWS, "incident")))


def _named(incident: Detected) -> Html:
    return joined((element("span", incident.title), Html("<br>"), element("code", incident.id)))


def _over(found: list[Detected]) -> Html:
    longest = sorted(found, key=lambda incident: (-incident.lasted, incident.opened_at))
    rows = [
        (
            _named(incident),
            moment(incident.opened_at),
            lasted(incident.lasted),
            incident.acknowledged_by or "-",
        )
        for incident in longest[:ROWS]
    ]
    headings = [
        Heading("Incident"),
        Heading("Began", "nowrap wide"),
        Heading("Lasted", "n"),
        Heading("Acknowledged by"),
    ]
    return joined((table(headings, rows), left_out(len(found) - ROWS, "incident")))


def _kinds(facts: Facts) -> Html:
    rows = [_kind(facts, kind) for kind in facts.kinds]
    return table(
        [
            Heading("Kind"), Heading("Critical", "n"), Heading("Warning", "n"), Heading("Typically open", "n"),
            Heading("Not acknowledged", "n wide"), Heading("Weeks", "wide"),
        ],
        rows,
    )  # fmt: skip


def _kind(facts: Facts, kind: KindCount) -> tuple[object, ...]:
    weeks = [float(kind.before[week - 1]) for week in sorted(facts.incident_weeks, reverse=True)]
    return (
        element("b", kind.kind),
        f"{kind.critical:,}" if kind.critical else "-",
        f"{kind.warning:,}" if kind.warning else "-",
        lasted(kind.lasted),
        f"{kind.unacknowledged:,}",
        charts.weeks([*weeks, kind.total]) if weeks else "",
    )


def _chart(facts: Facts) -> Html:
    """Return the incidents per day, or per hour if the time is short; nothing if there were none."""
    days = facts.incidents_by_day()
    if not any(found.critical + found.warning for found in days):
        return Html()
    is_hourly = days[0].length < DAY_MS
    shown = [
        charts.Bar(
            found.critical,
            found.warning,
            found.is_now,
            f"{moment(found.since)}: {count(found.critical + found.warning, 'incident')}, {found.critical} critical",
            (moment(found.since)[-5:] if is_hourly else day(found.since).split(" ", 1)[1]) if found.is_first else "",
        )
        for found in days
    ]
    note = f"Per {'hour' if is_hourly else 'day'}; red: critical. Pale: the time before."
    return element("div", charts.bars(shown), element("p", note, of="soft small"))
