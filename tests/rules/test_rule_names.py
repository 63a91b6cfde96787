"""A rule owns its words: nothing else in the agent knows a rule kind by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.rules import KINDS

AGENT = Path(__file__).parents[2] / "agent"


def mentions(path: Path) -> Iterator[str]:
    """Yield the names and string constants of a file; docstrings and texts under fields are documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            # The command that runs a Spark check by hand is an operator's, not the rule's.
            yield re.sub(r"backflow check \w+", "", node.value)


MENTIONS = {path: "\n".join(mentions(path)) for path in sorted(AGENT.rglob("*.py"))}


@pytest.mark.parametrize("kind", KINDS)
def test_rule_kind_is_named_in_its_own_file_only(kind: str) -> None:
    own = AGENT / "rules" / f"{kind}.py"
    others = [path for path, text in MENTIONS.items() if path != own and re.search(rf"\b{kind}\b", text)]
    assert others == []
