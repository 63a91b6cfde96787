"""Reading rules.toml: validated as a whole; all mistakes are reported at once, each with its line."""

import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import tomli
from pydantic import ValidationError

from agent.config.checks import Check, Spark
from agent.config.correlation_checks import correlation_problems
from agent.config.journal import Journal
from agent.config.kafka_properties import kafka_problems
from agent.config.problems import (
    LISTED_TABLES,
    NAMED_TABLES,
    TOO_DEEP,
    Problem,
    SettingsError,
    describe_path,
    did_you_mean,
    mistakes_in,
    unmatched,
    unmatched_rule,
)
from agent.config.receivers import ReceiverSettings
from agent.config.sections import Agent, Notifications, Slack
from agent.config.self_report import Heartbeat, Http
from agent.config.settings import SECTIONS, Settings
from agent.config.silences import ConfiguredSilence
from agent.config.sources import Cluster, Flink, Logs, Streams
from agent.config.toml_places import KeyPath, Place, find_places
from agent.engine.correlation import Correlation
from agent.engine.incidents import Lifetimes
from agent.engine.rule import Rule
from agent.model.config_types import ConfigModel
from agent.model.observations.agent import AGENT
from agent.rules import CHECKS, KINDS

Model = TypeVar("Model", bound=ConfigModel)

_LONG_NUMBER = re.compile(r"[0-9][0-9_]{4000,}")
LARGEST_FILE = 4 << 20
"""Upper limit of the size of a configuration file, bytes."""

NO_RECEIVERS: Mapping[str, type[ReceiverSettings]] = {}

REFERENCES = (
    ("flink", "kafka", "clusters"),
    ("streams", "cluster", "clusters"),
    ("logs", "cluster", "clusters"),
    ("logs", "flink", "flink"),
)
"""(section, key in its tables, section whose names the key takes)."""


