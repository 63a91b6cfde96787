"""An incident as a message for an operator: what happened, when, what to do. Without markup."""

from collections.abc import Iterable, Sequence
from itertools import islice
from textwrap import wrap
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agent.engine.impact_and_root_cause import root_cause_broker, total_impact, worst_first
from agent.model.check_protocol import TASKS
from agent.model.findings import Finding, Incident, Records, Severity, Status, reader
from agent.model.matchers import Silence
from agent.model.text import (
    change,
    count,
    day_of,
    describe_records,
    instant,
    is_bounded,
    is_leader_change,
    join_names,
    place,
    places,
    span,
    unavailable_parts,
    visible,
)
from agent.model.times import rfc3339
from agent.render.advice import advice_now, advice_to_prevent
from agent.render.causes import causes_ruled_out, possible_causes
from agent.render.timeline import (
    Row,
    Statement,
    format_row,
    rows,
    rule_of,
    statements,
    with_arrows,
)

MAX_ROWS = 6
MAX_DIGEST = 20
"""Incidents that a digest names; further ones are counted."""

REPORT = "REPORT"
"""The state of a check's report."""

WIDTH = 120
"""Characters in a line of plain text."""

_INDENT = 12


class Section(NamedTuple):
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True):
    """What an operator reads. Two reports are equal if they read the same.

    state: OPEN, RECOVERED, CLOSED, MERGED, WITHDRAWN, HAPPENED (for events that were over at once) or REPORT (of a
    check; it is no incident). highlights: of a check's report, a sentence each.
    title: what, where, how much. paragraph: how bad. timeline: rows in UTC; omitted: how many more rows there are.
    ruled_out: causes that observations exclude, and which ones. possible: causes that cannot be ruled out, and why.
    context: since when, the date, the cluster.
    """

    id: str
    severity: Severity
    state: str
    title: str
    paragraph: str
    highlights: tuple[str, ...] = ()
    timeline: tuple[str, ...] = ()
    omitted: int = 0
    ruled_out: str = ""
    possible: str = ""
    do_now: tuple[str, ...] = ()
    prevent: tuple[str, ...] = ()
    context: str

    @property
    def is_resolved(self) -> bool:
        """Whether nothing of it lasts any more and it was more than an event."""
        return self.state not in ("OPEN", "HAPPENED", REPORT)

    @property
    def headline(self) -> str:
        """Severity, state unless it is open, title; of a check's report its title alone."""
        if self.state == REPORT:
            return self.title
        state = f" ({self.state})" if self.is_resolved else ""
        return f"{self.severity.upper()}{state} · {self.title}"

    @property
    def reference(self) -> str:
        """The id behind the headline, by which operators find the incident; empty for a check's report."""
        return "" if self.state == REPORT else f" · {self.id}"

    @property
    def timeline_lines(self) -> tuple[str, ...]:
        """The rows, and how many more there are."""
        return (*self.timeline, f"(and {self.omitted:,} more)") if self.omitted else self.timeline

    def sections(self) -> list[Section]:
        """Return the parts below the timeline that have any lines."""
        still = "Still to do" if self.is_resolved else "Do now"
        parts = (
            Section("Ruled out", (self.ruled_out,) if self.ruled_out else ()),
            Section("Possible", (self.possible,) if self.possible else ()),
            Section(still, self.do_now),
            Section("Prevent", self.prevent),
        )
        return [part for part in parts if part.lines]

    def lines(self) -> list[str]:
        """Return the whole report as plain text, wrapped."""
        text = [f"{self.headline}{self.reference}", *_hang(self.paragraph, 0)]
        text += [part for line in self.highlights for part in _hang(f"- {line}", 2)]
        if self.timeline:
            text += ["Timeline (UTC)", *(part for line in self.timeline_lines for part in _hang(line, _INDENT))]
        for heading, lines in self.sections():
            labels = [heading, *[""] * (len(lines) - 1)]
            for label, line in zip(labels, lines, strict=True):
                text += _hang(f"{label:<{_INDENT}}{line}", _INDENT)
        return [*text, *_hang(self.context, 0)]


