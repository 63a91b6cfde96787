"""The command `test-rules`: run rule tests, which list observations and the findings and incidents they must make.

    defaults = { cluster = "main", topic = "t", partition = 0 }  # for observations that leave them out

    [[cases]]
    name = "a rewind to the log start is critical"
    rules = ["rewind"]                       # the configured rules to run (default: all).
    observations = [                         # reported by sources:
      { kind = "log_offsets", at = "0s", log_start = 0, log_end = 9000 },
      { kind = "commit", at = "1s", group = "g", offset = 7832 },  # a commit;
      { kind = "commit", at = "2s", group = "g", offset = 0 },
    ]

    findings = [{ rule = "rewind", at = "2s", labels = ["to_earliest"], previous = { offset = 7832 } }]
    incidents = [{ severity = "critical" }]  # without it, incidents are not compared.

Times are RFC 3339 or durations since the start of the test; "null" stands for the null that TOML lacks, "missing" for a
key that is not there. An expected finding or incident names only the keys to compare. A rule test fails if an expected
finding is missing or an unexpected one is made. Ticks are added between observations, so a test about absence ends with
`{ kind = "tick", at = "..." }`.
"""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from pydantic import Field, ValidationError

from agent.cli.common import EPILOG, config_option, fail, load_or_exit
from agent.cli.replay import replay
from agent.config.loading import read_toml
from agent.config.problems import SettingsError, did_you_mean, explain_rule_name, mistakes_in
from agent.config.settings import Settings
from agent.config.toml_places import KeyPath
from agent.engine.engine import Engine
from agent.engine.recorded import moments
from agent.model.config_types import ConfigModel, duration
from agent.model.encoding import from_fields
from agent.model.exit_status import FOUND, WRONG
from agent.model.findings import Finding, Incident, finding_fields, incident_fields
from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.model.times import is_time, millis, rfc3339

_START = millis("2026-01-01T00:00:00Z")


class RuleTest(ConfigModel):
    """One rule test."""

    name: str
    rules: list[str] | None = None
    observations: list[dict[str, Any]]
    findings: list[dict[str, Any]] = Field(default_factory=list)
    incidents: list[dict[str, Any]] | None = None


class RuleTestFile(ConfigModel):
    """A file of rule tests."""

    defaults: dict[str, Any] = Field(default_factory=dict)
    cases: list[RuleTest]


class RuleTestsError(Exception):
    """Rule tests cannot be run; the message has a line with file and line number for each mistake."""


class _RuleTestError(Exception):
    """A rule test cannot be run. below: the key path in the test."""

    def __init__(self, below: KeyPath, message: str) -> None:
        super().__init__(message)
        self.below = below


