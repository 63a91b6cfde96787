"""CONTRIBUTING follows one committed offset through files that exist, package by package in order."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = TEXT.partition("## One committed offset")[2].partition("\n## ")[0]
FILES = re.findall(r"`(agent/[\w/]+\.py)`", WALK)

ON_THE_WAY = (
    "agent/sources/kafka",
    "agent/daemon/pipeline.py",
    "agent/storage/journal",
    "agent/engine/facts.py",
    "agent/engine/evaluator.py",
    "agent/rules/offset_rewind.py",
    "agent/engine/correlation.py",
    "agent/engine/incidents.py",
    "agent/storage/incidents.py",
    "agent/notify/dispatcher.py",
    "agent/render",
    "agent/notify/slack.py",
)


def test_every_file_of_the_walk_exists() -> None:
    assert not [file for file in FILES if not (ROOT / file).is_file()]


def test_the_walk_passes_every_stage_in_order() -> None:
    first = [next(index for index, file in enumerate(FILES) if file.startswith(stage)) for stage in ON_THE_WAY]
    assert first == sorted(first)


def test_every_package_of_the_agent_is_listed() -> None:
    table = TEXT.partition("## Where things live")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (ROOT / "agent").glob("*/__init__.py")}
    assert set(re.findall(r"`agent/(\w+)`", table)) == packages
