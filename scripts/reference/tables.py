"""Markdown tables of configuration keys and JSON fields, made from classes and their docstrings."""

import inspect
import json
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from textwrap import dedent
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.config.attribute_docs import attribute_docs
from agent.config.checks import size
from agent.model.config_types import ConfigModel, duration, duration_text
from agent.model.times import is_time

_COMMON: Mapping[str, str] = {
    "at": "When the fact held, as far as the source can tell",
    "seen_at": "When the source saw it; left out if that is `at`",
    "since": "Last sighting of the previous state: the change happened after it; left out if `at` is exact",
    "application": "`application.id` of the Kafka Streams application",
    "broker": "Broker id",
    "cluster": "Name of the cluster in rules.toml",
    "detail": "One sentence for an operator",
    "epoch": "Epoch",
    "group": "Consumer group",
    "host": "Host",
    "id": "Id",
    "job": "Id of the Flink job, 32 hex digits",
    "kind": "Kind of the rule",
    "labels": "Labels; the rule's kind explains them",
    "name": "Name",
    "offset": "Offset",
    "opened_at": "When the first of its findings happened",
    "partition": "Partition",
    "records": "Records affected",
    "recovered_at": "When it was resolved",
    "rule": "Name of the rule in rules.toml",
    "severity": "`info`, `warning` or `critical`",
    "source": "Name of the source",
    "state": "State",
    "status": "`open`, `recovered` or `closed`",
    "title": "Headline",
    "topic": "Topic",
    "updated_at": "When it last changed",
    "reread": "Records that are processed a second time",
    "lost": "Records that were deleted or truncated before they were read",
    "skipped": "Records that were never read",
}
"""Meanings of keys whose class does not explain them."""


def option_rows(model: type[ConfigModel], anchors: Mapping[type[ConfigModel], str]) -> Iterator[str]:
    """Yield the Markdown table of a model's keys."""
    meanings = attribute_docs(model)
    yield "| Key | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        kind = _option_type(field.annotation, field.metadata, anchors)
        yield f"| `{name}` | {kind} | {_default(field)} | {meanings.get(name, '')} |"


def field_rows(struct: type[msgspec.Struct], leave_out: Collection[str] = ()) -> list[str]:
    """Return the Markdown table of a struct's fields in JSON."""
    meanings = {**_COMMON, **split_docstring(struct)[1], **attribute_docs(struct)}
    hints = typing.get_type_hints(struct)
    rows = ["| Field | Type | Meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        if field.name not in leave_out:
            optional = "" if field.required or is_time(field.name) else "; optional"
            kind = _json_type(field.name, hints[field.name])
            rows.append(f"| `{field.encode_name}` | {kind}{optional} | {meanings.get(field.name, '')} |")
    return rows


def split_docstring(struct: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text and the meanings of fields, written as `name, name: meaning`."""
    name = f"`?(?:{'|'.join(map(re.escape, struct.__struct_fields__))})`?"
    marker = re.compile(rf"(?:^|(?<=[.;,:] ))({name}(?:, {name})*)( None)?: ")
    texts: list[str] = []
    meanings: dict[str, str] = {}
    for paragraph in (inspect.getdoc(struct) or "").split("\n\n"):
        text, *parts = marker.split(" ".join(paragraph.split()))
        texts += [text.strip()] if text.strip() else []
        for fields, is_null, meaning in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            shown = re.sub(r"\bNone\b", "null", meaning.strip().rstrip(".,;").replace("|", "\\|"))
            shown = f"Null: {shown}" if is_null else shown[:1].upper() + shown[1:]
            meanings |= dict.fromkeys(fields.replace("`", "").split(", "), shown)
    return "\n\n".join(texts), meanings


def to_markdown(docstring: str) -> str:
    """Return a docstring with each paragraph as one line and indented paragraphs as TOML examples."""
    paragraphs = []
    for part in re.split(r"\n\n|\n(?=(?:Not|Labels): |Recovers )", re.sub(r"^\[[\w.]+\]: (.)", _capital, docstring)):
        if part.startswith("    "):
            paragraphs.append(f"```toml\n{dedent(part)}\n```")
        else:
            paragraphs.append(re.sub(r"^(Not|Labels):", r"**\1:**", " ".join(part.split())))
    return "\n\n".join(paragraphs)


def _capital(match: re.Match[str]) -> str:
    return match[1].upper()


def _option_type(annotation: Any, metadata: Iterable[Any], anchors: Mapping[type[ConfigModel], str]) -> str:
    """Return the type of a key as people call it."""
    validators = [getattr(item, "func", None) for item in metadata]
    if duration in validators:
        return "duration"
    if size in validators or any(getattr(function, "__name__", "") == "_java_size" for function in validators):
        return "size"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _option_type(arguments[0], arguments[1:], anchors)
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments)
    if origin in (list, tuple):
        return f"list of {_option_type(arguments[0], (), anchors)}"
    if origin is dict:
        return "table"
    if arguments:  # a union
        shown = [_option_type(argument, (), anchors) for argument in arguments if argument is not NoneType]
        return " or ".join(dict.fromkeys(shown))
    if issubclass(annotation, BaseModel):
        return f"[table]({anchors[annotation]})" if annotation in anchors else "table"
    if issubclass(annotation, Enum):
        return ", ".join(f'`"{member.value}"`' for member in annotation)
    return {bool: "`true` or `false`", int: "whole number", float: "number", Path: "path"}.get(annotation, "text")


def _json_type(name: str, annotation: Any) -> str:
    """Return the JSON type of a field."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_time(name):
        return "time or null" if NoneType in arguments else "time"
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments)
    if origin is tuple:
        inner = [_json_type("", argument) for argument in arguments if argument is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in arguments else f"[{', '.join(inner)}]"
    if origin is not None and NoneType in arguments:
        return " or ".join(_json_type("", argument) for argument in arguments)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation.__name__
    names = {int: "integer", str: "string", bool: "boolean", NoneType: "null"}
    is_text = isinstance(annotation, type) and issubclass(annotation, str)
    return "string" if is_text else names.get(annotation, "object")


def _default(field: FieldInfo) -> str:
    """Return the default of a key as it is written in rules.toml."""
    if field.is_required():
        return "required"
    factory: Any = field.default_factory
    if factory is not None and factory not in (dict, list):
        return (inspect.getdoc(factory) or "").removeprefix("Return ").removesuffix(".")
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "none"
    functions = [getattr(item, "func", None) for item in field.metadata]
    if duration in functions:
        default = duration_text(default)
    elif size in functions:
        default = f"{default >> 30}g" if default % (1 << 30) == 0 else f"{default >> 20}m"
    return f"`{_toml(default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        given = ", ".join(f"{name} = {_toml(getattr(value, name))}" for name in sorted(value.model_fields_set))
        return f"{{ {given} }}" if given else "{}"
    return json.dumps(value)


def link_to(heading: str) -> str:
    """Return the link to a heading as GitHub makes it."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
