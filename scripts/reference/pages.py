"""The reference pages, from the code.

A page takes its text from docstrings: of tables and rules, and of the literals under their fields.
"""

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

import click
import msgspec

from agent.cli.main import main as command
from agent.cli.replay import replay
from agent.config.credentials import Credential
from agent.config.loading import load
from agent.config.problems import NAMED_TABLES
from agent.config.settings import LISTED_MODELS, NAMED_MODELS, SECTIONS
from agent.config.shipped import shipped
from agent.engine.engine import Engine
from agent.engine.recorded import moments
from agent.engine.rule import Rule
from agent.model.config_types import ConfigModel
from agent.model.encoding import to_json
from agent.model.findings import Acknowledgement, Closure, Finding, Incident, Records, incident_fields
from agent.model.name_filter import NameFilter
from agent.model.observations import KINDS as OBSERVATIONS
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.times import millis
from agent.notify.receivers import KINDS as RECEIVERS
from agent.rules import KINDS as RULES
from agent.rules.broker_session_lost import BrokerSessionLost
from agent.rules.offset_rewind import OffsetRewind
from scripts.reference.manual import subcommands
from scripts.reference.tables import field_rows, link_to, option_rows, split_docstring, to_markdown

_GENERATED = "This page is generated from the code by `make reference`."

_CONFIGURATION = f"""\
# Configuration

rules.toml defines what is monitored, which rules run and who is notified. **Your file is all that Backflow reads**:
rules and correlations of the shipped file apply only if yours contains them. Start from the shipped file, to which
`backflow init` adds your cluster, and change that.

`backflow check-config` validates the file like the daemon and lists all mistakes with their lines; the daemon does not
start with a mistake. The options of each rule kind are on a page of their own: [rules.md](rules.md). {_GENERATED}

This example shows how tables look. With it alone only two rules would run:

```toml
[clusters.main]
bootstrap_servers = "kafka-1:9093,kafka-2:9093"
zookeeper = "zk-1:2181,zk-2:2181"
groups = {{ exclude = ["console-consumer-*"] }}

[clusters.main.kafka]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "backflow"
"sasl.password" = {{ credential = "kafka-password" }}

[clusters.main.log_directories]
2005 = "/mnt/kafka-2005/data"
2011 = ["/mnt/kafka-2011/data-1", "/mnt/kafka-2011/data-2"]
2024 = "s3://digests/2024.parquet"

[rules.session]
kind = "{BrokerSessionLost.kind}"

[rules.rewind]
kind = "{OffsetRewind.kind}"
min_records = 1000

[correlations.reset-after-session-loss]
steps = [
  {{ rule = "session" }},
  {{ rule = "rewind", shares = ["cluster"] }},
]
within = "10m"
severity = "critical"
title = "{{group}} rewound {{records}} records on {{topic}}[{{partition}}] after broker {{broker}}'s session expired"

[slack]
channel = "C0123456789"
token_credential = "slack-token"
```

A **duration** is text with a unit: `"500ms"`, `"2s"`, `"5m"`, `"12h"`, `"30d"`. A **size** is too: `"512m"`, `"4g"`; a
`k` is 1024 bytes. Relative **paths** start from the working directory.
"""

_RULES = f"""\
# Rules

Each rule kind: when it fires, when it does not, and its options. A rule in [rules.toml](configuration.md) is a table
with its `kind`; several rules may have the same kind, with other options for other groups or topics:

```toml
[rules.rewind-of-payments]
kind = "{OffsetRewind.kind}"
min_records = 1
groups = {{ include = ["payments-*"] }}
```

The rule tests in `tests/cases` show each kind at work. {_GENERATED}
"""

_COMMANDS = f"# Command line\n\n{_GENERATED}\n"

_OBSERVATIONS = f"""\
# Observations

Sources emit observations: facts about one subject at one time. The journal stores them, and `backflow replay` also
reads them as JSON lines, one object per line with its `kind`:

```json
%s
```

Times are RFC 3339 in UTC with milliseconds. {_GENERATED}
"""

_INCIDENTS = f"""\
# Incidents

`backflow incidents --json` and `backflow replay --json` print one JSON object per line and incident; `backflow check
NAME --json` prints one per finding. Times are RFC 3339 in UTC with milliseconds. {_GENERATED}

```json
%s
```
"""

_RULE_TABLE = """\
`kind` is the kind of the rule, and all other keys are options of that kind: [rules.md](rules.md). Several rules may
have the same kind, under different names.
"""

_EXAMPLE = (
    LogOffsets(at=millis("2026-11-20T09:34:00Z"), cluster="main", topic="t", partition=0, log_start=0, log_end=9000),
    Commit(at=millis("2026-11-20T09:35:00Z"), cluster="main", group="g", topic="t", partition=0, offset=7832),
    Commit(at=millis("2026-11-20T09:35:01.711Z"), cluster="main", group="g", topic="t", partition=0, offset=0),
)


