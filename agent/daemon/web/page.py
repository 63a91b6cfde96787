"""The status page: HTML without scripts. Every text becomes an element's text or attribute, so that none is markup."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, tostring

from agent.daemon.groups import GroupProgress
from agent.daemon.reports import AgentStatus, IncidentRecord, OpenIncident, SourceStatus
from agent.daemon.tables import (
    CHECK_COLUMNS,
    GROUP_COLUMNS,
    NUMBERS,
    PARTITION_COLUMNS,
    RECEIVER_COLUMNS,
    SOURCE_COLUMNS,
    check_row,
    describe_archive,
    describe_buttons,
    describe_delivery,
    describe_finding,
    describe_group,
    describe_subjects,
    group_row,
    partition_row,
    receiver_row,
    source_row,
)
from agent.daemon.web.plot import draw_offsets
from agent.daemon.web.style import STYLE
from agent.model.text import count, day_of, span, visible
from agent.model.times import minute, second
from agent.render.report import report

_REFRESH_S = 30
_SHOWN = 20
_LISTED = 1_000

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The Content-Security-Policy of the pages: their style and plots, and nothing else."""


class _Cell(NamedTuple):
    text: str
    link: str = ""
    mark: str = ""


def status_page(status: AgentStatus, groups: Sequence[GroupProgress]) -> bytes:
    """Return the page about the agent. groups: by lag."""
    root, body = _page("Backflow")
    _add(body, "h1", "Backflow")
    state = count(len(status.problems), "problem") if status.problems else "all well"
    line = _add(body, "p", "")
    up = f" · up {span(status.at - status.started_at)}, since {minute(status.started_at)} UTC"
    _add(line, "span", state, "bad" if status.problems else "good").tail = f"{up} · version {status.version}"
    _add(body, "p", f"as of {second(status.at)} UTC; reloads every {_REFRESH_S} s", "soft")
    if status.problems:
        problems = _add(body, "ul", "", "problems")
        for problem in status.problems:
            _add(problems, "li", problem)
    _add(body, "h2", "Incidents")
    if status.incidents:
        _table(body, ("severity", "incident", "state", "since (UTC)"), map(_incident_row, status.incidents))
    else:
        _add(body, "p", "none is open" if status.is_complete else "unknown", "soft")
    _add(body, "h2", "Sources")
    rows = (_row(source_row(source, status.at), _source_mark(source), 1) for source in status.sources)
    _table(body, SOURCE_COLUMNS, rows)
    for line_of_text in describe_subjects(status.subjects):
        _add(body, "p", line_of_text, "soft")
    _add(body, "h2", "Groups by lag")
    if groups:
        _group_table(body, groups[:_SHOWN])
        if len(groups) > _SHOWN:
            _link(_add(body, "p", ""), f"all {len(groups):,} groups", "/groups")
    else:
        _add(body, "p", "none" if status.is_complete else "unknown", "soft")
    _add(body, "h2", "Deliveries")
    _table(body, RECEIVER_COLUMNS, (_row(receiver_row(receiver)) for receiver in status.receivers))
    if status.buttons is not None:
        _add(body, "p", describe_buttons(status.buttons), "soft")
    if status.archive is not None:
        _add(body, "p", describe_archive(status.archive), "soft")
    _add(body, "p", f"Pipeline: {status.queued:,} queued, delay {span(status.delay_ms)}.", "soft")
    _add(body, "h2", "Spark checks")
    if status.checks:
        _table(body, CHECK_COLUMNS, (_row(check_row(check)) for check in status.checks))
    _add(body, "p", f"{status.running_checks} running, {status.waiting_checks} waiting", "soft")
    return _encode(root)


def incident_page(record: IncidentRecord) -> bytes:
    """Return the page about an incident: its message, findings, check reports and deliveries."""
    incident = record.incident
    message = report(incident)
    root, body = _page(f"{incident.id} · Backflow")
    _back(body)
    _add(body, "h1", message.title)
    line = _add(body, "p", "")
    _add(line, "span", message.severity.upper(), message.severity.value).tail = f" · {message.state} · {incident.id}"
    _add(body, "p", message.context, "soft")
    _add(body, "p", message.paragraph)
    if message.timeline:
        _add(body, "h2", "Timeline (UTC)")
        _add(body, "pre", "\n".join(message.timeline_lines))
    for section in message.sections():
        _add(body, "h2", section.heading)
        for text in section.lines:
            _add(body, "p", text)
    _add_plot(body, record)
    day = day_of(incident.opened_at)
    for heading, findings in (("Causes", incident.causes), ("Findings", incident.findings)):
        if findings:
            _add(body, "h2", heading)
            for finding in sorted(findings, key=lambda finding: finding.at):
                first, second = describe_finding(finding, day)
                _add(body, "p", first, "soft")
                _add(body, "p", second)
    for lines in record.check_reports:
        _add(body, "h2", "Reported by a check")
        _add(body, "pre", "\n".join(lines))
    _add(body, "h2", "Deliveries")
    for delivery in record.deliveries:
        _add(body, "p", describe_delivery(delivery, day))
    if not record.deliveries:
        _add(body, "p", "none: no receiver is to be notified of it", "soft")
    return _encode(root)


