"""What a correlation in rules.toml can get wrong across its keys. Their types, and joining, live in correlation."""

from collections.abc import Iterable, Iterator, Mapping
from string import Formatter
from typing import Any, TypeAlias

from agent.config.problems import did_you_mean
from agent.config.toml_places import Path
from agent.engine.rule import Scope
from agent.model.findings import Severity
from agent.rules import CHECKS

KEYS = Scope._fields
"""What a step may share."""

PLACEHOLDERS = (*KEYS, "reader", "job_name", "records", "rule", "line")
"""What a title may name in braces."""

SEVERITIES = [f'"{one}"' for one in Severity]

Complaints: TypeAlias = Iterator[tuple[Path, str]]


def correlation_problems(table: Mapping[str, Any], rules: Iterable[str]) -> Complaints:
    """Each problem's key path in the table, and a sentence. What is of a wrong type is passed over: others tell it."""
    steps = table.get("steps")
    if isinstance(steps, list):
        if len(steps) < 2:
            yield ("steps",), f"at least two steps are needed, there is {len(steps) or 'none'}"
        names = tuple(rules)
        for index, step in enumerate(steps):
            if isinstance(step, Mapping):
                for path, sentence in _step(step, names, first=index == 0, last=index == len(steps) - 1):
                    yield ("steps", index, *path), sentence
    for path, name in _elements(table, "run_checks"):
        if isinstance(name, str) and name not in CHECKS:
            yield path, f'there is no check "{name}"{did_you_mean(name, CHECKS)}'
    yield from _repeated(table, "run_checks")
    severity = table.get("severity")
    if isinstance(severity, str) and severity not in list(Severity):
        yield ("severity",), f'expected {", ".join(SEVERITIES[:-1])} or {SEVERITIES[-1]}, got "{severity}"'
    title = table.get("title")
    if isinstance(title, str):
        for sentence in _title(title):
            yield ("title",), sentence


def _step(step: Mapping[str, Any], rules: tuple[str, ...], *, first: bool, last: bool) -> Complaints:
    if ("rule" in step) == ("any" in step):
        yield (), "name either one `rule` or `any` of several"
    elif step.get("any") == []:
        yield ("any",), "names no rule"
    for path, name in [(("rule",), step.get("rule")), *_elements(step, "any")]:
        if isinstance(name, str) and name not in rules:
            yield path, f'there is no rule "{name}"{did_you_mean(name, rules)}'
    for path, key in _elements(step, "shares"):
        if isinstance(key, str) and key not in KEYS:
            yield path, f'unknown key "{key}"{did_you_mean(key, KEYS)}'
    for name in ("any", "shares"):
        yield from _repeated(step, name)
    if first and "shares" in step:
        yield ("shares",), "the first step has no earlier one to share keys with"
    if not first and not step.get("shares"):
        yield (), "name the keys that it `shares` with an earlier step"
    if (first or last) and step.get("optional") is True:
        yield ("optional",), "the first step is the cause and the last the effect: neither can be optional"


def _repeated(table: Mapping[str, Any], name: str) -> Complaints:
    seen: list[Any] = []
    for path, element in _elements(table, name):
        if element in seen:
            yield path, f'"{element}" stands in the list already'
        seen.append(element)


def _elements(table: Mapping[str, Any], name: str) -> list[tuple[Path, Any]]:
    elements = table.get(name)
    return [((name, index), one) for index, one in enumerate(elements)] if isinstance(elements, list) else []


def _title(title: str) -> Iterator[str]:
    try:
        fields = [
            (name, spec, conversion) for _, name, spec, conversion in Formatter().parse(title) if name is not None
        ]
    except ValueError as error:
        yield f"its braces do not match: {error}"
        return
    for name, spec, conversion in fields:
        if name not in PLACEHOLDERS:
            yield f"unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)}"
        elif spec or conversion:
            yield f"write {{{name}}} alone, without `:` or `!`"
