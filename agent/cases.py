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

Times are RFC 3339 or durations since the case's beginning. An expected finding or incident names the keys it cares
about; findings that are not expected fail the case, as do expected ones that are not made. Unchanged polls may be
written out; ticks are added between observations, so a case about absence ends with `{ kind = "tick", at = "..." }`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli
from pydantic import Field, ValidationError

from agent.findings import Incident, finding_fields, incident_fields
from agent.observations import KINDS, Observation, from_fields, millis, rfc3339
from agent.options import Section, duration
from agent.replay import replay
from agent.settings import Settings
from agent.watch import Watch

_BEGINNING = millis("2026-01-01T00:00:00Z")
_TIMES = ("at", "seen_at", "since", "recovered_at", "opened_at", "updated_at")


class RuleCase(Section):
    """One case."""

    name: str
    rules: list[str] | None = None
    observations: list[dict[str, Any]]
    findings: list[dict[str, Any]] = Field(default_factory=list)
    incidents: list[dict[str, Any]] | None = None


class CaseFile(Section):
    """A file of cases."""

    defaults: dict[str, Any] = Field(default_factory=dict)
    cases: list[RuleCase]


class CasesError(Exception):
    """A file of cases that cannot be run; a sentence with its place."""


def load(path: Path) -> CaseFile:
    """The cases in a file. Raises CasesError."""
    try:
        return CaseFile.model_validate(tomli.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise CasesError(msg) from error
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path}: not TOML: {error}"
        raise CasesError(msg) from error
    except ValidationError as error:
        places = (f"{path}: {'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors())
        raise CasesError("\n".join(places)) from error


def run(case: RuleCase, defaults: Mapping[str, Any], settings: Settings) -> list[str]:
    """What is wrong with the case: nothing when it holds. Raises CasesError where it cannot be run."""
    unknown = sorted(set(case.rules or []) - set(settings.rules))
    if unknown:
        msg = f"case {case.name!r}: no such rule in the configuration: {', '.join(unknown)}"
        raise CasesError(msg)
    rules = {name: rule for name, rule in settings.rules.items() if case.rules is None or name in case.rules}
    usable = {
        name: one
        for name, one in settings.correlations.items()
        if all(set(step.rules) & set(rules) for step in one.steps)
    }
    incidents = replay(_observations(case, defaults), Watch(rules, usable))
    wrong = list(
        _compare(
            "finding", case.findings, [finding_fields(one) for made in incidents for one in made.causes + made.findings]
        )
    )
    if case.incidents is not None:
        wrong += _compare("incident", case.incidents, _standing(incidents))
    return wrong


def _standing(incidents: list[Incident]) -> list[dict[str, Any]]:
    return [incident_fields(one) for one in incidents if one.merged_into is None]


def _observations(case: RuleCase, defaults: Mapping[str, Any]) -> Iterator[Observation]:
    for number, fields in enumerate(case.observations, start=1):
        kind = KINDS.get(str(fields.get("kind")))
        known = kind.__struct_fields__ if kind is not None else ()
        merged = {**{key: value for key, value in defaults.items() if key in known}, **fields}
        try:
            yield from_fields({key: _time(value) if key in _TIMES else value for key, value in merged.items()})
        except ValueError as error:
            msg = f"case {case.name!r}: observation {number}: {error}"
            raise CasesError(msg) from error


def _time(value: Any) -> Any:
    """A duration since the case's beginning as RFC 3339; anything else as it is."""
    if not isinstance(value, str):
        return value
    sign, length = (-1, value[1:]) if value.startswith("-") else (1, value)
    try:
        return rfc3339(_BEGINNING + sign * duration(length))
    except ValueError:
        return value


def _compare(what: str, expected: list[dict[str, Any]], made: list[dict[str, Any]]) -> Iterator[str]:
    left = list(made)
    for one in expected:
        wanted = {key: _time(value) if key in _TIMES else value for key, value in one.items()}
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
