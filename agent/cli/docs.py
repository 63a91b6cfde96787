"""Writes docs/rules.md from the rules themselves: `python -m agent.cli.docs >docs/rules.md`. Judges nothing."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.engine.rule import Rule
from agent.model.config_types import duration, duration_text
from agent.rules import KINDS

_HEAD = """\
# Rules

Each rule kind, when it fires and when it does not, and its options. A rule in [rules.toml](configuration.md) is a table
with its `kind`; several rules may be of one kind, with other options for other groups or topics:

```toml
[rules.rewind-of-payments]
kind = "offset_rewind"
min_records = 1
groups = { include = ["payments-*"] }
```

This page is made from the code by `python -m agent.cli.docs`; the cases in `tests/cases` show each kind at work.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *("\n".join(_section(kind, rule)) for kind, rule in KINDS.items())])


def _section(kind: str, rule: type[Rule]) -> Iterator[str]:
    said = _said(rule)
    yield f"## {kind}\n"
    yield f"{_paragraphs(inspect.getdoc(rule) or '')}\n"
    yield f"Severity: {rule.default_severity}. Said as: `{rule.title}`\n"
    yield "| Option | Default | Meaning |\n|---|---|---|"
    for name, field in rule.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {said[name]} |"
    yield ""


def _paragraphs(docstring: str) -> str:
    """The docstring with a paragraph for each of the things that it tells, as one line each."""
    parts = re.split(r"\n\n|\n(?=(?:Not|Labels): |Recovers )", docstring)
    return "\n\n".join(re.sub(r"^(Not|Labels):", r"**\1:**", " ".join(part.split())) for part in parts)


def _said(rule: type[Rule]) -> dict[str, str]:
    """What the literal under each option says of it."""
    said: dict[str, str] = {}
    for section in (one for one in rule.__mro__ if issubclass(one, Rule)):
        (body,) = ast.parse(dedent(inspect.getsource(section))).body
        for field, literal in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
            match field, literal:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    said.setdefault(name, " ".join(text.split()))
    return said


def _default(field: FieldInfo) -> str:
    """An option's default as it is written in rules.toml."""
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    is_duration = any(getattr(one, "func", None) is duration for one in field.metadata)
    return f"`{_toml(duration_text(field.default) if is_duration else field.default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(reference())
