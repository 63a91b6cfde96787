"""The rule cases under tests/cases hold with the configuration shipped, and cases that do not hold are told clearly."""

from pathlib import Path
from typing import Any

import pytest
import tomli

from agent.cli.docs import reference
from agent.cli.rule_tests import RuleTestsError, check
from agent.config.settings import Settings, load
from agent.rules import KINDS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "cases").glob("*.toml"))
SETTINGS = load(ROOT / "rules.toml", need_clusters=False)
FALL = """
defaults = { cluster = "main", group = "g", topic = "t", partition = 0 }

[[cases]]
name = "a fall"
rules = ["rewind"]
observations = [
  { kind = "commit", at = "1s", offset = 9000 },
  { kind = "commit", at = "2s", offset = 100 },
]
"""
"""A case, from its line 4 on, that makes one finding and one incident."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_case_holds_with_the_rules_shipped(path: Path) -> None:
    """What rules find is what the case says, nothing less and nothing more."""
    wrong = [sentence for _, sentences in check(path, SETTINGS) for sentence in sentences]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_kind_has_cases_in_which_it_speaks_and_in_which_it_is_silent(kind: str) -> None:
    """One file a kind, named like it; in a case where it is silent it does run."""
    (path,) = (path for path in FILES if path.stem == kind)
    (rule,) = (name for name, one in SETTINGS.rules.items() if one.kind == kind)
    cases: list[dict[str, Any]] = tomli.loads(path.read_text(encoding="utf-8"))["cases"]
    speaks = [any(one["rule"] == rule for one in case.get("findings", ())) for case in cases if _runs(case, rule)]
    assert True in speaks
    assert False in speaks


def _runs(case: dict[str, Any], rule: str) -> bool:
    return rule in case.get("rules", SETTINGS.rules)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_cases_of_a_file_have_names_of_their_own(path: Path) -> None:
    """A failure names one case."""
    names = [name for name, _ in check(path, SETTINGS)]
    assert sorted(names) == sorted(set(names))


def test_the_rules_reference_is_what_the_code_says() -> None:
    """Renewed by `python -m agent.cli.docs >docs/rules.md`."""
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == reference()


def test_the_reference_says_something_of_every_option() -> None:
    """An option without a word under it has an empty cell."""
    assert "|  |" not in reference()
    for kind, rule in KINDS.items():
        section = reference().split(f"\n## {kind}\n")[1].split("\n## ")[0]
        assert all(f"\n| `{name}` | " in section for name in rule.model_fields)


def told(tmp_path: Path, text: str, settings: Settings = SETTINGS) -> list[str]:
    """What is said of a file of cases with that text, the file's directory left out."""
    path = tmp_path / "cases.toml"
    path.write_text(text, encoding="utf-8")
    try:
        found = [sentence for _, sentences in check(path, settings) for sentence in sentences]
    except RuleTestsError as error:
        found = str(error).splitlines()
    return [sentence.replace(f"{tmp_path}/", "") for sentence in found]


def test_a_case_that_holds_says_nothing(tmp_path: Path) -> None:
    """An expected finding names the keys it cares about; incidents left out are not compared."""
    assert told(tmp_path, f'{FALL}findings = [{{ rule = "rewind", current = {{ offset = 100 }} }}]') == []


def test_a_finding_that_is_not_expected_is_told(tmp_path: Path) -> None:
    """With the file, the line of the case, its name and the finding."""
    (sentence,) = told(tmp_path, FALL)
    assert sentence.startswith("cases.toml:4: a fall: finding was not expected: {'rule': 'rewind',")
    assert "'previous': {'offset': 9000}" in sentence


def test_a_finding_that_is_expected_and_not_made_is_told_beside_the_one_made(tmp_path: Path) -> None:
    """Both, so that one sees in what they differ."""
    missing, extra = told(tmp_path, f'{FALL}findings = [{{ rule = "rewind", at = "3s" }}]')
    assert missing == (
        "cases.toml:4: a fall: expected finding was not made: {'rule': 'rewind', 'at': '2026-01-01T00:00:03.000Z'}"
    )
    assert extra.startswith("cases.toml:4: a fall: finding was not expected: ")


def test_a_finding_made_once_does_not_stand_for_two_expected(tmp_path: Path) -> None:
    """Each expected finding needs one of its own."""
    (sentence,) = told(tmp_path, f'{FALL}findings = [{{ rule = "rewind" }}, {{ rule = "rewind" }}]')
    assert sentence == "cases.toml:4: a fall: expected finding was not made: {'rule': 'rewind'}"


