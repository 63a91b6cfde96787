"""Examples in the documentation work as the pages show them."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agent.cli.replay import replay
from agent.cli.rule_tests import run_rule_tests
from agent.config.loading import load, loads
from agent.config.problems import SettingsError
from agent.config.settings import Settings
from agent.engine.engine import Engine
from agent.engine.recorded import moments
from agent.engine.rule import Rule
from agent.model.encoding import from_json
from agent.render.report import report
from agent.rules import KINDS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "write-a-rule.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-alert.md").read_text(encoding="utf-8")
KIND = "group_empty"
"""The rule that the guide adds."""


def find_blocks(page: str, language: str = "") -> list[str]:
    """Return the page's code blocks of a language."""
    blocks = re.finditer(r"^ *```(\w*)\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    return [match[2] for match in blocks if match[1] == language]


def find_output(page: str, command: str) -> list[str]:
    """Return the lines that the command prints, as the page shows them."""
    (block,) = (block for block in find_blocks(page) if f"$ {command}\n" in block)
    return block.partition(f"$ {command}\n")[2].partition("\n$ ")[0].strip().splitlines()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the guide's configuration, with its rule installed as a file in agent/rules would be."""
    module = ModuleType(f"agent.rules.{KIND}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(find_blocks(GUIDE, "python")[0], f"{KIND}.py", "exec"), vars(module))  # noqa: S102 - the page's code
    (kind,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    )
    kind.kind = KIND
    monkeypatch.setitem(KINDS, KIND, kind)
    return loads(find_blocks(GUIDE, "toml")[1], "rules.toml", need_clusters=False)


def test_rule_tests_of_the_guide_pass(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / f"{KIND}.toml"
    file.write_text(find_blocks(GUIDE, "toml")[0], encoding="utf-8")
    results = list(run_rule_tests(file, settings))
    assert not [failure for _, failures in results for failure in failures]
    shown = find_output(GUIDE, f"backflow test-rules tests/cases/{KIND}.toml")
    assert shown == [f"{len(results)} rule tests passed, 0 failed"]


def test_replay_prints_what_the_guide_shows(settings: Settings) -> None:
    recorded = find_output(GUIDE, "cat empty.jsonl")
    (incident,) = replay(moments(map(from_json, recorded)), Engine(settings.rules, settings.correlations))
    assert report(incident).lines() == find_output(GUIDE, "backflow replay empty.jsonl")


def test_replay_prints_what_the_tutorial_shows() -> None:
    recorded = find_blocks(TUTORIAL, "json")[0].splitlines()
    rules = load(ROOT / "rules.toml", need_clusters=False)
    (incident,) = replay(moments(map(from_json, recorded)), Engine(rules.rules, rules.correlations))
    assert report(incident).lines() == find_output(TUTORIAL, "backflow replay observations.jsonl")


def test_the_tutorial_shows_the_message_of_the_demo() -> None:
    golden = (ROOT / "tests" / "messages" / "reset.txt").read_text(encoding="utf-8")
    (message,) = (block for block in find_blocks(TUTORIAL) if block.startswith("CRITICAL (RECOVERED)"))
    assert message in golden


def test_the_tutorial_shows_the_error_of_its_configuration() -> None:
    (text,) = (block for block in find_blocks(TUTORIAL, "toml") if "zookeper" in block)
    with pytest.raises(SettingsError) as error:
        loads(text, "rules.toml", need_clusters=False)
    (output,) = (block for block in find_blocks(TUTORIAL) if "did you mean" in block)
    assert output == f"$ backflow check-config\n{error.value}\n$ echo $?\n2\n"