def report(incident: Incident, silence: Silence | None = None) -> Report:
    """Return the message, each line of it on one line. silence: what holds the incident back at present."""
    composed = _compose(incident, silence)
    return replace(
        composed,
        title=visible(composed.title),
        paragraph=visible(composed.paragraph),
        timeline=tuple(map(visible, composed.timeline)),
        ruled_out=visible(composed.ruled_out),
        possible=visible(composed.possible),
        do_now=tuple(map(visible, composed.do_now)),
        prevent=tuple(map(visible, composed.prevent)),
        context=visible(composed.context),
    )


def _compose(incident: Incident, silence: Silence | None) -> Report:
    """Return the message. A merged incident points to another; one without findings says that it was withdrawn."""
    day = day_of(incident.opened_at)
    blank = Report(
        id=incident.id,
        severity=incident.severity,
        state=_state(incident),
        title=incident.title,
        paragraph="",
        context=_context(incident, silence, day),
    )
    if incident.merged_into is not None:
        return replace(blank, paragraph=f"Merged into {incident.merged_into}: see there.")
    if is_withdrawn(incident):
        return replace(blank, paragraph="Withdrawn: its findings no longer apply. No action needed.")
    effects = worst_first(incident.findings)
    causes = _causes_by_weight(incident.causes, effects)
    events = statements(_parts(incident))
    shown, omitted = _timeline(events, [*effects, *causes], day)
    return replace(
        blank,
        paragraph=_paragraph(incident, effects, events, day),
        timeline=tuple(format_row(row, day) for row in shown),
        omitted=omitted,
        ruled_out=" · ".join(f"{cause} ({evidence})" for cause, evidence in causes_ruled_out(incident).items()),
        possible=" · ".join(f"{cause}: {doubt}" for cause, doubt in possible_causes(incident).items()),
        do_now=advice_now(effects, day),
        prevent=advice_to_prevent([*causes, *effects], day),
    )


def plain_report(incident: Incident) -> Report:
    """Return a message that holds nothing but what was stored, for an incident that cannot be described."""
    return Report(
        id=incident.id,
        severity=incident.severity,
        state=incident.status.upper(),
        title=visible(incident.title),
        paragraph="Backflow cannot describe this incident because of an internal error, which its log has. "
        "`backflow incidents --json` prints its findings.",
        context=f"{incident.status.upper()}, opened {rfc3339(incident.opened_at)}",
    )


def digest_report(incident: Incident, lines: Sequence[str]) -> Report:
    """Return the message of a digest: an incident without findings, and a line for each incident in it."""
    day = day_of(incident.updated_at)
    return Report(
        id=incident.id,
        severity=incident.severity,
        state="HAPPENED",
        title=incident.title,
        paragraph="What is still open follows in messages of its own; `backflow incidents show ID` describes the rest.",
        timeline=tuple(lines[:MAX_DIGEST]),
        omitted=max(0, len(lines) - MAX_DIGEST),
        context=f"From {instant(incident.opened_at, day)} to {instant(incident.updated_at, day)} UTC, {day}",
    )


def check_report(incident: Incident, lines: Sequence[str]) -> Report:
    """Return the message of a check's report: an incident without findings, and the lines of the report.

    Lines after the one that is TASKS are what to do.
    """
    shown = [visible(line) for line in lines]
    split = shown.index(TASKS) if TASKS in shown else len(shown)
    return Report(
        id=incident.id,
        severity=incident.severity,
        state=REPORT,
        title=visible(incident.title),
        paragraph="",
        highlights=tuple(shown[:split]),
        do_now=tuple(shown[split + 1 :]),
        context=visible(f"cluster {incident.cluster}"),
    )


def is_withdrawn(incident: Incident) -> bool:
    """Return whether none of its findings applies any more."""
    return incident.status is Status.CLOSED and not incident.findings and incident.merged_into is None


