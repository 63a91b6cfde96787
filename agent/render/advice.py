"""What to do about an incident: the advice of its rules, filled in."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.model.findings import Finding, observed_part, reader
from agent.model.text import broker_names, instant, join_names, place, span
from agent.render.timeline import rule_of

MAX_LINES = 2


def advice_now(findings: Iterable[Finding], day: str) -> tuple[str, ...]:
    """Return what to do at once, the worst finding's advice first; nothing for conditions that have ended."""
    templates: dict[str, list[Finding]] = {}
    for finding in findings:
        advice = rule_of(finding).advice_for(finding)
        if advice.now and not (advice.only_while_open and finding.recovered_at is not None):
            templates.setdefault(advice.now, []).append(finding)
    return _fill(templates, day)


def advice_to_prevent(findings: Iterable[Finding], day: str) -> tuple[str, ...]:
    """Return what prevents it from happening again, in the order of the findings."""
    templates: dict[str, list[Finding]] = {}
    for finding in findings:
        prevent = rule_of(finding).advice_for(finding).prevent
        if prevent:
            templates.setdefault(prevent, []).append(finding)
    return _fill(templates, day)


def _fill(templates: dict[str, list[Finding]], day: str) -> tuple[str, ...]:
    lines = (template.format_map(_fields(findings, day)) for template, findings in templates.items())
    return tuple(dict.fromkeys(_capitalized(line) for line in lines))[:MAX_LINES]


def _capitalized(line: str) -> str:
    """Return the line with a capital letter, unless it begins with the name of a setting."""
    return line[:1].upper() + line[1:] if line.partition(" ")[0].isalpha() else line


def _fields(findings: Sequence[Finding], day: str) -> dict[str, Any]:
    """Return the first finding's names; what only a rule or only a check knows comes from whichever finding has it.

    What only its rule has in a scope, such as a connector, has the rule's name for it.
    """
    finding = findings[0]
    known = {name: value for finding in findings for name, value in finding.current.items()}
    sides = (finding.previous, finding.current)
    values = [finding.current.get("log_start"), *(side.get("offset", side.get("log_end")) for side in sides)]
    offsets = [value for value in values if isinstance(value, int)]
    pause = "" if finding.recovered_at is None else f" for {span(max(0, finding.recovered_at - finding.at))}"
    own = {key: finding.subject.get(key, "?") for key in rule_of(finding).scope_keys}
    return own | {
        "reader": reader(finding.subject),
        "group_argument": shlex.quote(reader(finding.subject)),
        "place": place(finding.subject),
        "topic": finding.subject.get("topic", "the topic"),
        "job": finding.subject.get("job", "?"),
        "others": join_names(finding.current.get("others") or ["its successor"]),
        "broker": finding.subject.get("broker", "?"),
        "brokers": broker_names(finding.subject.get("brokers") or [finding.subject.get("broker", "?")]),
        "down": broker_names(finding.current.get("down") or ["?"]),
        "file": finding.subject.get("file", "the segment"),
        "graph": _graph(finding),
        "partition": finding.subject.get("partition", "?"),
        "producer": finding.current.get("producer", "the producer"),
        "offset": finding.current.get("offset", "?"),
        "listed": f" Keys known so far, with their old values: {known['listed_in']}." if known.get("listed_in") else "",
        "source": finding.subject.get("source", "NAME"),
        "observed": observed_part(finding.subject),
        "start": instant(finding.start, day),
        "low": f"{min(offsets):,}" if offsets else "?",
        "high": f"{max(offsets):,}" if offsets else "?",
        "pause": pause,
        "newest": _checkpoint(finding.previous),
        "taken": instant(finding.current.get("triggered_at", finding.start), day),
        "undeclared": _undeclared(known.get("undeclared") or ()),
    }


def _undeclared(stores: Sequence[str]) -> str:
    """Which stores of the application are not followed and may have decreased too, as a sentence."""
    if not stores:
        return ""
    plural = len(stores) > 1
    return f" Also check store{'s' * plural} {join_names(stores)}, which {'are' if plural else 'is'} not declared."


def _checkpoint(state: Mapping[str, Any]) -> str:
    """Return a Flink job's checkpoint or savepoint, with its path if it is known."""
    name = f"{'savepoint' if state.get('savepoint') else 'checkpoint'} {state.get('id', '?')}"
    return f"{name} ({state['path']})" if state.get("path") else name


def _graph(finding: Finding) -> str:
    """Return what a Flink job graph consists of, to be deleted."""
    znode, file = (finding.current.get(name) for name in ("znode", "file"))
    parts = [f"the znode {znode}" if znode else "its znode", f"the file {file}" if file else "its file"]
    return " and ".join(parts)
