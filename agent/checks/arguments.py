"""What a check is asked, as options of `python -m spark_checks NAME`: from rules.toml, a schedule or an incident."""

import os
from collections.abc import Iterable, Mapping
from glob import escape
from pathlib import Path

from agent.config.check_sections import Spark
from agent.config.flink_section import Flink
from agent.config.sections import Cluster
from agent.config.settings import Settings
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest
from agent.model.observations import rfc3339

ON_JOURNAL = frozenset({"offset_history", "job_history"})
"""The checks that look at the journal; the others look at brokers' logs, or at changelogs."""

OF_CHANGELOGS = "changelog_restore"
"""The one that reads topics: of a Kafka cluster, with the client properties that rules.toml has for it."""

_CLOCKS_MS = 60_000

_OF_GROUPS = "offset_history"
"""The one of them that knows topics and groups, and that keeps house in the journal."""

_OF_JOBS = "job_history"
"""The one of them that looks at Flink clusters; all others look at Kafka clusters."""


def spark_options(spark: Spark, scratch: Path) -> list[str]:
    """How Spark is run. scratch: where it may write as long as it runs here; a Spark that is killed leaves it full."""
    conf = {"spark.driver.memory": spark.driver_memory}
    if spark.master.startswith("local"):
        conf["spark.local.dir"] = str(scratch)
    if spark.packages:
        conf["spark.jars.packages"] = ",".join(spark.packages)
    return ["--master", spark.master, *(one for key, value in (conf | spark.conf).items() for one in _conf(key, value))]


def _conf(key: str, value: str) -> tuple[str, str]:
    return "--conf", f"{key}={value}"


def clusters(check: str, settings: Settings) -> Mapping[str, Cluster | Flink]:
    """The clusters that the check can look at, by their names in rules.toml."""
    return settings.flink if check == _OF_JOBS else settings.clusters


def places(check: str, settings: Settings, cluster: str | None) -> list[str]:
    """Where the check finds what it looks at; empty where rules.toml names nothing for it. cluster: None by hand, where
    there is none to name.
    """
    journal = ["--journal", str(settings.agent.state_directory / "journal")]
    if check == _OF_JOBS:
        return journal if cluster is None else [*journal, *_flink(cluster, settings.flink.get(cluster))]
    if check == _OF_GROUPS:
        return journal
    if check == OF_CHANGELOGS:
        named = [f"{one.application}/{one.store}={one.value}" for one in settings.declared_stores]
        return (
            [*servers(settings, cluster), *_each_as("--store", named)] if cluster in settings.clusters and named else []
        )
    known = settings.clusters.get(cluster or "")
    logs = {} if known is None else known.log_directories
    if check == "replica_divergence" and len(logs) < 2:
        return []
    return [option for broker, paths in logs.items() for path in paths for option in ("--path", f"{broker}={path}")]


def servers(settings: Settings, cluster: str | None) -> list[str]:
    """Where changelogs are, and the journal that tells of them; empty where rules.toml does not name the cluster."""
    known = settings.clusters.get(cluster or "")
    journal = settings.agent.state_directory / "journal"
    told = ["--journal", str(journal)] if journal.is_dir() else []  # there is none before the agent has run
    return [] if known is None else ["--bootstrap-servers", known.bootstrap_servers, *told]


def client_options(check: str, settings: Settings, cluster: str | None, scratch: Path) -> list[str]:
    """The client properties of the cluster, in a file that nobody else can read: a command line is seen by all.

    Raises CredentialError.
    """
    known = settings.clusters.get(cluster or "")
    if check != OF_CHANGELOGS or known is None or not known.kafka:
        return []
    properties = known.kafka_properties()
    del properties["bootstrap.servers"]
    path = scratch / "kafka.properties"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.writelines(f"{name}={_escaped(value)}\n" for name, value in properties.items())
    return ["--kafka-file", str(path)]


def _escaped(value: object) -> str:
    """As Java reads it in a file of properties."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _flink(name: str, flink: Flink | None) -> list[str]:
    """Of one that rules.toml does not name the journal may tell; where it does not, the check says so."""
    if flink is None or flink.storage_directory is None:
        return ["--flink", name]
    storage = ["--storage", f"{name}={flink.storage_directory}", "--cluster-id", f"{name}={flink.cluster_id}"]
    return ["--flink", name, *storage]


def scheduled_options(check: str, settings: Settings, now: int) -> list[str]:
    """What a run on schedule looks at: its window. The one of groups also merges small files of past dates."""
    window = settings.checks[check].window if check in ON_JOURNAL | {OF_CHANGELOGS} else None
    span = [] if window is None else ["--from", rfc3339(now - window), "--to", rfc3339(now)]
    return [*span, *(["--compact"] if check == _OF_GROUPS else [])]


def asked_options(ask: CheckRequest) -> list[str]:
    """What an incident wants to know. A log on a disk has no window: what it holds is wrong whenever it was written.

    Nor does it know of groups. A changelog is looked at from the incident's first cause on.
    """
    topics = _each("--topic", ask.topics)
    if ask.check == OF_CHANGELOGS:
        begun = ask.since + LOOKBACK_MS - _CLOCKS_MS
        return ["--from", rfc3339(begun), *(_each("--group", ask.groups) or topics)]
    if ask.check not in ON_JOURNAL:
        return topics
    window = ["--from", rfc3339(ask.since), "--to", rfc3339(ask.until)]
    return [*window, *topics, *_each("--group", ask.groups)] if ask.check == _OF_GROUPS else window


def kept_options(ask: CheckRequest, settings: Settings) -> list[str]:
    """Where what an incident asked for is kept: the keys to repair, which compaction takes out of the changelog."""
    if ask.check != OF_CHANGELOGS:
        return []
    return ["--out", str(settings.agent.state_directory / OF_CHANGELOGS / f"{ask.id}.parquet")]


def _each(option: str, names: Iterable[str]) -> list[str]:
    """The names as shell patterns that mean nothing but them."""
    return _each_as(option, map(escape, names))


def _each_as(option: str, values: Iterable[str]) -> list[str]:
    return [one for value in values for one in (option, value)]