def shown_findings(incident: Incident) -> set[tuple[str, str, int]]:
    """Return the keys of the findings that a row of the message describes; those that it only counts are not shown."""
    if incident.merged_into is not None or is_withdrawn(incident):
        return set()
    effects = worst_first(incident.findings)
    events = statements(_parts(incident))
    ranked = [*effects, *_causes_by_weight(incident.causes, effects)]
    shown, _ = _timeline(events, ranked, day_of(incident.opened_at))
    return {finding.key for row in shown for finding in row.findings[: len(row.findings) - row.folded]}


def _causes_by_weight(causes: Iterable[Finding], effects: list[Finding]) -> list[Finding]:
    """Return the causes: of the worst effect's partition, of the root-cause broker, those that involve it, the rest."""
    causes = list(causes)
    worst = effects[0] if effects else None
    broker = None if worst is None else root_cause_broker(causes, worst)

    def weight(cause: Finding) -> int:
        if worst is not None and "partition" in cause.subject and place(cause.subject) == place(worst.subject):
            return 1
        brokers = cause.subject.get("brokers") or ()
        is_root = cause.subject.get("broker") == broker if "broker" in cause.subject else "topic" not in cause.subject
        if is_root:
            return 0
        return 2 if broker in brokers and change(cause) else 3

    return sorted(causes, key=lambda cause: (weight(cause), -cause.severity.rank, cause.at, cause.key))


def _timeline(events: list[Statement], ranked: list[Finding], day: str) -> tuple[list[Row], int]:
    """Return the rows of the message in time order, and how many did not fit; the lowest-ranked are left out."""
    rank = {finding.key: number for number, finding in reversed(list(enumerate(ranked)))}
    made = rows(events, day, MAX_ROWS)
    by_rank = sorted(made, key=lambda row: min(rank.get(finding.key, len(rank)) for finding in row.findings))
    kept = set(map(id, islice(by_rank, MAX_ROWS)))
    return [row for row in made if id(row) in kept], len(made) - len(kept)


def _paragraph(incident: Incident, effects: list[Finding], events: list[Statement], day: str) -> str:
    """Return the worst effect, how many there are like it, what Spark confirmed, and what was spared."""
    if not effects:
        return ""
    rank = {finding.key: number for number, finding in reversed(list(enumerate(effects)))}

    def rank_of(event: Statement) -> int:
        return min(rank.get(finding.key, len(rank)) for finding in (event.finding, *event.others))

    of_effects = [event for event in events if rank_of(event) < len(rank)]
    worst = min(of_effects or events, key=rank_of)
    alike = [event for event in of_effects if event.finding.rule == worst.finding.rule]
    sentences = [_sentence(rule_of(worst.finding).describe(worst.finding, day))]
    if len(alike) > 1:
        total = total_impact(event.finding for event in alike)
        impact = describe_records(total, bounded=any(is_bounded(event.finding) for event in alike))
        sentences.append(_sentence(f"Affected in all: {_extent(alike)}{f': {impact}' if impact else ''}"))
    elif worst.finding.records == Records() and incident.records != Records():
        affected = [event for event in of_effects if event.finding.records != Records()]
        impact = describe_records(incident.records, bounded=any(is_bounded(event.finding) for event in affected))
        sentences += [_sentence(f"Affected: {_extent(affected)}: {impact}")] if affected else []
    sentences += [*_flink_readers(worst), *_confirmed(alike), *_spared(incident, worst.finding)]
    return " ".join(sentences)


def _extent(events: list[Statement]) -> str:
    subjects = [event.finding.subject for event in events]
    return places(subjects) if any(subject.get("topic") for subject in subjects) else count(len(subjects), "finding")


def _flink_readers(event: Statement) -> list[str]:
    """Return which Flink job's position was seen to move with the group's offset."""
    jobs: dict[str, None] = {}
    for other in event.others:
        subject = other.subject
        if "job" in subject and "job" not in event.finding.subject:
            parts = [f"subtask {subject['subtask']}"] if "subtask" in subject else []
            parts += [str(subject["host"])] if "host" in subject else []
            suffix = f" ({', '.join(parts)})" if parts else ""
            jobs[f"Flink job {reader(subject)}{suffix}"] = None
    return [f"{join_names(jobs)} moved back with it."] if jobs else []


