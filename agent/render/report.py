"""An incident in words: what happened, why, what to do, what changed. Pure; markup lives in notifiers."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from agent.engine.impact import root_cause_broker, worst_first
from agent.engine.rule import Rule
from agent.model.findings import Finding, Incident, Severity, Status, reader, sight
from agent.model.text import day_of, instant, listed, place, places, radius, sights, span
from agent.render.summaries import summary, worst
from agent.rules import KINDS

_ADVICE_LINES = 4


class Section(NamedTuple):
    """Lines under a heading; what happened comes first and has none."""

    heading: str
    lines: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True):
    """What an operator reads. Two reports are equal where nobody could see a difference.

    calm: whether all is well again, or was settled; not where something merely happened and was over at once.
    headline: severity, state, what, where, how much and the id. context: since when, the date, the cluster.
    """

    id: str
    severity: Severity
    calm: bool
    headline: str
    sections: tuple[Section, ...]
    context: str

    def lines(self) -> list[str]:
        """The whole report as plain lines."""
        told = []
        for heading, (first, *others) in self.sections:
            told.append(f"{heading}: {first}" if heading else first)
            told += [" " * (len(heading) + 2 if heading else 0) + line for line in others]
        return [self.headline, *told, self.context]


def report(incident: Incident) -> Report:
    """The incident in words. A merged one is a pointer; one that lost all its findings says that it was withdrawn."""
    return Report(
        id=incident.id,
        severity=incident.severity,
        calm=bool(incident.status is not Status.OPEN and _state(incident)),
        headline=f"{incident.severity.upper()}{_state(incident)}  {incident.title}  {incident.id}",
        sections=_sections(incident),
        context=_context(incident),
    )


def withdrawn(incident: Incident) -> bool:
    """Whether nothing that it was made of holds any more."""
    return incident.status is Status.CLOSED and not incident.findings and incident.merged_into is None


def alarming(entry: Iterable[str]) -> bool:
    """Whether this entry of a timeline must not go unheard: an incident that was told has become critical."""
    return any(line.startswith(f"now {Severity.CRITICAL}, ") for line in entry)


def timeline(previous: Incident | None, incident: Incident) -> tuple[str, ...]:
    """What is new since `previous`: causes and effects in time order, then severity, sight, recovery, merging."""
    day = day_of(incident.opened_at)
    known = {one.key for one in _parts(previous)} if previous else set()
    lines = list(summary([one for one in _parts(incident) if one.key not in known], day=day))
    if previous is None:
        return tuple(lines)
    if incident.merged_into is not None:
        return (f"merged into {incident.merged_into}",) if previous.merged_into is None else ()
    if withdrawn(incident):
        return () if withdrawn(previous) else (*lines, "withdrawn: nothing that it was made of holds any more")
    held = {one.key for one in _parts(incident)}
    dropped = [one for one in _parts(previous) if one.key not in held]
    lines += [f"no longer holds: {line}" for line in summary(dropped, day=day)]
    if incident.severity is not previous.severity:
        lines.append(f"now {incident.severity}, was {previous.severity}")
    if incident.sighted is not previous.sighted:
        lines.append(_sight_changed(previous, incident, day))
    if incident.status is not previous.status:
        lines.append(_passage(incident, day))
    return tuple(lines)


def _sight_changed(previous: Incident, incident: Incident, day: str) -> str:
    """Who was lost from sight, since when and why; or who is seen again."""
    if not incident.sighted:
        return ": ".join(["cannot be seen at present", *sights(incident.unseen, day, why=True)])
    return ": ".join(["seen again", *sights(previous.unseen, day)])


def _passage(incident: Incident, day: str) -> str:
    if incident.status is Status.OPEN:
        return "open again"
    if incident.status is Status.RECOVERED and incident.recovered_at is not None:
        return f"{'over' if _momentary(incident) else 'recovered'} at {instant(incident.recovered_at, day)}"
    return str(incident.status)


def _parts(incident: Incident) -> tuple[Finding, ...]:
    return incident.causes + incident.findings


def _momentary(incident: Incident) -> bool:
    """Whether each effect was over as it happened: nothing was made good since, so "recovered" would mislead."""
    return bool(incident.findings) and all(one.recovered_at == one.at for one in incident.findings)


def _state(incident: Incident) -> str:
    if incident.merged_into is not None:
        return " (MERGED)"
    if withdrawn(incident):
        return " (WITHDRAWN)"
    if incident.status is Status.OPEN or (incident.status is Status.RECOVERED and _momentary(incident)):
        return ""
    return f" ({incident.status.upper()})"


def _context(incident: Incident) -> str:
    day = day_of(incident.opened_at)
    begun, state = instant(incident.opened_at, day), incident.status.upper()
    if incident.status is Status.OPEN:
        parts = [f"{state} since {begun} UTC, {day}"]
    elif incident.recovered_at is None:
        parts = [f"{state}, begun {begun} UTC, {day}"]
    elif _momentary(incident):
        over = instant(incident.recovered_at, day)
        happened = f"happened {f'at {begun}' if over == begun else f'between {begun} and {over}'} UTC, {day}"
        parts = [happened if incident.status is Status.RECOVERED else f"{state}, {happened}"]
    else:
        lasted = span(max(0, incident.recovered_at - incident.opened_at))
        over = f"recovered {instant(incident.recovered_at, day)} after {lasted}"
        parts = [f"{state}, begun {begun} UTC, {day}", over]
    if not incident.sighted:
        who = "".join(f" ({one})" for one in sights(incident.unseen, day))
        parts.append(f"CANNOT BE SEEN at present{who}: it may have changed since")
    if incident.cluster is not None:
        parts.append(f"cluster {incident.cluster}")
    return " · ".join(parts)


def _sections(incident: Incident) -> tuple[Section, ...]:
    if incident.merged_into is not None:
        return (Section("", (f"This is part of {incident.merged_into}: see there.",)),)
    if withdrawn(incident):
        return (Section("", ("Withdrawn: nothing that this was made of holds any more. Nothing is to be done.",)),)
    day = day_of(incident.opened_at)
    total = radius(incident.records)
    happened = worst(incident.findings, day)
    effects = worst_first(incident.findings)
    sections = (
        Section("", (*((f"In all: {total}.",) if total and len(incident.findings) > 1 else ()), *happened)),
        Section("Cause", _cause(incident, day)),
        Section("Ruled out", _ruled_out(incident)),
        Section("Also", _also(incident)),
        Section("Still to do" if _state(incident) else "Do now", _advice(effects, day, "now")),
        Section("Do later", _advice([*effects, *_blamed(incident), *incident.causes], day, "prevent")),
    )
    return tuple(section for section in sections if section.lines)


def _cause(incident: Incident, day: str) -> tuple[str, ...]:
    """What led to it, in time order: the broker to blame and the causes of the worst effect's place one by one, the
    rest summed up.
    """
    blamed = _blamed(incident)
    struck = {place(one.subject) for one in worst_first(incident.findings)[:1]}
    near = [one for one in incident.causes if place(one.subject) in struck]
    rest = [one for one in incident.causes if one not in blamed and one not in near]
    return summary([*blamed, *near], rest, day=day)


def _blamed(incident: Incident) -> list[Finding]:
    """What the broker to blame did, or that several were lost."""
    brokers = {root_cause_broker(incident.causes, one) for one in worst_first(incident.findings)[:1]} - {None}
    return [
        one for one in incident.causes if one.kind == "brokers_down_together" or one.subject.get("broker") in brokers
    ]


def _ruled_out(incident: Incident) -> tuple[str, ...]:
    """Only what the findings support: a rule looked for each of these and did not find it."""
    moved = [one for one in incident.findings if KINDS.get(one.kind, Rule).moves_position]
    rewound = [one for one in moved if one.kind == "offset_rewind"]
    labels = {label for one in rewound for label in one.labels}
    lines = []
    groups = {str(one.subject["group"]) for one in rewound if "group" in one.subject}
    if groups and "operator_reset" not in labels:
        lines.append(f"nobody reset {_those(groups, 'the groups')}")
    if groups and "after_expiry" not in labels:
        lines.append("no committed offset had expired")
    checkpoints = [one.current for one in rewound if "restores" in one.current]
    if checkpoints and not any(one["restores"] for one in checkpoints):
        failed = any(one["failed_checkpoints"] for one in checkpoints)
        lines.append("no checkpoint was restored" if failed else "no checkpoint failed and none was restored")
    recreated = {one.subject.get("topic") for one in _parts(incident) if one.kind == "topic_recreated"}
    topics = {str(one.subject["topic"]) for one in moved if "topic" in one.subject} - recreated
    if topics:
        lines.append(f"{_those(topics, 'the topics')} {'was' if len(topics) == 1 else 'were'} not re-created")
    return ("; ".join(lines) + ".",) if lines else ()


def _those(names: Iterable[str], many: str) -> str:
    """The only name, or what all are called together."""
    first, *others = sorted(names)
    return many if others else first


def _also(incident: Incident) -> tuple[str, ...]:
    struck = {place(one.subject) for one in incident.findings}
    moved = (one.subject for one in incident.causes if one.kind in ("leader_moved", "unclean_election"))
    spared = [subject for subject in moved if place(subject) not in struck]
    if not spared or not any(one.kind == "offset_rewind" for one in incident.findings):
        return ()
    return (f"{places(spared)} changed leader too and nothing was seen to go back there.",)


def _advice(findings: Iterable[Finding], day: str, when: str) -> tuple[str, ...]:
    """One line for the first finding of each kind of advice, at most four; what is over asks for what is still due."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        advice = KINDS.get(finding.kind, Rule).advice_for(finding)
        is_done = when == "now" and advice.only_while_open and finding.recovered_at is not None
        template: str = "" if is_done else getattr(advice, when)
        if template:
            alike.setdefault(template, []).append(finding)
    return tuple(template.format_map(_names(ones, day)) for template, ones in list(alike.items())[:_ADVICE_LINES])


