"""What a valid configuration lacks: secrets and paths on this host, and rules."""

import os
from collections.abc import Iterator
from glob import glob
from pathlib import Path

from agent.config.credentials import Credential
from agent.config.kafka_properties import ineffective_properties
from agent.config.loading import REFERENCES
from agent.config.problems import Problem, describe_path
from agent.config.settings import Settings
from agent.config.shipped import shipped, shipped_rules
from agent.config.toml_places import KeyPath, find_places
from agent.model.text import join_names
from agent.rules import KINDS

_PROBE = "probe"
"""A location that has librdkafka look for the file in the usual places."""


def secret_problems(settings: Settings, path: Path) -> list[tuple[Problem, Credential]]:
    """Return what is wrong with the secrets that the configuration at the path names, with their sources."""
    places = find_places(path.read_text(encoding="utf-8-sig"))
    return [
        (Problem(str(path), places[key].line, describe_path(key), reason), source)
        for key, source, reason in settings.unreadable_secrets()
    ]


def missing_paths(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and a message for each configured path that does not exist on this host. URLs are skipped."""
    for name, logs in settings.logs.items():
        for index, pattern in enumerate(logs.paths):
            matches = glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
            if not matches:
                yield ("logs", name, "paths", index), f"no file matches {pattern}"
            elif all(_problem(Path(match), directory=True) is None for match in matches):
                message = f"only directories match {pattern}; name the files in them"
                yield ("logs", name, "paths", index), message
    for name, flink in settings.flink.items():
        storage = flink.storage_directory
        if storage is not None and (problem := _problem(storage, directory=True)):
            yield ("flink", name, "storage_directory"), problem
    for name, cluster in settings.clusters.items():
        for broker, paths in cluster.log_directories.items():
            for path in paths:
                if "://" not in path and (problem := _problem(Path(path))):
                    yield ("clusters", name, "log_directories", str(broker)), problem
    for key, file in _client_files(settings):
        if problem := _problem(file):
            yield key, problem


def _client_files(settings: Settings) -> Iterator[tuple[KeyPath, Path]]:
    """Yield the certificates and other files that clients of monitored systems read, except secrets."""
    for name, cluster in settings.clusters.items():
        for key, value in cluster.kafka.items():
            if key.endswith(".location") and isinstance(value, str) and value != _PROBE:
                yield ("clusters", name, "kafka", key), Path(value)
    for table in ("clusters", "flink", "streams"):
        for name, source in getattr(settings, table).items():
            for client in ("zookeeper_client", "http_client"):
                for key, value in getattr(source, client, ()):  # pydantic's models yield their fields
                    if isinstance(value, Path):
                        yield (table, name, client, key), value


def properties_without_effect(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and a message for Kafka properties that the security protocol has no use for."""
    for name, cluster in settings.clusters.items():
        for key, message in ineffective_properties(cluster.kafka):
            yield ("clusters", name, "kafka", key), message


def unreachable_routes(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and a message for each route to Slack's channels behind one that takes every incident."""
    taken: str | None = None
    for index, route in enumerate(() if settings.slack is None else settings.slack.routes):
        if route.additional:
            continue
        if taken is not None:
            yield ("slack", "routes", index), f"gets no incident: the route to {taken} above has no patterns"
        elif not route.given:
            taken = route.channel


def logs_of_no_cluster(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and a message for each table of logs that could name a cluster and names none."""
    keys = [(key, table) for section, key, table in REFERENCES if section == "logs"]
    known = [f'{key} = "{name}"' for key, table in keys for name in getattr(settings, table)]
    for name, logs in settings.logs.items():
        if known and logs.cluster is None and logs.flink is None:
            yield ("logs", name), f"names no cluster, so its lines explain no incident; add {join_names(known, 'or')}"


def state_directory_problems(settings: Settings, path: Path) -> Iterator[Problem]:
    """Yield the problem of a state directory that cannot exist: what should be a parent of it is no directory."""
    directory = settings.agent.state_directory
    existing = next(parent for parent in (directory, *directory.absolute().parents) if os.path.lexists(parent))
    try:
        is_directory = existing.is_dir()
    except PermissionError:  # a link into what is only the agent's user's
        is_directory = True
    if not is_directory:
        key = ("agent", "state_directory")
        place = find_places(path.read_text(encoding="utf-8-sig")).get(key)
        message = f"cannot create {directory}: {existing} is not a directory"
        yield Problem(str(path), None if place is None else place.line, describe_path(key), message)


def missing_rules(settings: Settings) -> Iterator[str]:
    """Yield what goes unreported for lack of rules: everything, or trouble of Backflow itself."""
    if not settings.rules:
        yield f"no rules, so nothing is detected; add [rules.NAME] as in {shipped()}"
        return
    configured = settings.kinds.values()
    missing = [kind for kind, rule in KINDS.items() if rule.reports_agent and kind not in configured]
    if missing:
        yield (
            f"trouble of Backflow itself goes unreported without rules of kind {join_names(missing)}; "
            f"add them as in {shipped()}"
        )


def unconfigured_kinds(settings: Settings) -> list[str]:
    """Return the kinds of the shipped rules that the configuration does not have, in the shipped order."""
    configured = settings.kinds.values()
    return [kind for kind in dict.fromkeys(shipped_rules().values()) if kind not in configured]


def _problem(path: Path, *, directory: bool = False) -> str | None:
    try:
        exists = path.is_dir() if directory else path.exists()
    except OSError as error:  # the agent may run as another user
        return f"{path} cannot be accessed: {error.strerror}"
    return None if exists else f"{'directory ' if directory else ''}{path} does not exist"
