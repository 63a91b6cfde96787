"""The rule tests in tests/cases pass with the shipped rules, and failures are reported clearly."""

from pathlib import Path
from typing import Any

import pytest
import tomli

from agent.cli.rule_tests import RuleTestsError, run_rule_tests
from agent.config.loading import load
from agent.config.settings import Settings
from agent.rules import KINDS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "cases").glob("*.toml"))
SETTINGS = load(ROOT / "rules.toml", need_clusters=False)
REWIND = """
defaults = { cluster = "main", group = "g", topic = "t", partition = 0 }

[[cases]]
name = "a rewind"
rules = ["rewind"]
observations = [
  { kind = "commit", at = "1s", offset = 9000 },
  { kind = "commit", at = "2s", offset = 100 },
]
"""
"""A rule test, beginning in line 4, that makes a finding and an incident."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_rule_tests_pass_with_the_shipped_rules(path: Path) -> None:
    wrong = [message for _, messages in run_rule_tests(path, SETTINGS) for message in messages]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_all_rule_kinds_have_firing_and_silent_tests(kind: str) -> None:
    (path,) = (path for path in FILES if path.stem == kind)
    (rule,) = (name for name, configured in SETTINGS.rules.items() if configured.kind == kind)
    cases: list[dict[str, Any]] = tomli.loads(path.read_text(encoding="utf-8"))["cases"]
    fires = [
        any(finding["rule"] == rule for finding in case.get("findings", ())) for case in cases if _runs(case, rule)
    ]
    assert True in fires
    assert False in fires


def _runs(case: dict[str, Any], rule: str) -> bool:
    return rule in case.get("rules", SETTINGS.rules)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rule_tests_of_a_file_have_distinct_names(path: Path) -> None:
    names = [name for name, _ in run_rule_tests(path, SETTINGS)]
    assert sorted(names) == sorted(set(names))


def messages_of(tmp_path: Path, text: str, settings: Settings = SETTINGS) -> list[str]:
    path = tmp_path / "cases.toml"
    path.write_text(text, encoding="utf-8")
    try:
        found = [message for _, messages in run_rule_tests(path, settings) for message in messages]
    except RuleTestsError as error:
        found = str(error).splitlines()
    return [message.replace(f"{tmp_path}/", "") for message in found]


def test_passed_rule_test_reports_nothing(tmp_path: Path) -> None:
    assert messages_of(tmp_path, f'{REWIND}findings = [{{ rule = "rewind", current = {{ offset = 100 }} }}]') == []


def test_unexpected_finding_is_reported(tmp_path: Path) -> None:
    (message,) = messages_of(tmp_path, REWIND)
    assert message.startswith("cases.toml:4: a rewind: unexpected finding: {'rule': 'rewind',")
    assert "'previous': {'offset': 9000}" in message


def test_missing_finding_is_reported_next_to_the_one_made(tmp_path: Path) -> None:
    missing, extra = messages_of(tmp_path, f'{REWIND}findings = [{{ rule = "rewind", at = "3s" }}]')
    assert missing == (
        "cases.toml:4: a rewind: expected finding is missing: {'rule': 'rewind', 'at': '2026-01-01T00:00:03.000Z'}"
    )
    assert extra.startswith("cases.toml:4: a rewind: unexpected finding: ")


def test_one_finding_does_not_match_two_expected(tmp_path: Path) -> None:
    (message,) = messages_of(tmp_path, f'{REWIND}findings = [{{ rule = "rewind" }}, {{ rule = "rewind" }}]')
    assert message == "cases.toml:4: a rewind: expected finding is missing: {'rule': 'rewind'}"


def test_incidents_are_compared_if_given(tmp_path: Path) -> None:
    case = f'{REWIND}findings = [{{ rule = "rewind" }}]\n'
    assert messages_of(tmp_path, f'{case}incidents = [{{ status = "open", correlation = "null" }}]') == []
    (extra,) = messages_of(tmp_path, f"{case}incidents = []")
    assert extra.startswith("cases.toml:4: a rewind: unexpected incident: {'id': 'INC-")
    missing, _ = messages_of(tmp_path, f'{case}incidents = [{{ severity = "critical" }}]')
    assert missing == "cases.toml:4: a rewind: expected incident is missing: {'severity': 'critical'}"


@pytest.mark.parametrize(
    "at", ['"2s"', '"2026-01-01T00:00:02Z"', '"2026-01-01T01:00:02+01:00"', "2026-01-01T00:00:02Z"]
)
def test_time_is_a_duration_text_or_a_toml_time(tmp_path: Path, at: str) -> None:
    assert messages_of(tmp_path, f'{REWIND}findings = [{{ rule = "rewind", at = {at} }}]') == []
    assert messages_of(tmp_path, REWIND.replace('"2s"', at) + 'findings = [{ rule = "rewind", at = "2s" }]') == []


def test_null_text_stands_for_null(tmp_path: Path) -> None:
    forgotten = REWIND.replace("offset = 100 }", 'offset = "null" }')
    assert messages_of(tmp_path, forgotten) == []
    assert messages_of(tmp_path, f'{REWIND}findings = [{{ rule = "rewind", recovered_at = "null" }}]') == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"commit", at = "2s"', '"comit", at = "2s"', "9: a rewind: Invalid value 'comit' - at `$.kind`"),
        (", offset = 100", "", "9: a rewind: Object missing required field `offset`"),
        ("offset = 100", "offset = 100, x = 1", "9: a rewind: Object contains unknown field `x`"),
        ("offset = 100", 'offset = "100"', "9: a rewind: Expected `int | null`, got `str` - at `$.offset`"),
        ('at = "2s"', 'at = "soon"', "9: a rewind: `at`: 'soon' is not a time such as 2026-12-01T06:00:00Z"),
        ('at = "2s"', "at = 2026-01-01T00:00:02", "9: a rewind: `at`: '2026-01-01T00:00:02' names no time zone"),
        ('at = "2s"', 'at = "99999999d"', "9: a rewind: "),
        ('at = "2s"', "at = 2", "9: a rewind: `at`: expected an RFC 3339 time in UTC, got 2"),
        (
            '["rewind"]',
            '["offset_rewind"]',
            '6: a rewind: "offset_rewind" is a kind; the rule of this kind is "rewind"',
        ),
        ('["rewind"]', '["rewnd"]', '6: a rewind: no rule "rewnd" is configured; did you mean `rewind`?'),
        ("name =", "nam =", "4: name: is required"),
        ("name =", "fndings = []\nname =", "5: fndings: unknown key; did you mean `findings`?"),
        ("[[cases]]", "[[case]]", "1: cases: is required"),
        ("[[cases]]", "[[cases]", "4: not valid TOML: "),
    ],
)
def test_invalid_rule_test_is_reported_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in REWIND
    messages = messages_of(tmp_path, REWIND.replace(old, new))
    assert any(text.startswith((f"cases.toml:{message}", f"cases.toml: {message}")) for text in messages), messages


def test_unknown_key_in_an_expectation_is_a_mistake(tmp_path: Path) -> None:
    messages = messages_of(
        tmp_path, f'{REWIND}findings = [\n  {{ rule = "rewind", previuos = {{ offset = 9000 }} }},\n]'
    )
    assert messages == ["cases.toml:12: a rewind: unknown key `previuos`; did you mean `previous`?"]
    messages = messages_of(
        tmp_path, f'{REWIND}findings = [{{ rule = "rewind" }}]\nincidents = [{{ sevrity = "info" }}]'
    )
    assert messages == ["cases.toml:12: a rewind: unknown key `sevrity`; did you mean `severity`?"]


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "missing.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RuleTestsError, match=f"{path}: cannot be read: {reason}"):
            list(run_rule_tests(path, SETTINGS))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RuleTestsError, match="not valid TOML: "):
        list(run_rule_tests(tmp_path / "binary.toml", SETTINGS))