def load(
    path: Path,
    *,
    need_clusters: bool,
    overrides: Mapping[str, Any] | None = None,
    receivers: Mapping[str, type[ReceiverSettings]] = NO_RECEIVERS,
) -> Settings:
    """Return the settings in the file with the overrides merged into them.

    receivers: the kinds of receivers, which agent.notify has. Raises SettingsError, also if the file cannot be read.
    """
    try:
        kind = _kind_of_no_configuration(path)
        text = "" if kind else path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        problem = Problem(str(path), None, "", f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = Problem(str(path), line, "", "not UTF-8 text; save the file as UTF-8")
    else:
        if not kind:
            return loads(text, str(path), need_clusters=need_clusters, overrides=overrides, receivers=receivers)
        problem = Problem(str(path), None, "", f"is {kind}; give the path of a file such as rules.toml")
    raise SettingsError([problem])


def _kind_of_no_configuration(path: Path) -> str:
    """Return what the path leads to if it cannot be a configuration, else an empty string. Raises OSError."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        return "a directory"
    if not stat.S_ISREG(found.st_mode):  # reading a pipe without a writer would never end
        return "not a regular file"
    return f"larger than {LARGEST_FILE >> 20} MiB" if found.st_size > LARGEST_FILE else ""


def loads(
    text: str,
    name: str,
    *,
    need_clusters: bool,
    overrides: Mapping[str, Any] | None = None,
    receivers: Mapping[str, type[ReceiverSettings]] = NO_RECEIVERS,
) -> Settings:
    """Return the settings in the text of the file of this name.

    overrides: tables merged into those of the file, key by key; None removes a key. receivers: the kinds of receivers.
    Raises SettingsError with all mistakes, or with the first error in the TOML syntax.
    """
    tables, places = read_toml(text, name)
    return _Reader(name, tables, places, overrides or {}, receivers).settings(need_clusters=need_clusters)


def read_toml(text: str, name: str) -> tuple[dict[str, Any], dict[KeyPath, Place]]:
    """Return the tables in the text of the file of this name, and their places.

    Raises SettingsError with the first error in the TOML syntax.
    """
    try:
        return tomli.loads(text), find_places(text)
    except RecursionError as error:
        raise SettingsError([Problem(name, None, "", TOO_DEEP)]) from error
    except tomli.TOMLDecodeError as error:
        message = error.msg.replace("Cannot overwrite a value", "this key already has a value")
        if declared := re.fullmatch(r"Cannot declare \((.*?),?\) twice", message):  # a table's name as a Python tuple
            message = f"the table [{declared[1].replace(', ', '.').replace(chr(39), '')}] is declared twice"
        problem = Problem(name, error.lineno, "", f"not valid TOML: {message} (column {error.colno})")
        raise SettingsError([problem]) from error
    except ValueError as error:  # Python converts no number of more than 4,300 digits
        number = _LONG_NUMBER.search(text)
        line = None if number is None else text.count("\n", 0, number.start()) + 1
        raise SettingsError([Problem(name, line, "", "a number has too many digits")]) from error


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
    """Converts tables into models and collects the mistakes in them."""

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Any],
        places: Mapping[KeyPath, Place],
        overrides: Mapping[str, Any],
        receiver_kinds: Mapping[str, type[ReceiverSettings]],
    ) -> None:
        self._name, self._places, self._overrides, self._receiver_kinds = name, places, overrides, receiver_kinds
        self._tables = _merge(tables, overrides)
        self._problems: set[Problem] = set()

    def settings(self, *, need_clusters: bool) -> Settings:
        """Return the settings, or raise SettingsError."""
        self._check_names(need_clusters=need_clusters)
        settings = Settings(
            agent=self._model(Agent, ("agent",)),
            journal=self._model(Journal, ("journal",)),
            incidents=self._model(Lifetimes, ("incidents",)),
            clusters=self._models(Cluster, "clusters"),
            flink=self._models(Flink, "flink"),
            streams=self._models(Streams, "streams"),
            logs=self._models(Logs, "logs"),
            rules=self._models_by_kind(Rule, "rules", KINDS),
            correlations=self._models(Correlation, "correlations"),
            slack=self._model(Slack, ("slack",)) if "slack" in self._tables else None,
            http=self._model(Http, ("http",)) if "http" in self._tables else None,
            heartbeat=self._model(Heartbeat, ("heartbeat",)) if "heartbeat" in self._tables else None,
            spark=self._model(Spark, ("spark",)),
            checks={name: self._model(Check, ("checks", name)) for name in CHECKS},
            notifications=self._model(Notifications, ("notifications",)),
            silences=tuple(self._model(ConfiguredSilence, path) for path, _ in self._listed(("silences",))),
            receivers=self._models_by_kind(ReceiverSettings, "receivers", self._receiver_kinds),
        )
        if self._problems:
            raise SettingsError(sorted(self._problems, key=lambda found: (found.line or 0, found.where, found.message)))
        return settings

    def _check_names(self, *, need_clusters: bool) -> None:
        """Report what no model sees: unknown tables, and what tables say of each other."""
        for path in self._places:
            if isinstance(value := self._value(path), date | time):
                self._add_problem(path, f"dates and times are not supported; put {value} in quotes if it is text")
        known = [*SECTIONS, *NAMED_TABLES, *LISTED_TABLES]
        for name in self._tables.keys() - set(known):
            self._add_problem((name,), f"unknown section{did_you_mean(name, known)}")
        named = {name: self._table((name,)) for name in NAMED_TABLES}
        if need_clusters and not (named["clusters"] or named["flink"] or named["logs"]):
            self._add_problem(("clusters",), "no cluster to monitor; add [clusters.main] with `bootstrap_servers`")
        self._check_references(named["streams"], named["clusters"])
        for name in named["clusters"]:
            for below, message in kafka_problems(self._table(("clusters", name, "kafka"))):
                self._add_problem(("clusters", name, "kafka", *below) if below else ("clusters", name), message)
        kinds = {name: str(self._table(("rules", name)).get("kind")) for name in named["rules"]}
        for name in named["correlations"]:
            for below, message in correlation_problems(self._table(("correlations", name)), kinds):
                self._add_problem(("correlations", name, *below), message)
        for name in named["checks"].keys() - CHECKS.keys():
            self._add_problem(("checks", name), f"unknown check{did_you_mean(name, CHECKS)}")
        selecting = [*self._listed(("silences",)), *self._listed(("slack", "routes"))]
        selecting += [(("receivers", name), table) for name, table in named["receivers"].items()]
        monitored = chain.from_iterable(named[section] for section in ("clusters", "flink", "streams", "logs"))
        self._check_patterns(selecting, kinds, [*monitored])

    def _check_references(self, streams: Mapping[str, Any], clusters: Mapping[str, Any]) -> None:
        for section, key, target in REFERENCES:
            known = self._table((target,))
            for name in self._table((section,)):
                reference = self._table((section, name)).get(key)
                if isinstance(reference, str) and reference not in known:
                    message = f"there is no [{target}.{reference}]{did_you_mean(reference, known)}"
                    self._add_problem((section, name, key), message)
        for name in streams:
            if "cluster" not in self._table(("streams", name)) and len(clusters) != 1:
                self._add_problem(("streams", name, "cluster"), f"is required{did_you_mean('', clusters)}")
        for name in self._table(("rules",)):
            for path, store in self._listed(("rules", name, "stores")):
                cluster = store.get("cluster") if isinstance(store, Mapping) else None
                if isinstance(cluster, str) and cluster not in clusters:
                    message = f"there is no [clusters.{cluster}]{did_you_mean(cluster, clusters)}"
                    self._add_problem((*path, "cluster"), message)

    def _check_patterns(
        self, selecting: Iterable[tuple[KeyPath, Any]], kinds: Mapping[str, str], clusters: Iterable[str]
    ) -> None:
        """Report names in tables with matchers that this file does not have. selecting: path and content of each."""
        checks = {
            "rules": partial(unmatched_rule, kinds=kinds, otherwise=", or remove it from this list"),
            "clusters": partial(unmatched, "clusters", names=[*clusters, AGENT]),
        }
        for table, matchers in selecting:
            for name, problem_of in checks.items():
                filters = matchers.get(name) if isinstance(matchers, Mapping) else None
                for key in ("include", "exclude"):
                    patterns = filters.get(key) if isinstance(filters, Mapping) else None
                    for index, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
                        if isinstance(pattern, str) and (problem := problem_of(pattern)):
                            self._add_problem((*table, name, key, index), problem)

    def _listed(self, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        """Yield path and content of each element of the list of tables at the path."""
        tables = self._value(path)
        if len(path) == 1 and path[0] in self._tables and not isinstance(tables, list):
            self._add_problem(path, f"expected a list of tables: write [[{path[0]}]]")
        for index, table in enumerate(tables if isinstance(tables, list) else ()):
            yield (*path, index), table

    def _value(self, path: KeyPath) -> Any:
        """Return the value at the path, or an empty table."""
        value: Any = self._tables
        for part in path:
            if isinstance(value, Mapping):
                value = value.get(part, {})
            else:
                value = value[part] if isinstance(value, list) and isinstance(part, int) else {}
        return value

    def _table(self, path: KeyPath) -> Mapping[str, Any]:
        """Return the table at the path, or an empty one if it is something else."""
        value = self._value(path)
        if isinstance(value, Mapping):
            return value
        if len(path) == 1:
            self._add_problem(path, f"expected tables by name, such as [{path[0]}.main]")
        return {}

    def _model(self, model: type[Model], path: KeyPath, without: str | None = None) -> Model:
        """Return the table at the path as the model; an empty one, which is never used, if it has mistakes."""
        table = self._value(path)
        if isinstance(table, Mapping):
            table = {key: value for key, value in table.items() if key != without}
        try:
            # As JSON, because pydantic's strict mode then accepts a list as a tuple and text as a path or an enum.
            return model.model_validate_json(json.dumps(table, default=str))
        except ValidationError as error:
            for below, message in mistakes_in(error, model, table):
                self._add_problem((*path, *below), message)
            return model.__new__(model)

    def _models(self, model: type[Model], section: str) -> dict[str, Model]:
        """Return the section's tables as models, by name."""
        return {name: self._model(model, (section, name)) for name in self._table((section,))}

    def _models_by_kind(self, base: type[Model], section: str, kinds: Mapping[str, type[Model]]) -> dict[str, Model]:
        """Return the section's tables as the models that their kinds name, by name."""
        return {name: self._model_by_kind((section, name), kinds, base) for name in self._table((section,))}

    def _model_by_kind(self, path: KeyPath, kinds: Mapping[str, type[Model]], base: type[Model]) -> Model:
        """Return the table at the path as the model that its `kind` names; an empty one if it has mistakes."""
        kind, name = self._table(path).get("kind"), str(path[-1])
        if kind is None and isinstance(self._value(path), Mapping):
            self._add_problem((*path, "kind"), f"is required{did_you_mean(name, kinds)}")
            if name in kinds:  # most likely that one is meant: its other mistakes belong in the same answer
                self._model(kinds[name], path, without="kind")
        elif isinstance(kind, str) and kind not in kinds:
            self._add_problem((*path, "kind"), f'unknown kind "{kind}"{did_you_mean(kind, kinds)}')
        elif kind is not None and not isinstance(kind, str):
            self._add_problem((*path, "kind"), f"expected text in quotes{did_you_mean('', kinds)}")
        else:
            model: type[Model] = kinds.get(kind or "", base)
            return self._model(model, path, without="kind")
        return base.__new__(base)

    def _add_problem(self, path: KeyPath, message: str) -> None:
        line = self._line(path)
        self._problems.add(Problem(self._name if line else "overrides", line, describe_path(path), message))

    def _line(self, path: KeyPath) -> int | None:
        """Return the line of the path, or of the table that lacks it; None if it came from an override."""
        value: Any = self._tables
        override: Any = self._overrides
        for depth, part in enumerate(path):
            if not (part in value if isinstance(value, Mapping) else isinstance(value, list)):
                path = path[:depth]
                break
            value = value[part]
            override = override.get(part, {}) if isinstance(override, Mapping) else override
        return self._places[path].line if path in self._places and isinstance(override, Mapping) else None