@click.command("test-rules", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@config_option
def test_rules_command(files: tuple[Path, ...], config: Path | None) -> None:
    """Run rule tests: check that observations make the expected findings and incidents and no others.

    FILES are TOML; see tests/cases for examples. Exits with 1 if a test fails.
    """
    settings = load_or_exit(config, need_clusters=False)
    passed = failed = 0
    try:
        for path in files:
            for _, failures in run_rule_tests(path, settings):
                passed, failed = passed + (not failures), failed + bool(failures)
                for message in failures:
                    click.echo(message)
    except RuleTestsError as error:
        fail(WRONG, str(error))
    click.echo(f"{passed} rule tests passed, {failed} failed")
    sys.exit(FOUND if failed else 0)


def run_rule_tests(path: Path, settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each rule test and its failures, each with file and line; no failures if it passed.

    Raises RuleTestsError if the file cannot be read or one of its tests cannot be run.
    """
    try:
        table, places = read_toml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise RuleTestsError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: not valid TOML: {error}"
        raise RuleTestsError(msg) from error
    except SettingsError as error:
        raise RuleTestsError(str(error)) from error

    def place(key: KeyPath) -> str:
        return f"{path}:{next(places[key[:n]].line for n in range(len(key), -1, -1) if key[:n] in places)}"

    try:
        file = RuleTestFile.model_validate(table)
    except ValidationError as error:
        mistakes = mistakes_in(error, RuleTestFile, table)
        raise RuleTestsError("\n".join(f"{place(key)}: {key[-1]}: {message}" for key, message in mistakes)) from error
    for number, test in enumerate(file.cases):
        try:
            failures = list(_run(test, file.defaults, settings))
        except _RuleTestError as mistake:
            msg = f"{place(('cases', number, *mistake.below))}: {test.name}: {mistake}"
            raise RuleTestsError(msg) from mistake
        yield test.name, [f"{place(('cases', number))}: {test.name}: {message}" for message in failures]


def _run(test: RuleTest, defaults: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield the failures of the test. Raises _RuleTestError."""
    for index, name in enumerate(test.rules or ()):
        if name not in settings.rules:
            message = explain_rule_name(name, settings.kinds) or (
                f'no rule "{name}" is configured{did_you_mean(name, settings.rules)}'
            )
            raise _RuleTestError(("rules", index), message)
    rules = {name: rule for name, rule in settings.rules.items() if test.rules is None or name in test.rules}
    correlations = {
        name: correlation
        for name, correlation in settings.correlations.items()
        if all(step.optional or set(step.rules) & set(rules) for step in correlation.steps)
    }
    incidents = replay(moments(_observations(test, defaults)), Engine(rules, correlations))
    findings = [finding_fields(finding) for incident in incidents for finding in (*incident.causes, *incident.findings)]
    yield from _compare("finding", list(_expected("findings", test.findings, Finding)), findings)
    if test.incidents is not None:
        unmerged = [incident_fields(incident) for incident in incidents if incident.merged_into is None]
        yield from _compare("incident", list(_expected("incidents", test.incidents, Incident)), unmerged)


def _observations(test: RuleTest, defaults: Mapping[str, Any]) -> Iterator[Observation]:
    for index, fields in enumerate(test.observations):
        kind = KINDS.get(str(fields.get("kind")))
        known = kind.__struct_fields__ if kind is not None else ()
        merged = {key: value for key, value in defaults.items() if key in known} | fields
        try:
            yield from_fields({key: None if value == "null" else _field(key, value) for key, value in merged.items()})
        except (ValueError, OverflowError) as error:
            raise _RuleTestError(("observations", index), str(error)) from error


def _expected(section: str, expected: list[dict[str, Any]], kind: type[Finding | Incident]) -> Iterator[dict[str, Any]]:
    known = [name for name in kind.__struct_fields__ if name != "known_at"]
    for index, fields in enumerate(expected):
        for key in fields:
            if key not in known:
                raise _RuleTestError((section, index, key), f"unknown key `{key}`{did_you_mean(key, known)}")
        yield {key: _field(key, value) for key, value in fields.items()}


def _field(key: str, value: Any) -> Any:
    """Return the field as in JSON: a time, also one given as a duration since the start, as RFC 3339 text."""
    if not is_time(key) or not isinstance(value, str | datetime):
        return value
    text = value.isoformat() if isinstance(value, datetime) else value
    try:
        return rfc3339(_START + duration(text))
    except ValueError:
        pass
    try:
        return rfc3339(millis(text))
    except ValueError:
        return text


def _compare(noun: str, expected: list[dict[str, Any]], made: list[dict[str, Any]]) -> Iterator[str]:
    unexpected = list(made)
    for wanted in expected:
        match = next((candidate for candidate in unexpected if _matches(wanted, candidate)), None)
        if match is None:
            yield f"expected {noun} is missing: {wanted}"
        else:
            unexpected.remove(match)
    for fields in unexpected:
        shown = {name: value for name, value in fields.items() if name not in ("causes", "findings")}
        yield f"unexpected {noun}: { ({name: value for name, value in shown.items() if value is not None}) }"


def _matches(wanted: Any, made: Any) -> bool:
    """Return whether `made` has all keys of `wanted` with the same values; "null" matches None, "missing" no value."""
    if isinstance(wanted, Mapping):
        return isinstance(made, Mapping) and all(
            _matches(value, made[key]) if key in made else value == "missing" for key, value in wanted.items()
        )
    return bool(made is None if wanted == "null" else made == wanted)
