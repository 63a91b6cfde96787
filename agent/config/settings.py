"""rules.toml read and judged as a whole: every mistake at once, with its place. What a table may hold: sections."""

import json
import re
import sys
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tomli
from pydantic import ValidationError

from agent.config.check_sections import Check, Spark
from agent.config.correlation_checks import correlation_problems
from agent.config.flink_section import Flink
from agent.config.kafka_properties import kafka_property_problem
from agent.config.log_section import Logs
from agent.config.problems import NAMED_TABLES, Problem, SettingsError, complaints, did_you_mean
from agent.config.problems import where as shown
from agent.config.sections import Agent, Cluster, Journal, Slack
from agent.config.streams_section import Streams
from agent.config.toml_places import Path as KeyPath
from agent.config.toml_places import Place, find_places
from agent.engine.correlation import Correlation
from agent.engine.incidents import Lifetimes
from agent.engine.rule import Rule
from agent.model.config_types import ConfigModel
from agent.model.declared_stores import DeclaredStore
from agent.rules import CHECKS, KINDS
from agent.rules.state_not_restored import StateNotRestored

Model = TypeVar("Model", bound=ConfigModel)


def shipped() -> Path:
    """The configuration shipped: beside the packages in a checkout, else where the wheel put it."""
    beside = Path(__file__).resolve().parents[2] / "rules.toml"
    return beside if beside.exists() else Path(sys.prefix, "share", "backflow", "rules.toml")


SECTIONS: Mapping[str, type[ConfigModel]] = {
    "agent": Agent,
    "journal": Journal,
    "incidents": Lifetimes,
    "slack": Slack,
    "spark": Spark,
}
"""The sections that stand once, all optional. Those that hold tables by name: NAMED_TABLES."""


REFERENCES = (
    ("flink", "kafka", "clusters"),
    ("streams", "cluster", "clusters"),
    ("logs", "cluster", "clusters"),
    ("logs", "flink", "flink"),
)
"""(table, key in it, table whose names it takes)."""


class Settings(NamedTuple):
    """A configuration without mistakes."""

    agent: Agent
    journal: Journal
    incidents: Lifetimes
    clusters: Mapping[str, Cluster]
    flink: Mapping[str, Flink]
    streams: Mapping[str, Streams]
    logs: Mapping[str, Logs]
    rules: Mapping[str, Rule]
    correlations: Mapping[str, Correlation]
    slack: Slack | None
    spark: Spark
    checks: Mapping[str, Check]
    """Each check there is, also where the file says nothing of it."""

    @property
    def declared_stores(self) -> list[DeclaredStore]:
        """What rules of the kind state_not_restored declare never to decrease, each once."""
        rules = (rule for rule in self.rules.values() if isinstance(rule, StateNotRestored))
        return list(dict.fromkeys(store for rule in rules for store in rule.stores))


