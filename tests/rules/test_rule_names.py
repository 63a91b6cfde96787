"""A rule owns its words: nothing else in the agent knows a rule kind by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from agent.rules import KINDS

AGENT = Path(__file__).parents[2] / "agent"
EXEMPT = {
    AGENT / "sources" / "logs" / "patterns.py",  # names log patterns; two are called like a rule
    AGENT / "cli" / "docs.py",  # shows a rule's table as an example
}

QUANTITIES = {"lag"}
"""Rules that are called like what they measure."""


def mentions(path: Path) -> Iterator[str]:
    """Yield the names and string constants of a file; documentation and log events are exempt."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    exempt = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    exempt |= {id(node.args[0]) for node in ast.walk(tree) if _is_log_call(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exempt:
            # The command that runs a Spark check by hand is an operator's, a setting such as retention.ms Kafka's.
            yield re.sub(r"backflow check \w+|\b\w+(\.\w+)+\.ms\b", "", node.value)


def _is_log_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether the node logs an event, whose key may be a rule's name."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and bool(node.args)
    )


MENTIONS = {path: "\n".join(mentions(path)) for path in sorted(AGENT.rglob("*.py")) if path not in EXEMPT}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - QUANTITIES))
def test_rule_kind_is_named_in_its_own_file_only(kind: str) -> None:
    own = AGENT / "rules" / f"{kind}.py"
    others = [path for path, text in MENTIONS.items() if path != own and re.search(rf"\b{kind}\b", text)]
    assert others == []