def configuration_page() -> str:
    """Return the reference of all tables and keys of rules.toml."""
    parts = [_CONFIGURATION]
    tables = list(_tables())
    anchors = {model: link_to(heading) for heading, model in tables}
    for heading, model in tables:
        level = "##" if heading.count(".") <= heading.count("NAME") else "###"
        title = f"`{heading}`" if heading.startswith("[") else heading
        text = _RULE_TABLE if model is Rule else to_markdown(inspect.getdoc(model) or "") + "\n"
        rows = [] if model is Rule else [*option_rows(model, anchors), ""]
        parts.append("\n".join([f"{level} {title}\n", text, *rows]))
    return "\n".join(parts)


def rules_page() -> str:
    """Return the reference of all rule kinds."""
    anchors = {model: f"configuration.md{link_to(heading)}" for heading, model in _tables()}
    parts = [_RULES]
    for kind, rule in RULES.items():
        text = to_markdown(inspect.getdoc(rule) or "")
        titles = [f"Title: `{rule.title}`", *(f"if `{label}`: `{title}`" for label, title in rule.titles.items())]
        facts = f"Severity: {rule.default_severity}. {'; '.join(titles)}"
        parts.append("\n".join([f"## {kind}\n", text, "", f"{facts}\n", *option_rows(rule, anchors), ""]))
    return "\n".join(parts)


def commands_page() -> str:
    """Return the help of all commands."""
    group = click.Context(command, info_name="backflow", terminal_width=100, help_option_names=["-h", "--help"])
    contexts = [group, *subcommands(group, command)]
    parts = [f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n" for context in contexts]
    return "\n".join([_COMMANDS, *parts])


def observations_page() -> str:
    """Return the reference of all kinds of observations."""
    example = "\n".join(map(to_json, _EXAMPLE))
    parts = [_OBSERVATIONS % example, "\n".join(["Fields of all kinds:\n", *field_rows(Observation), ""])]
    common = set(Observation.__struct_fields__)
    structs: dict[str, type[msgspec.Struct]] = dict(OBSERVATIONS)
    structs |= {name: struct for name, struct in _nested_structs(OBSERVATIONS.values()) if name not in structs}
    for name, struct in structs.items():
        text, _ = split_docstring(struct)
        rows = field_rows(struct, leave_out=common if issubclass(struct, Observation) else set())
        parts.append("\n".join([f"## `{name}`\n", f"{text}\n", *(rows if len(rows) > 2 else []), ""]))
    return "\n".join(parts)


def incidents_page() -> str:
    """Return the reference of the JSON of incidents and findings, with a real example."""
    settings = load(shipped(), need_clusters=False)
    (incident,) = replay(moments(_EXAMPLE), Engine(settings.rules, settings.correlations, settings.incidents))
    fields = incident_fields(incident)
    parts = [_INCIDENTS % json.dumps(fields, indent=2, ensure_ascii=False)]
    for title, struct, keys in (
        ("Incident", Incident, fields),
        ("Finding", Finding, fields["findings"][0]),
        ("Records", Records, fields["records"]),
        ("Acknowledgement", Acknowledgement, ("at", "by", "comment")),
        ("Closure", Closure, ("at", "by", "reason")),
    ):
        text, _ = split_docstring(struct)
        rows = field_rows(struct, leave_out=set(struct.__struct_fields__) - set(keys))
        parts.append("\n".join([f"## {title}\n", f"{text}\n", *rows, ""]))
    return "\n".join(parts)


PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "rules.md": rules_page,
    "cli.md": commands_page,
    "observations.md": observations_page,
    "incidents.md": incidents_page,
}


def _tables() -> Iterator[tuple[str, type[ConfigModel]]]:
    """Yield the heading and the model of each table, nested tables after the table that contains them."""
    seen: set[type[ConfigModel]] = {NameFilter, Credential}
    for name in NAMED_TABLES:
        yield from _with_nested(f"[{name}.NAME]", NAMED_MODELS[name], seen)
    for kind, table in RECEIVERS.items():
        yield from _with_nested(f"Receivers of kind {kind}", table, seen)
    for name, model in SECTIONS.items():
        yield from _with_nested(f"[{name}]", model, seen)
    for name, model in LISTED_MODELS.items():
        yield from _with_nested(f"[[{name}]]", model, seen)
    yield "Name filters", NameFilter
    yield "Secrets", Credential


def _with_nested(
    heading: str, model: type[ConfigModel], seen: set[type[ConfigModel]]
) -> Iterator[tuple[str, type[ConfigModel]]]:
    seen.add(model)
    yield heading, model
    for owner in RULES.values() if model is Rule else (model,):
        for name, field in owner.model_fields.items():
            for inner in _models_in(field.annotation):
                if inner not in seen:
                    path = f"{heading.strip('[]')}.{name}"
                    is_list = get_origin(field.annotation) in (list, tuple)
                    yield from _with_nested(f"[[{path}]]" if is_list else f"[{path}]", inner, seen)


def _models_in(annotation: Any) -> Iterator[type[ConfigModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        yield annotation
    elif get_origin(annotation) is not dict:  # the values of a dict have no table of their own
        for inner in get_args(annotation):
            yield from _models_in(inner)


def _nested_structs(structs: Iterable[type[msgspec.Struct]]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for struct in structs:
        for hint in typing.get_type_hints(struct).values():
            for inner in get_args(hint):
                if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                    yield inner.__name__, inner