def _confirmed(events: Iterable[Statement]) -> list[str]:
    """Return what Spark checks confirmed of these, with the number of keys if they are about keys."""
    confirmed = [(event.finding, event.confirmations[0]) for event in events if event.confirmations]
    if not confirmed:
        return []
    live, checked = (sum(pair[side].current.get("keys") or 0 for pair in confirmed) for side in (0, 1))
    return [f"Confirmed by Spark{f': {min(checked, live):,} of {live:,} keys' if live else ''}."]


def _spared(incident: Incident, worst: Finding) -> list[str]:
    """Return the partitions whose leader changed too, without a rewind."""
    moving = [finding for finding in _parts(incident) if rule_of(finding).moves_position]
    struck = {place(finding.subject) for finding in moving} | {place(worst.subject)}
    moved = (cause.subject for cause in filter(is_leader_change, incident.causes))
    spared = [subject for subject in moved if place(subject) not in struck]
    if not spared or not worst.records.reread:
        return []
    return [f"Leader also changed, no rewind detected: {places(spared)}."]


def _sentence(text: str) -> str:
    text = with_arrows(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _parts(incident: Incident) -> tuple[Finding, ...]:
    return incident.causes + incident.findings


def is_momentary(incident: Incident) -> bool:
    """Return whether each effect was over as it happened: nothing was repaired, so "recovered" would mislead."""
    return bool(incident.findings) and all(finding.recovered_at == finding.at for finding in incident.findings)


def _state(incident: Incident) -> str:
    if incident.merged_into is not None:
        return "MERGED"
    if is_withdrawn(incident):
        return "WITHDRAWN"
    if incident.status is Status.RECOVERED and is_momentary(incident):
        return "HAPPENED"
    return incident.status.upper()


def _context(incident: Incident, silence: Silence | None, day: str) -> str:
    begun = instant(incident.opened_at, day)
    end = incident.recovered_at
    if incident.status is Status.OPEN:
        parts = [f"OPEN since {begun} UTC, {day}"]
    elif end is None:
        parts = [f"{_state(incident)}, began {begun} UTC, {day}"]
    elif is_momentary(incident):
        when = f"at {begun}" if end == incident.opened_at else f"between {begun} and {instant(end, day)}"
        happened = "CLOSED, happened" if incident.status is Status.CLOSED else "Happened"
        parts = [f"{happened} {when} UTC, {day}"]
    else:
        after = span(max(0, end - incident.opened_at))
        parts = [f"{incident.status.upper()}, began {begun}, recovered {instant(end, day)} UTC after {after}, {day}"]
    if not incident.sighted:
        parts.append(
            f"may be out of date: {'; '.join(unavailable_parts(incident.unseen)) or 'a source is unavailable'}"
        )
    if incident.cluster is not None:
        parts.append(f"cluster {incident.cluster}")
    if silence is not None:
        parts.append(f"silenced until {instant(silence.ends_at, day)} by {silence.author}: {silence.comment}")
    return " · ".join([*parts, *_decisions(incident, day)])


def _decisions(incident: Incident, day: str) -> list[str]:
    """Return who looks after the incident, and who closed it."""
    taken, closed = incident.acknowledged, incident.closed
    parts = [] if taken is None else [_by("acknowledged", taken.by, taken.at, taken.comment, day)]
    return [*parts, *([] if closed is None else [_by("closed", closed.by, closed.at, closed.reason, day)])]


def _by(what: str, who: str, at: int, why: str, day: str) -> str:
    return f"{what} by {who} {instant(at, day)}{f': {why}' if why else ''}"


def _hang(line: str, indent: int) -> list[str]:
    """Return the line wrapped, its continuation indented."""
    return wrap(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False) or [line]