def _names(findings: Sequence[Finding], day: str) -> dict[str, Any]:
    """What the first finding has to name; what a rule or a check alone knows comes from whichever of them tells it."""
    finding = findings[0]
    known = {name: value for one in findings for name, value in one.current.items()}
    told = (finding.previous.get("offset"), finding.current.get("offset"), finding.current.get("log_start"))
    offsets = [one for one in told if isinstance(one, int)]
    pause = "" if finding.recovered_at is None else f" for {span(max(0, finding.recovered_at - finding.at))}"
    return {
        "reader": reader(finding.subject),
        "place": place(finding.subject),
        "topic": finding.subject.get("topic", "the topic"),
        "job": finding.subject.get("job", "?"),
        "others": listed(finding.current.get("others") or ["its successor"]),
        "broker": finding.subject.get("broker", "?"),
        "brokers": listed(finding.subject.get("brokers") or [finding.subject.get("broker", "?")]),
        "file": finding.subject.get("file", "the segment"),
        "graph": _graph(finding),
        "listed": known.get("listed_in", "`backflow check changelog_restore`"),
        "source": finding.subject.get("source", "NAME"),
        "sight": sight(finding.subject),
        "start": instant(finding.start, day),
        "low": f"{min(offsets):,}" if offsets else "?",
        "high": f"{max(offsets):,}" if offsets else "?",
        "pause": pause,
        "undeclared": _undeclared(known.get("undeclared") or ()),
    }


def _undeclared(stores: Sequence[str]) -> str:
    """Which stores of the application may have gone back unseen, as a sentence."""
    if not stores:
        return ""
    also = f" Also check store{'' if len(stores) == 1 else 's'} {listed(stores)}"
    return f"{also}, which {'is' if len(stores) == 1 else 'are'} not declared."


def _graph(finding: Finding) -> str:
    """What a job graph consists of, to be deleted."""
    znode, file = (finding.current.get(name) for name in ("znode", "file"))
    parts = [f"the znode {znode}" if znode else "its znode", f"the file {file}" if file else "its file"]
    return " and ".join(parts)