def test_incidents_are_compared_where_they_are_given(tmp_path: Path) -> None:
    """None expected is none allowed."""
    case = f'{FALL}findings = [{{ rule = "rewind" }}]\n'
    assert told(tmp_path, f'{case}incidents = [{{ status = "open", correlation = "null" }}]') == []
    (extra,) = told(tmp_path, f"{case}incidents = []")
    assert extra.startswith("cases.toml:4: a fall: incident was not expected: {'id': 'INC-")
    missing, _ = told(tmp_path, f'{case}incidents = [{{ severity = "critical" }}]')
    assert missing == "cases.toml:4: a fall: expected incident was not made: {'severity': 'critical'}"


@pytest.mark.parametrize(
    "at", ['"2s"', '"2026-01-01T00:00:02Z"', '"2026-01-01T01:00:02+01:00"', "2026-01-01T00:00:02Z"]
)
def test_a_time_may_be_written_as_a_duration_as_text_or_as_a_time_of_toml(tmp_path: Path, at: str) -> None:
    """In observations and expectations alike."""
    assert told(tmp_path, f'{FALL}findings = [{{ rule = "rewind", at = {at} }}]') == []
    assert told(tmp_path, FALL.replace('"2s"', at) + 'findings = [{ rule = "rewind", at = "2s" }]') == []


def test_null_stands_for_the_null_that_toml_lacks(tmp_path: Path) -> None:
    """An offset forgotten, an end that has not come."""
    forgotten = FALL.replace("offset = 100 }", 'offset = "null" }')
    assert told(tmp_path, forgotten) == []
    assert told(tmp_path, f'{FALL}findings = [{{ rule = "rewind", recovered_at = "null" }}]') == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"commit", at = "2s"', '"comit", at = "2s"', "9: a fall: Invalid value 'comit' - at `$.kind`"),
        (", offset = 100", "", "9: a fall: Object missing required field `offset`"),
        ("offset = 100", "offset = 100, x = 1", "9: a fall: Object contains unknown field `x`"),
        ("offset = 100", 'offset = "100"', "9: a fall: Expected `int | null`, got `str` - at `$.offset`"),
        ('at = "2s"', 'at = "soon"', "9: a fall: `at`: Invalid isoformat string: 'soon'"),
        ('at = "2s"', "at = 2026-01-01T00:00:02", "9: a fall: `at`: '2026-01-01T00:00:02' names no time zone"),
        ('at = "2s"', 'at = "99999999d"', "9: a fall: "),
        ('at = "2s"', "at = 2", "9: a fall: `at`: expected an RFC 3339 time in UTC, got 2"),
        ('["rewind"]', '["rewnd"]', '6: a fall: no rule "rewnd" is configured; did you mean `rewind`?'),
        ("name =", "nam =", "4: name: is required"),
        ("name =", "fndings = []\nname =", "5: fndings: unknown key; did you mean `findings`?"),
        ("[[cases]]", "[[case]]", "1: cases: is required"),
        ("[[cases]]", "[[cases]", "not TOML: "),
    ],
)
def test_a_case_that_cannot_be_run_is_told_with_its_line(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """What is wrong, and where."""
    assert old in FALL
    said = told(tmp_path, FALL.replace(old, new))
    assert any(one.startswith((f"cases.toml:{sentence}", f"cases.toml: {sentence}")) for one in said), said


def test_an_expectation_about_a_key_that_findings_do_not_have_is_a_mistake(tmp_path: Path) -> None:
    """Not a finding that was not made."""
    said = told(tmp_path, f'{FALL}findings = [\n  {{ rule = "rewind", previuos = {{ offset = 9000 }} }},\n]')
    assert said == ["cases.toml:12: a fall: unknown key `previuos`; did you mean `previous`?"]
    said = told(tmp_path, f'{FALL}findings = [{{ rule = "rewind" }}]\nincidents = [{{ sevrity = "info" }}]')
    assert said == ["cases.toml:12: a fall: unknown key `sevrity`; did you mean `severity`?"]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing, a directory, or no text."""
    for path, reason in ((tmp_path / "missing.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RuleTestsError, match=f"{path}: cannot be read: {reason}"):
            list(check(path, SETTINGS))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RuleTestsError, match="not TOML: "):
        list(check(tmp_path / "binary.toml", SETTINGS))
