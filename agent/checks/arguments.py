"""Options of `python -m spark_checks NAME` from rules.toml, from a schedule or from an incident's request."""

import os
from collections.abc import Iterable, Mapping
from glob import escape
from pathlib import Path
from urllib.parse import quote

from agent.config.checks import Spark
from agent.config.settings import Settings
from agent.config.sources import Cluster, Flink
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest
from agent.engine.check_rule import CheckInput
from agent.model.times import rfc3339
from agent.rules import CHECK_RULES

INPUT_OPTIONS: Mapping[CheckInput, str] = {
    CheckInput.LOG_DIRECTORIES: "--path",
    CheckInput.CHANGELOGS: "--bootstrap-servers",
    CheckInput.COMMITS: "--journal",
    CheckInput.CLUSTERS: "--journal",
    CheckInput.JOURNAL: "--journal",
    CheckInput.FLINK_JOBS: "--journal",
}
"""The option that names what a check reads."""

_CLOCK_SKEW_MS, _DAY_MS = 60_000, 86_400_000


def spark_options(spark: Spark, scratch: Path) -> list[str]:
    """Return the options for Spark itself. scratch: for its temporary files, which a killed Spark leaves behind."""
    if spark.remote is not None:
        return ["--remote", spark.remote, *_repeat("--conf", (f"{key}={value}" for key, value in spark.conf.items()))]
    conf = {"spark.driver.memory": spark.driver_memory}
    if spark.master.startswith("local"):
        conf["spark.local.dir"] = str(scratch)
    if spark.packages:
        conf["spark.jars.packages"] = ",".join(spark.packages)
    properties = (f"{key}={value}" for key, value in (conf | spark.conf).items())
    return ["--master", spark.master, *_repeat("--conf", properties)]


def input_of(check: str) -> CheckInput:
    """Return what the check reads."""
    return CHECK_RULES[check].input


def clusters_of(check: str, settings: Settings) -> Mapping[str, Cluster | Flink]:
    """Return the clusters that the check can examine, by their names in rules.toml."""
    return settings.flink if input_of(check) is CheckInput.FLINK_JOBS else settings.clusters


def input_options(check: str, settings: Settings, cluster: str | None) -> list[str]:
    """Return the options that name the check's input; empty if rules.toml configures none for it.

    cluster: None for a run by hand without any configured cluster.
    """
    journal = ["--journal", str(settings.agent.state_directory / "journal")]
    source = input_of(check)
    if source is CheckInput.FLINK_JOBS:
        return journal if cluster is None else [*journal, *_flink_options(cluster, settings.flink.get(cluster))]
    if source is CheckInput.COMMITS:
        return journal
    if source is CheckInput.CLUSTERS:
        return journal if len(settings.clusters) > 1 else []
    if source is CheckInput.JOURNAL:
        jobs = [f"{name}={flink.kafka}" for name, flink in settings.flink.items() if flink.kafka is not None]
        return [*journal, *_repeat("--flink", jobs), *_repeat("--rule", settings.rules)]
    if source is CheckInput.CHANGELOGS:
        stores = [f"{store.application}/{store.store}={store.value}" for store in settings.declared_stores(cluster)]
        known = cluster in settings.clusters
        return [*server_options(settings, cluster), *_repeat("--store", stores)] if known and stores else []
    known_cluster = settings.clusters.get(cluster or "")
    directories = {} if known_cluster is None else known_cluster.log_directories
    if len(directories) < CHECK_RULES[check].min_brokers:
        return []
    return _repeat("--path", (f"{broker}={path}" for broker, paths in directories.items() for path in paths))


def server_options(settings: Settings, cluster: str | None) -> list[str]:
    """Return the options for reading changelogs: the brokers, and the journal if it exists."""
    known = settings.clusters.get(cluster or "")
    journal = settings.agent.state_directory / "journal"
    journal_options = ["--journal", str(journal)] if journal.is_dir() else []  # none before the first run
    return [] if known is None else ["--bootstrap-servers", known.bootstrap_servers, *journal_options]


def client_options(check: str, settings: Settings, cluster: str | None, scratch: Path) -> list[str]:
    """Return the option for the cluster's client properties, written to a file that only this user can read.

    A command line would show secrets to all users. Raises CredentialError.
    """
    known = settings.clusters.get(cluster or "")
    if input_of(check) is not CheckInput.CHANGELOGS or known is None or not known.kafka:
        return []
    properties = known.kafka_properties()
    del properties["bootstrap.servers"]
    path = scratch / "kafka.properties"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.writelines(f"{name}={_escape(value)}\n" for name, value in properties.items())
    return ["--kafka-file", str(path)]


def _escape(value: object) -> str:
    """Return the value as Java reads it in a properties file."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _flink_options(name: str, flink: Flink | None) -> list[str]:
    """Name the Flink cluster even if rules.toml does not: the journal may contain it, else the check reports that."""
    if flink is None or flink.storage_directory is None:
        return ["--flink", name]
    storage = ["--storage", f"{name}={flink.storage_directory}", "--cluster-id", f"{name}={flink.cluster_id}"]
    return ["--flink", name, *storage]


def scheduled_options(check: str, settings: Settings, now: int) -> list[str]:
    """Return the window of a scheduled run; the check of commits also merges small journal files of past dates.

    A report for people is about whole UTC dates, if its window has whole days.
    """
    source = input_of(check)
    window = None if source is CheckInput.LOG_DIRECTORIES else settings.checks[check].window
    is_about_dates = CHECK_RULES[check].posts_report and window is not None and window % _DAY_MS == 0
    until = now - now % _DAY_MS if is_about_dates else now
    span = [] if window is None else ["--from", rfc3339(until - window), "--to", rfc3339(until)]
    return [*span, *(["--compact"] if source is CheckInput.COMMITS else [])]


def page_options(check: str, cluster: str, settings: Settings, now: int) -> list[str]:
    """Return where a scheduled run keeps its page for people; none for checks without. now: ms."""
    if not CHECK_RULES[check].posts_report:
        return []
    # A cluster's name is no path: it may contain slashes.
    name = f"{quote(cluster, safe='')}-{rfc3339(now)[:10]}.html"
    return ["--out", str(settings.agent.state_directory / check / name)]


def requested_options(request: CheckRequest) -> list[str]:
    """Return what an incident asks about: window, topics and groups.

    A log on disk has no window and no groups: damage in it is reported whenever it was written. A changelog is read
    from the incident's first cause on.
    """
    topics = _repeat("--topic", map(escape, request.topics))
    groups = _repeat("--group", map(escape, request.groups))
    source = input_of(request.check)
    if source is CheckInput.CHANGELOGS:
        first_cause = request.since + LOOKBACK_MS - _CLOCK_SKEW_MS
        return ["--from", rfc3339(first_cause), *(groups or topics)]
    if source is CheckInput.LOG_DIRECTORIES:
        return topics
    window = ["--from", rfc3339(request.since), "--to", rfc3339(request.until)]
    return window if source is CheckInput.FLINK_JOBS else [*window, *topics, *groups]


def result_options(request: CheckRequest, settings: Settings) -> list[str]:
    """Return where to keep the keys to repair, which compaction later removes from the changelog."""
    if input_of(request.check) is not CheckInput.CHANGELOGS:
        return []
    return ["--out", str(settings.agent.state_directory / request.check / f"{request.id}.parquet")]


def _repeat(option: str, values: Iterable[str]) -> list[str]:
    return [argument for value in values for argument in (option, value)]
