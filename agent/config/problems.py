"""Mistakes in rules.toml as messages for an operator, each with its line and key."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent.config.credentials import SOURCES
from agent.config.shipped import shipped_rules
from agent.config.toml_places import KeyPath
from agent.model.name_filter import NameFilter
from agent.model.text import join_names, visible

SECRET = re.compile(
    r"password|passphrase|secret|token|credential|webhook|routing_key|access_key|auth|key\.pem|private", re.IGNORECASE
)
"""Keys whose values are never printed."""

NAMED_TABLES = ("clusters", "flink", "streams", "logs", "rules", "correlations", "checks", "receivers")
"""Sections that contain tables by name, such as [clusters.main]."""

LISTED_TABLES = ("silences",)
"""Sections that are lists of tables, such as [[silences]]."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

TOO_DEEP = "lists or tables are nested too deeply"

_NO_TABLE = ("model_type", "model_attributes_type")
"""pydantic's types of errors about what should be a table."""

_EXPECTED = {
    "string_type": "text in quotes",
    "string_sub_type": "text in quotes",
    "path_type": "text in quotes",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "finite_number": "a finite number",
}
"""What was expected, by pydantic's type of error; the braces refer to the error's context."""


class Problem(NamedTuple):
    """One mistake. line: counted from 1; None for an override."""

    path: str
    line: int | None
    where: str
    message: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return visible(": ".join(part for part in (place, self.where, self.message) if part))


class SettingsError(Exception):
    """The configuration is invalid. problems: all mistakes in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def describe_path(path: KeyPath) -> str:
    """Return a key path as the table in brackets and the key: `[clusters.main] groups.include[0]`."""
    if path and path[0] in LISTED_TABLES:
        return " ".join(part for part in (f"[[{path[0]}]]", _dotted(path[2:])) if part)
    size = 2 if path and path[0] in NAMED_TABLES else 1
    table, key = path[:size], path[size:]
    return " ".join(part for part in (f"[{_dotted(table)}]" if table else "", _dotted(key)) if part)


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(part) else f'"{part}"')
    return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar name, else all known names."""
    names = sorted(known)
    if close := get_close_matches(name, names, n=1):
        return f"; did you mean `{close[0]}`?"
    return f"; known: {', '.join(names)}" if names else ""


def unmatched(noun: str, pattern: str, names: Iterable[str]) -> str:
    """Return that a name is none of these; empty if it is, or is a pattern. noun: what they are names of."""
    names = list(names)
    if pattern in names or not set("*?[").isdisjoint(pattern):
        return ""
    return f'"{pattern}" is none of the {noun}{did_you_mean(pattern, names)}'


def unmatched_rule(pattern: str, kinds: Mapping[str, str], otherwise: str = "") -> str:
    """Return that a name is none of the rules, with the rule that may be meant; empty if it is, or is a pattern.

    kinds: of the configured rules by their names. otherwise: what else to do if only the shipped file has the rule.
    """
    problem = unmatched("rules", pattern, kinds)
    return problem and (explain_rule_name(pattern, kinds, otherwise) or problem)


def explain_rule_name(name: str, kinds: Mapping[str, str], otherwise: str = "") -> str:
    """Return why no rule of this name is configured: it is a kind, or a rule of the shipped file; else an empty string.

    kinds, otherwise: as for `unmatched_rule`.
    """
    named = [f'"{rule}"' for rule, kind in kinds.items() if kind == name]
    if named:
        rules = (
            f"the rule of this kind is {named[0]}"
            if len(named) == 1
            else f"the rules of this kind are {join_names(named)}"
        )
        return f'"{name}" is a kind; {rules}'
    if name in shipped_rules():
        return f'rule "{name}" is not configured here; add [rules.{name}] as in the shipped file{otherwise}'
    return f'"{name}" is a kind of which no rule is configured' if name in shipped_rules().values() else ""


def mistakes_in(error: ValidationError, model: type[BaseModel], table: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path in the table and the message of each of pydantic's errors."""
    found = [(_path_in(table, detail), detail) for detail in error.errors(include_url=False)]
    paths = Counter(path for path, _ in found)
    for path, detail in found:
        if paths[path] == 1 or detail["type"] not in _NO_TABLE:  # of text or a table, only what is wrong with the text
            yield path, _message(detail, path, model)


def _path_in(table: Any, detail: ErrorDetails) -> KeyPath:
    """Return the error's location without the parts that are not in the file: tags of unions, names of validators."""
    path: KeyPath = ()
    for part in detail["loc"]:
        if isinstance(table, Mapping) and part in table:
            table = table[str(part)]
        elif isinstance(table, list) and isinstance(part, int):
            table = table[part]
        else:
            continue
        path = (*path, part)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else path


def _message(detail: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown_key(str(path[-1]), _keys(model, path[:-1]))
        case "value_error" | "assertion_error":
            return str(context["error"])
        case "literal_error" | "enum":
            choices = str(context["expected"]).replace("'", '"')
            return f"expected {choices}{_got(path, detail['input'])}"
        case "too_short":
            return f"needs at least {context['min_length']}, has {context['actual_length']}"
        case "json_invalid":  # tables reach pydantic as JSON, of which it reads some 200 levels
            return TOO_DEEP
        case "string_too_short":
            return "must not be empty"
        case "model_type" | "model_attributes_type" if path and SECRET.search(str(path[-1])):
            return f"a secret must not be written in this file; expected {SOURCES}"
        case "model_type" | "model_attributes_type" if context["class_name"] == NameFilter.__name__:
            return f"expected {_as_filter(detail['input'])}{_got(path, detail['input'])}"
        case _ if kind in _EXPECTED:
            return f"expected {_EXPECTED[kind].format(**context)}{_got(path, detail['input'])}"
        case _:
            message = detail["msg"]
            return message[:1].lower() + message[1:]


def _as_filter(value: Any) -> str:
    """Return the table of a name filter that includes what was given in its place."""
    patterns = value if isinstance(value, list) else [value]
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        return "a table"
    text = json.dumps(patterns, ensure_ascii=False)
    return f"{{ include = {text if len(text) <= 60 else f'[{json.dumps(patterns[0], ensure_ascii=False)}, ...]'} }}"


def _unknown_key(key: str, known: Iterable[str]) -> str:
    sources = [f"`{name}`" for name in known if name.startswith(f"{key}_") and SECRET.search(key)]
    if sources:  # such as `token` for `token_file`
        return f"a secret must not be written in this file; use {', '.join(sources[:-1])} or {sources[-1]}"
    return f"unknown key{did_you_mean(key, known)}"


def _got(path: KeyPath, value: Any) -> str:
    """Return the rejected value as TOML writes it; empty for secrets."""
    if isinstance(value, Mapping):
        return ", got a table"
    if isinstance(value, list):
        return ", got a list"
    if any(isinstance(part, str) and SECRET.search(part) for part in path):
        return ""
    if isinstance(value, bool):
        return f", got {str(value).lower()}"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return f", got {text if len(text) <= 60 else text[:57] + '...'}"


def _keys(model: type[BaseModel], path: KeyPath) -> Iterable[str]:
    """Return the keys of the nested table at this path, or nothing if it is not described by a model."""
    parts = [part for part in path if isinstance(part, str)]
    while parts:
        annotation = model.model_fields[parts.pop(0)].annotation
        if get_origin(annotation) is dict:
            del parts[:1]  # the table's name
        inner = next(_models(annotation), None)
        if inner is None:
            return ()
        model = inner
    return model.model_fields


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