def groups_page(groups: Sequence[GroupProgress]) -> bytes:
    """Return the page with all groups, in the given order."""
    root, body = _page("Groups · Backflow")
    _back(body)
    _add(body, "h1", f"{len(groups):,} groups by lag")
    _group_table(body, groups[:_LISTED])
    if len(groups) > _LISTED:
        _add(body, "p", f"and {len(groups) - _LISTED:,} more; `backflow groups` lists all", "soft")
    return _encode(root)


def group_page(name: str, groups: Sequence[GroupProgress]) -> bytes:
    """Return the page about the groups of this name or pattern, with their partitions."""
    root, body = _page("Group · Backflow")
    _back(body)
    if not groups:
        _add(body, "h1", f"no group {name} is observed")
    for group in groups[:_SHOWN]:
        _add(body, "h1", f"{group.group} of {group.cluster}")
        _add(body, "p", describe_group(group), "soft")
        _table(body, PARTITION_COLUMNS, (_row(partition_row(part)) for part in group.partitions[:_LISTED]))
    return _encode(root)


def _page(title: str) -> tuple[Element, Element]:
    """Return the root and the body of a page."""
    root = Element("html", lang="en")
    head = SubElement(root, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", {"http-equiv": "refresh", "content": str(_REFRESH_S)})
    SubElement(head, "title").text = title
    SubElement(head, "link", {"rel": "icon", "href": "/icon.svg"})
    SubElement(head, "style").text = STYLE
    return root, SubElement(root, "body")


def _add(parent: Element, tag: str, text: str, mark: str = "") -> Element:
    element = SubElement(parent, tag, {"class": mark} if mark else {})
    element.text = "\n".join(map(visible, text.split("\n"))) if tag == "pre" else visible(text)
    return element


def _link(parent: Element, text: str, address: str) -> None:
    _add(parent, "a", text).set("href", address)


def _back(body: Element) -> None:
    _link(_add(body, "p", ""), "← status", "/")


def _add_plot(body: Element, record: IncidentRecord) -> None:
    """Add the plot of the latest check, else what is known of the reader's offsets."""
    if record.has_plot:
        _add(body, "h2", "Plot of a check")
        picture = {"src": f"/incidents/{record.incident.id}/plot.png", "class": "plot"}
        alt = visible(f"Plot of the latest check about {record.incident.title}; its report is below")
        SubElement(SubElement(body, "figure"), "img", {**picture, "alt": alt})
    elif record.offsets is not None:
        offsets = record.offsets
        _add(body, "h2", f"{offsets.group} on {offsets.topic}[{offsets.partition}]")
        body.append(draw_offsets(offsets))


def _table(body: Element, columns: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> None:
    table = SubElement(body, "table")
    header = SubElement(SubElement(table, "thead"), "tr")
    for column in columns:
        _add(header, "th", column, "number" if column in NUMBERS else "")
    content = SubElement(table, "tbody")
    for row in rows:
        line = SubElement(content, "tr")
        for column, cell in zip(columns, row, strict=True):
            element = SubElement(line, "td", {"data-label": column, "class": "number" if column in NUMBERS else "text"})
            if cell.link:
                _link(element, cell.text, cell.link)
            elif cell.mark:
                _add(element, "span", cell.text, cell.mark)
            else:
                element.text = visible(cell.text)


def _row(texts: Sequence[str], mark: str = "", marked: int = -1) -> list[_Cell]:
    return [_Cell(text, mark=mark if number == marked else "") for number, text in enumerate(texts)]


def _source_mark(source: SourceStatus) -> str:
    if not source.is_readable or source.read_at is None:
        return "bad"
    return "warning" if source.unavailable else "good"


def _incident_row(incident: OpenIncident) -> list[_Cell]:
    return [
        _Cell(incident.severity, mark=incident.severity),
        _Cell(incident.title, f"/incidents/{incident.id}"),
        _Cell(incident.status),
        _Cell(minute(incident.opened_at)),
    ]


def _group_table(body: Element, groups: Iterable[GroupProgress]) -> None:
    rows = []
    for group in groups:
        first, *others = group_row(group)
        rows.append([_Cell(first, f"/groups?name={quote(group.group, safe='')}"), *map(_Cell, others)])
    _table(body, GROUP_COLUMNS, rows)


def _encode(root: Element) -> bytes:
    body: bytes = tostring(root, encoding="unicode", method="html").encode(errors="backslashreplace")
    return b"<!doctype html>\n" + body
