"""The command `schema`: the JSON Schema of rules.toml, by which editors complete keys and mark mistakes."""

import json
from collections.abc import Mapping
from typing import Any

import click
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from agent.cli.common import EPILOG
from agent.config.attribute_docs import attribute_docs
from agent.config.checks import size
from agent.config.settings import LISTED_MODELS, NAMED_MODELS, SECTIONS
from agent.model.config_types import ConfigModel, duration, duration_text
from agent.notify.receivers import KINDS as RECEIVERS
from agent.rules import CHECKS, KINDS

_DRAFT = "http://json-schema.org/draft-04/schema#"
"""The draft that TOML editors understand."""

_TEXTS: Mapping[Any, str] = {duration: r"^\d+(\.\d+)?(ms|s|m|h|d)$", size: r"^\d+[kmgtKMGT][bB]?$"}
"""Patterns of numbers that are written as text, by the function that reads them."""

_UNKNOWN_TO_DRAFT_4 = {"title", "format", "gt", "ge", "propertyNames", "discriminator"}


@click.command("schema", epilog=EPILOG)
def schema_command() -> None:
    """Print the JSON Schema of rules.toml, for editors.

    Save it beside your file as rules.schema.json, and begin the file with the line `#:schema rules.schema.json`.
    """
    click.echo(json.dumps(config_schema(), indent=2))


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 4) of rules.toml.

    What it allows may still have mistakes that only the whole file shows, such as the name of an unknown cluster.
    """
    definitions: dict[str, Any] = {}
    sections = {name: _table(model, definitions) for name, model in SECTIONS.items()}
    listed = {name: {"type": "array", "items": _table(model, definitions)} for name, model in LISTED_MODELS.items()}
    named = {
        name: _tables_of(_table(model, definitions))
        for name, model in NAMED_MODELS.items()
        if name not in ("rules", "receivers")
    }
    by_kind = {
        section: _tables_of({"oneOf": [_of_kind(kind, _table(model, definitions)) for kind, model in models]})
        for section, models in (("rules", sorted(KINDS.items())), ("receivers", sorted(RECEIVERS.items())))
    }
    check = named.pop("checks")["additionalProperties"]
    checks = {"type": "object", "properties": dict.fromkeys(CHECKS, check), "additionalProperties": False}
    return {
        "$schema": _DRAFT,
        "title": "Backflow's rules.toml",
        "type": "object",
        "properties": {**sections, **listed, **named, **by_kind, "checks": checks},
        "additionalProperties": False,
        "definitions": definitions,
    }


class _TomlSchema(GenerateJsonSchema):
    """Generates the schema of what stands in the file, not of the value that is made of it."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema of a duration or size as text; of other conversions, that anything may be given."""
        pattern = _TEXTS.get(schema["function"]["function"])
        return {} if pattern is None else {"type": "string", "pattern": pattern}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a table with the meaning of each key."""
        found = super().model_schema(schema)
        meanings = attribute_docs(schema["cls"])
        for name, key in found.get("properties", {}).items():
            if meanings.get(name):
                key["description"] = meanings[name].replace("\\|", "|")
        return found


def _table(model: type[ConfigModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table; what it refers to is added to the definitions."""
    found = model.model_json_schema(schema_generator=_TomlSchema)
    definitions.update({name: _as_draft_4(below) for name, below in found.pop("$defs", {}).items()})
    converted: dict[str, Any] = _as_draft_4(found)
    return converted


def _tables_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of tables by name."""
    return {"type": "object", "additionalProperties": schema}


def _of_kind(kind: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a rule or a receiver of this kind."""
    properties = {"kind": {"enum": [kind]}, **table.get("properties", {})}
    return {**table, "properties": properties, "required": ["kind", *table.get("required", ())]}


def _as_draft_4(schema: Any) -> Any:
    """Return the schema in the terms of draft 4, without null, which TOML lacks."""
    if isinstance(schema, list):
        return [_as_draft_4(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: value for key, value in schema.items() if key not in _UNKNOWN_TO_DRAFT_4}
    if "properties" in found:
        found["properties"] = {name: _as_draft_4(value) for name, value in found["properties"].items()}
    for key in ("anyOf", "oneOf", "allOf"):
        if key in found:
            branches = [_as_draft_4(branch) for branch in found.pop(key) if branch != {"type": "null"}]
            found |= branches[0] if len(branches) == 1 else {"anyOf" if key == "oneOf" else key: branches}
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _as_draft_4(found[key])
    if "$ref" in found:
        found["$ref"] = found["$ref"].replace("#/$defs/", "#/definitions/")
    if "const" in found:
        found["enum"] = [found.pop("const")]
    for key, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if key in found:
            found |= {limit: found[key], key: True}
    default = found.get("default")
    if isinstance(default, int) and found.get("pattern") == _TEXTS[duration]:
        found["default"] = duration_text(default)
    elif default is None or isinstance(default, Mapping) or ("pattern" in found and isinstance(default, int)):
        found.pop("default", None)
    return found