def load(path: Path, *, need_clusters: bool, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings in the file, the overrides laid over it. Raises SettingsError, also where it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except IsADirectoryError:
        problem = Problem(str(path), None, "", "is a directory; name the file in it, such as rules.toml")
    except OSError as error:
        problem = Problem(str(path), None, "", f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = Problem(str(path), line, "", "not UTF-8 text; save the file as UTF-8")
    else:
        return loads(text, str(path), need_clusters=need_clusters, overrides=overrides)
    raise SettingsError([problem])


def loads(text: str, name: str, *, need_clusters: bool, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings in the text of the file so named.

    overrides: tables merged into those of the file, key by key; None takes a key away.
    Raises SettingsError with all that is wrong; of mistakes in the TOML itself only the first can be told.
    """
    try:
        tables, places = tomli.loads(text), find_places(text)
    except RecursionError as error:
        raise SettingsError([Problem(name, None, "", "lists or tables stand too deep in one another")]) from error
    except tomli.TOMLDecodeError as error:
        message = error.msg.replace("Cannot overwrite a value", "this key has a value already")
        if declared := re.fullmatch(r"Cannot declare \((.*?),?\) twice", message):  # names the table as a Python tuple
            message = f"the table [{declared[1].replace(', ', '.').replace(chr(39), '')}] is declared twice"
        problem = Problem(name, error.lineno, "", f"not TOML: {message} (column {error.colno})")
        raise SettingsError([problem]) from error
    return _Reader(name, tables, places, overrides or {}).settings(need_clusters=need_clusters)


def _merge(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(tables)
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


class _Reader:
    """Turns tables into sections and keeps what is wrong with them."""

    def __init__(
        self, name: str, tables: Mapping[str, Any], places: Mapping[KeyPath, Place], overrides: Mapping[str, Any]
    ) -> None:
        self._name, self._places, self._overrides = name, places, overrides
        self._tables = _merge(tables, overrides)
        self._problems: set[Problem] = set()

    def settings(self, *, need_clusters: bool) -> Settings:
        """All sections, or SettingsError."""
        for path in self._places:
            if isinstance(value := self._value(path), date | time):
                self._complain(path, f"no key takes a date or a time; put {value} in quotes if it is text")
        for name in self._tables.keys() - SECTIONS.keys() - set(NAMED_TABLES):
            self._complain((name,), f"unknown section{did_you_mean(name, [*SECTIONS, *NAMED_TABLES])}")
        clusters, flink, streams, logs, rules, correlations, checks = (self._table((name,)) for name in NAMED_TABLES)
        if need_clusters and not (clusters or flink or logs):
            self._complain(("clusters",), "no cluster to watch; [clusters.main] with its bootstrap_servers makes one")
        for table, key, kind in REFERENCES:
            known = self._table((kind,))
            for name in self._table((table,)):
                named = self._table((table, name)).get(key)
                if isinstance(named, str) and named not in known:
                    self._complain((table, name, key), f"there is no [{kind}.{named}]{did_you_mean(named, known)}")
        for name in streams:
            if "cluster" not in self._table(("streams", name)) and len(clusters) != 1:
                self._complain(("streams", name, "cluster"), f"is required{did_you_mean('', clusters)}")
        for name in clusters:
            for key, value in self._table(("clusters", name, "kafka")).items():
                if problem := kafka_property_problem(key, value):
                    self._complain(("clusters", name, "kafka", key), problem)
        for name in correlations:
            for below, sentence in correlation_problems(self._table(("correlations", name)), rules):
                self._complain(("correlations", name, *below), sentence)
        for name in checks.keys() - CHECKS.keys():
            self._complain(("checks", name), f"unknown check{did_you_mean(name, CHECKS)}")
        settings = Settings(
            agent=self._section(Agent, ("agent",)),
            journal=self._section(Journal, ("journal",)),
            incidents=self._section(Lifetimes, ("incidents",)),
            clusters={name: self._section(Cluster, ("clusters", name)) for name in clusters},
            flink={name: self._section(Flink, ("flink", name)) for name in flink},
            streams={name: self._section(Streams, ("streams", name)) for name in streams},
            logs={name: self._section(Logs, ("logs", name)) for name in logs},
            rules={name: self._rule(name) for name in rules},
            correlations={name: self._section(Correlation, ("correlations", name)) for name in correlations},
            slack=self._section(Slack, ("slack",)) if "slack" in self._tables else None,
            spark=self._section(Spark, ("spark",)),
            checks={name: self._section(Check, ("checks", name)) for name in CHECKS},
        )
        if self._problems:
            raise SettingsError(sorted(self._problems, key=lambda one: (one.line or 0, one.where, one.message)))
        return settings

    def _value(self, path: KeyPath) -> Any:
        """What stands at the path; an empty table where nothing does."""
        value: Any = self._tables
        for part in path:
            if isinstance(value, Mapping):
                value = value.get(part, {})
            else:
                value = value[part] if isinstance(value, list) and isinstance(part, int) else {}
        return value

    def _table(self, path: KeyPath) -> Mapping[str, Any]:
        """The table at the path, for a look at its keys; an empty one where something else stands."""
        value = self._value(path)
        if isinstance(value, Mapping):
            return value
        if len(path) == 1:
            self._complain(path, f"expected tables by name, such as [{path[0]}.main]")
        return {}

    def _section(self, model: type[Model], path: KeyPath, without: str | None = None) -> Model:
        """The table at the path as the model. Where it has mistakes the result is empty, and never gets out of here."""
        table = self._value(path)
        if isinstance(table, Mapping):
            table = {key: value for key, value in table.items() if key != without}
        try:
            # By way of JSON, for which pydantic's strict mode takes a list as a tuple and text as a path or an enum.
            return model.model_validate_json(json.dumps(table, default=str))
        except ValidationError as error:
            for below, sentence in complaints(error, model, table):
                self._complain((*path, *below), sentence)
            return model.__new__(model)

    def _rule(self, name: str) -> Rule:
        path = ("rules", name)
        kind = self._table(path).get("kind")
        if kind is None and isinstance(self._value(path), Mapping):
            self._complain((*path, "kind"), f"is required{did_you_mean('', KINDS)}")
        elif isinstance(kind, str) and kind not in KINDS:
            self._complain((*path, "kind"), f'unknown kind "{kind}"{did_you_mean(kind, KINDS)}')
        elif kind is not None and not isinstance(kind, str):
            self._complain((*path, "kind"), f"expected text in quotes{did_you_mean('', KINDS)}")
        else:
            rule: type[Rule] = KINDS.get(kind or "", Rule)
            return self._section(rule, path, without="kind")
        return Rule.model_construct()

    def _complain(self, path: KeyPath, message: str) -> None:
        line = self._line(path)
        self._problems.add(Problem(self._name if line else "overrides", line, shown(path), message))

    def _line(self, path: KeyPath) -> int | None:
        """Where the path stands in the file, or the table that lacks it; None where that came with an override."""
        value: Any = self._tables
        override: Any = self._overrides
        for depth, part in enumerate(path):
            if not (part in value if isinstance(value, Mapping) else isinstance(value, list)):
                path = path[:depth]
                break
            value = value[part]
            override = override.get(part, {}) if isinstance(override, Mapping) else override
        return self._places[path].line if path in self._places and isinstance(override, Mapping) else None
