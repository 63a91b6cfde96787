"""Rule cases: what `backflow test-rules` reads and judges. Each gives observations and says which findings and
incidents they make.

    defaults = { cluster = "main", topic = "t", partition = 0 }  # for observations that leave them out

    [[cases]]
    name = "a fall to the log's start is critical"
    rules = ["rewind"]                       # which rules of the configuration run; all when left out
    observations = [
      { kind = "log_offsets", at = "0s", log_start = 0, log_end = 9000 },
      { kind = "commit", at = "1s", group = "g", offset = 7832 },
      { kind = "commit", at = "2s", group = "g", offset = 0 },
    ]
    findings = [{ rule = "rewind", at = "2s", labels = ["to_earliest"], previous = { offset = 7832 } }]
    incidents = [{ severity = "critical" }]  # left out: incidents are not compared

Times are RFC 3339 or durations since the case's beginning; "null" stands for the null that TOML lacks. An expected
finding or incident names the keys it cares about; findings that are not expected fail the case, as do expected ones
that are not made. Unchanged polls may be written out; ticks are added between observations, so a case about absence
ends with `{ kind = "tick", at = "..." }`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli
from pydantic import Field, ValidationError

from agent.cli.replay import replay
from agent.config.problems import complaints, did_you_mean
from agent.config.settings import Settings
from agent.config.toml_places import Path as KeyPath
from agent.config.toml_places import find_places
from agent.engine.engine import Engine
from agent.model.config_types import ConfigModel, duration
from agent.model.findings import Finding, Incident, finding_fields, incident_fields
from agent.model.observations import KINDS, Observation, from_fields, is_time, millis, rfc3339

_BEGINNING = millis("2026-01-01T00:00:00Z")


class RuleTest(ConfigModel):
    """One case."""

    name: str
    rules: list[str] | None = None
    observations: list[dict[str, Any]]
    findings: list[dict[str, Any]] = Field(default_factory=list)
    incidents: list[dict[str, Any]] | None = None


class RuleTestFile(ConfigModel):
    """A file of cases."""

    defaults: dict[str, Any] = Field(default_factory=dict)
    cases: list[RuleTest]


class RuleTestsError(Exception):
    """Cases that cannot be run: a sentence with file and line for each mistake."""


class _RuleTestError(Exception):
    """A case that cannot be run. below: the key path in the case."""

    def __init__(self, below: KeyPath, sentence: str) -> None:
        super().__init__(sentence)
        self.below = below


def check(path: Path, settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Each case's name, and what is wrong with it: a sentence each, with file and line; none when it holds.

    Raises RuleTestsError where the file cannot be read or a case of it cannot be run.
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = tomli.loads(text)
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise RuleTestsError(msg) from error
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path}: not TOML: {error}"
        raise RuleTestsError(msg) from error
    places = find_places(text)

    def place(key: KeyPath) -> str:
        return f"{path}:{next(places[key[:n]].line for n in range(len(key), -1, -1) if key[:n] in places)}"

    try:
        file = RuleTestFile.model_validate(table)
    except ValidationError as error:
        told = complaints(error, RuleTestFile, table)
        raise RuleTestsError("\n".join(f"{place(key)}: {key[-1]}: {sentence}" for key, sentence in told)) from error
    for number, case in enumerate(file.cases):
        try:
            wrong = list(_run(case, file.defaults, settings))
        except _RuleTestError as mistake:
            msg = f"{place(('cases', number, *mistake.below))}: {case.name}: {mistake}"
            raise RuleTestsError(msg) from mistake
        yield case.name, [f"{place(('cases', number))}: {case.name}: {sentence}" for sentence in wrong]


def _run(case: RuleTest, defaults: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """What is wrong with the case. Raises _RuleTestError."""
    for index, name in enumerate(case.rules or ()):
        if name not in settings.rules:
            raise _RuleTestError(
                ("rules", index), f'no rule "{name}" is configured{did_you_mean(name, settings.rules)}'
            )
    rules = {name: rule for name, rule in settings.rules.items() if case.rules is None or name in case.rules}
    usable = {
        name: one
        for name, one in settings.correlations.items()
        if all(step.optional or set(step.rules) & set(rules) for step in one.steps)
    }
    incidents = replay(list(_observations(case, defaults)), Engine(rules, usable))
    findings = [finding_fields(one) for made in incidents for one in made.causes + made.findings]
    expected = list(_expected("findings", case.findings, Finding))
    yield from _compare("finding", expected, findings)
    if case.incidents is not None:
        standing = [incident_fields(one) for one in incidents if one.merged_into is None]
        yield from _compare("incident", list(_expected("incidents", case.incidents, Incident)), standing)


def _observations(case: RuleTest, defaults: Mapping[str, Any]) -> Iterator[Observation]:
    for index, fields in enumerate(case.observations):
        kind = KINDS.get(str(fields.get("kind")))
        known = kind.__struct_fields__ if kind is not None else ()
        merged = {key: value for key, value in defaults.items() if key in known} | fields
        try:
            yield from_fields({key: None if value == "null" else _field(key, value) for key, value in merged.items()})
        except (ValueError, OverflowError) as error:
            raise _RuleTestError(("observations", index), str(error)) from error


def _expected(where: str, expected: list[dict[str, Any]], made: type[Finding | Incident]) -> Iterator[dict[str, Any]]:
    known = [name for name in made.__struct_fields__ if name != "known_at"]
    for index, one in enumerate(expected):
        for key in one:
            if key not in known:
                raise _RuleTestError((where, index, key), f"unknown key `{key}`{did_you_mean(key, known)}")
        yield {key: _field(key, value) for key, value in one.items()}


def _field(key: str, value: Any) -> Any:
    """The field as in JSON: times as RFC 3339 with milliseconds, also those that are durations since the beginning."""
    if not is_time(key) or not isinstance(value, str | datetime):
        return value
    text = value.isoformat() if isinstance(value, datetime) else value
    try:
        return rfc3339(_BEGINNING + duration(text))
    except ValueError:
        pass
    try:
        return rfc3339(millis(text))
    except ValueError:
        return text


def _compare(what: str, expected: list[dict[str, Any]], made: list[dict[str, Any]]) -> Iterator[str]:
    left = list(made)
    for wanted in expected:
        match = next((candidate for candidate in left if _fits(wanted, candidate)), None)
        if match is None:
            yield f"expected {what} was not made: {wanted}"
        else:
            left.remove(match)
    for one in left:
        shown = {key: value for key, value in one.items() if key not in ("causes", "findings") and value is not None}
        yield f"{what} was not expected: {shown}"


def _fits(wanted: Any, made: Any) -> bool:
    """Whether `made` is `wanted`, keys that are not wanted apart; the text "null" stands for TOML's missing null."""
    if isinstance(wanted, Mapping):
        return isinstance(made, Mapping) and all(
            key in made and _fits(value, made[key]) for key, value in wanted.items()
        )
    return bool(made is None if wanted == "null" else made == wanted)
