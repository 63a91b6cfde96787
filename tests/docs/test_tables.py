"""The tables of rules.toml that the documentation shows are valid, beside the shipped rules and a few sources."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli

from agent.config.loading import loads
from agent.notify.receivers import KINDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "systemd" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

ELSEWHERE = {
    "write-a-rule.md": "rule tests, and the rule that the guide adds: test_examples.py",
    "first-alert.md": "the mistake that the tutorial makes: test_examples.py",
}
"""Pages whose tables are tested otherwise, and how."""

PART = re.compile(r'[\s\[]*(auth|http_client|"sasl\.)')
"""How blocks begin that show a part of a table."""

BESIDE = """
[clusters.main]
bootstrap_servers = "localhost:9092"
[clusters.staging]
bootstrap_servers = "localhost:9092"
[clusters.old]
bootstrap_servers = "localhost:9092"
[flink.jobs]
rest = ["http://localhost:8081"]
[streams.shop]
cluster = "main"
"""
SLACK = """
[slack]
channel = "#alerts"
token_env = "TOKEN"
"""


def shown_tables() -> Iterator[Any]:
    """Yield each block that begins with a table of rules.toml; others show a part of one."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^( *)```toml\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            if page.name not in ELSEWHERE and not re.match(PART, block[2]):
                line = text.count("\n", 0, block.start()) + 1
                yield pytest.param(block[2], id=f"{page.relative_to(ROOT)}:{line}")


def without(tables: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the others lack of tables."""
    return {
        key: without(value, others[key]) if isinstance(value, Mapping) and key in others else value
        for key, value in tables.items()
        if key not in others or isinstance(value, Mapping)
    }


@pytest.mark.parametrize("text", list(shown_tables()))
def test_tables_are_valid(text: str) -> None:
    shown = tomli.loads(text)
    slack = SLACK if "[[slack.routes]]" in text and "[slack]" not in text else ""
    beside = tomli.loads((ROOT / "rules.toml").read_text(encoding="utf-8") + BESIDE + slack)
    assert loads(text, "rules.toml", need_clusters=True, overrides=without(beside, shown), receivers=KINDS).rules
