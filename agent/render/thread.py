"""An incident's thread: a log with one short line per event, as far as the message does not show it."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from agent.model.findings import Finding, FindingKey, Incident, Severity, Status
from agent.model.observations.base import Unavailable
from agent.model.text import day_of, instant, unavailable_parts, visible
from agent.render.report import is_momentary, is_withdrawn, shown_findings
from agent.render.timeline import format_row, rows, statements

MAX_LINES = 20
"""Lines of one entry; further events are counted, never changes of severity and status."""

REPEATED = "Still open after"
"""How the line begins that repeats a critical incident."""

_RAISED = f"Severity raised to {Severity.CRITICAL}"


class ThreadLog(Struct, frozen=True, kw_only=True):
    """What the thread covers. incident: as of the message or the last entry, None before; logged: findings with a line.

    unavailable: whether the thread says that a source is unavailable. A partition whose leader does not answer is part
    of the incident and stands in the message alone.
    """

    incident: Incident | None = None
    logged: frozenset[FindingKey] = frozenset()
    unavailable: bool = False


def begin_thread(incident: Incident) -> ThreadLog:
    """Return what the thread covers once the message is posted above it: what changes from then on is an event."""
    return ThreadLog(incident=incident, unavailable=bool(_outages(incident)))


def thread_entry(log: ThreadLog, incident: Incident) -> tuple[tuple[str, ...], ThreadLog]:
    """Return the lines that bring the thread up to date, possibly none, and what it covers with them.

    The first entry has the events that the message has no room for. Later ones have what is new, what no longer
    applies, and changes of severity and status.
    """
    previous, day = log.incident, day_of(incident.opened_at)
    if previous is not None and _is_void(previous) and _is_void(incident):
        return (), ThreadLog(incident=incident, logged=log.logged)
    if incident.merged_into is not None:
        return (f"Merged into {incident.merged_into}.",), ThreadLog(incident=incident, logged=log.logged)
    if is_withdrawn(incident):
        return ("Withdrawn: its findings no longer apply.",), ThreadLog(incident=incident, logged=log.logged)
    events, logged = _events(log, incident, day)
    changes: list[str] = []
    unavailable = log.unavailable
    if previous is not None:
        events += _no_longer_applies(previous, incident, log.logged, day)
        if incident.severity is not previous.severity:
            changes.append(_severity_change(previous.severity, incident.severity))
        changes += _acknowledgement(previous, incident, day) + _status_change(previous, incident, day)
        outages = _outages(incident)
        unavailable = bool(outages)
        if unavailable and not log.unavailable:
            changes.append(_unavailable(outages, day))
        elif log.unavailable and not unavailable and incident.status is Status.OPEN:
            changes.append("Available again; this incident is up to date.")
    room = MAX_LINES - len(changes)
    if len(events) > room:
        events = [*events[: room - 1], f"(and {len(events) - room + 1} more)"]
    lines = events + changes
    return tuple(map(visible, lines)), ThreadLog(incident=incident, logged=logged, unavailable=unavailable)


def is_announcement(lines: Iterable[str]) -> bool:
    """Return whether an entry must not go unnoticed: the incident has become critical, or still is."""
    return any(line.partition(",")[0] == _RAISED or line.startswith(REPEATED) for line in lines)


def is_reminder(lines: Iterable[str]) -> bool:
    """Return whether an entry repeats an open critical incident."""
    return any(line.startswith(REPEATED) for line in lines)


def _is_void(incident: Incident) -> bool:
    return incident.merged_into is not None or is_withdrawn(incident)


def _events(log: ThreadLog, incident: Incident, day: str) -> tuple[list[str], frozenset[FindingKey]]:
    """Return a line for each event without one that is new or has no room in the message."""
    shown = shown_findings(incident)
    known = set() if log.incident is None else {finding.key for finding in _parts(log.incident)}
    due = [
        event
        for event in statements(_parts(incident))
        if log.logged.isdisjoint(finding.key for finding in (event.finding, *event.others))
        and (event.finding.key not in shown or (log.incident is not None and event.finding.key not in known))
    ]
    made = rows(due, day, MAX_LINES)
    logged = log.logged | {finding.key for row in made for finding in row.findings}
    return [format_row(row, day) for row in made], frozenset(logged & {finding.key for finding in _parts(incident)})


def _no_longer_applies(previous: Incident, incident: Incident, logged: frozenset[FindingKey], day: str) -> list[str]:
    """Return a line for each shown finding that was withdrawn; one that only got another time has none."""
    current = {finding.key[:2] for finding in _parts(incident)}
    shown = shown_findings(previous) | logged
    dropped = [
        event
        for event in statements(_parts(previous))
        if event.finding.key in shown and event.finding.key[:2] not in current
    ]
    return [f"No longer applies: {format_row(row, day)}" for row in rows(dropped, day, MAX_LINES)]


def _severity_change(before: Severity, after: Severity) -> str:
    return f"Severity {'raised' if after.rank > before.rank else 'lowered'} to {after}, was {before}."


def _status_change(previous: Incident, incident: Incident, day: str) -> list[str]:
    if incident.status is previous.status:
        return []
    if incident.status is Status.OPEN:
        return ["Reopened."]
    lines = []
    if previous.status is not Status.RECOVERED and incident.recovered_at is not None:  # also if closed meanwhile
        lines.append(f"{instant(incident.recovered_at, day)}  {'over' if is_momentary(incident) else 'recovered'}")
    if incident.status is Status.CLOSED:
        closed = incident.closed
        lines.append(
            "Closed." if closed is None else f"{instant(closed.at, day)}  closed by {closed.by}: {closed.reason}"
        )
    return lines


def _acknowledgement(previous: Incident, incident: Incident, day: str) -> list[str]:
    taken = incident.acknowledged
    if taken is None or taken == previous.acknowledged:
        return []
    return [f"{instant(taken.at, day)}  acknowledged by {taken.by}{f': {taken.comment}' if taken.comment else ''}"]


def _outages(incident: Incident) -> list[Unavailable]:
    return [report for report in incident.unseen if report.topic is None]


def _unavailable(outages: Sequence[Unavailable], day: str) -> str:
    """Which source cannot read what, since when and why."""
    first = min(outages, key=lambda report: report.at)
    what = "; ".join(unavailable_parts(outages))
    return f"{instant(first.at, day)}  May be out of date from here: {what}: {first.reason}"


def _parts(incident: Incident) -> tuple[Finding, ...]:
    return incident.causes + incident.findings
