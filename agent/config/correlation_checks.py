"""Mistakes in a [correlations.NAME] table that its types alone do not show."""

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, TypeAlias

from agent.config.problems import did_you_mean, explain_rule_name
from agent.config.toml_places import KeyPath
from agent.engine.rule import Scope
from agent.model.findings import Severity
from agent.rules import CHECKS

KEYS = tuple(name for name in Scope._fields if name != "others")
"""Keys of findings' subjects."""

SHARED_KEYS = (*KEYS, "coordinator")
"""Keys that the steps of a correlation may share."""

PLACEHOLDERS = (*KEYS, "reader", "job_name", "records", "rule", "line")
"""Names that a title may contain in braces."""

SEVERITIES = [f'"{severity}"' for severity in Severity]

Mistakes: TypeAlias = Iterator[tuple[KeyPath, str]]


def correlation_problems(table: Mapping[str, Any], rules: Mapping[str, str]) -> Mistakes:
    """Yield the key path and the message of each mistake in the table. rules: the kind of each rule by its name.

    Values of a wrong type are ignored here; the model reports them.
    """
    steps = table.get("steps")
    if isinstance(steps, list):
        if len(steps) < 2:
            yield ("steps",), f"needs at least two steps, has {len(steps) or 'none'}"
        for index, step in enumerate(steps):
            if isinstance(step, Mapping):
                for path, message in _step_problems(step, rules, first=index == 0, last=index == len(steps) - 1):
                    yield ("steps", index, *path), message
    for path, name in _elements(table, "run_checks"):
        if isinstance(name, str) and name not in CHECKS:
            yield path, f'unknown check "{name}"{did_you_mean(name, CHECKS)}'
    yield from _duplicates(table, "run_checks")
    severity = table.get("severity")
    if isinstance(severity, str) and severity not in list(Severity):
        yield ("severity",), f'expected {", ".join(SEVERITIES[:-1])} or {SEVERITIES[-1]}, got "{severity}"'
    title = table.get("title")
    if isinstance(title, str):
        for message in _title_problems(title):
            yield ("title",), message


def _step_problems(step: Mapping[str, Any], rules: Mapping[str, str], *, first: bool, last: bool) -> Mistakes:
    if ("rule" in step) == ("any" in step):
        yield (), "exactly one of `rule` and `any` is required"
    elif step.get("any") == []:
        yield ("any",), "name at least one rule"
    for path, name in [(("rule",), step.get("rule")), *_elements(step, "any")]:
        if isinstance(name, str) and name not in rules:
            explained = explain_rule_name(name, rules, ", or remove it from this step")
            yield path, explained or f'unknown rule "{name}"{did_you_mean(name, rules)}'
    for path, key in _elements(step, "shares"):
        if isinstance(key, str) and key not in SHARED_KEYS:
            yield path, f'unknown key "{key}"{did_you_mean(key, SHARED_KEYS)}'
    for name in ("any", "shares"):
        yield from _duplicates(step, name)
    if first and "shares" in step:
        yield ("shares",), "the first step has no earlier step to share keys with"
    if not first and not step.get("shares"):
        yield (), "list the keys that this step `shares` with an earlier one"
    if (first or last) and step.get("optional") is True:
        yield ("optional",), "the first step (the cause) and the last one (the effect) cannot be optional"


def _duplicates(table: Mapping[str, Any], name: str) -> Mistakes:
    seen: list[Any] = []
    for path, element in _elements(table, name):
        if element in seen:
            yield path, f'"{element}" is listed twice'
        seen.append(element)


def _elements(table: Mapping[str, Any], name: str) -> list[tuple[KeyPath, Any]]:
    elements = table.get(name)
    return [((name, index), value) for index, value in enumerate(elements)] if isinstance(elements, list) else []


def _title_problems(title: str) -> Iterator[str]:
    try:
        fields = [
            (name, spec, conversion) for _, name, spec, conversion in Formatter().parse(title) if name is not None
        ]
    except ValueError as error:
        yield f"unbalanced braces: {error}"
        return
    for name, spec, conversion in fields:
        if name not in PLACEHOLDERS:
            yield f"unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)}"
        elif spec or conversion:
            yield f"write {{{name}}} without `:` or `!`"
