"""What a check is asked, as options of `python -m spark_checks NAME`: from rules.toml, a schedule or an incident."""

from collections.abc import Iterable
from glob import escape
from pathlib import Path

from agent.asks import Ask
from agent.observations import rfc3339
from agent.settings import Settings
from agent.settings.check_sections import Spark
from agent.settings.sections import Cluster

ON_JOURNAL = frozenset({"offset_history"})
"""The checks that look at the journal; the others look at brokers' logs."""


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


def places(check: str, journal: Path, cluster: Cluster | None) -> list[str]:
    """Where the check finds what it looks at; empty where rules.toml names nothing for it."""
    if check in ON_JOURNAL:
        return ["--journal", str(journal)]
    logs = {} if cluster is None else cluster.log_directories
    if check == "replica_divergence" and len(logs) < 2:
        return []
    return [option for broker, paths in logs.items() for path in paths for option in ("--path", f"{broker}={path}")]


def scheduled_options(check: str, settings: Settings, now: int) -> list[str]:
    """What a run on schedule looks at: its window. One over the journal also merges its small files of past dates."""
    window = settings.checks[check].window
    span = [] if window is None else ["--from", rfc3339(now - window), "--to", rfc3339(now)]
    return [*span, *(["--compact"] if check in ON_JOURNAL else [])]


def asked_options(ask: Ask) -> list[str]:
    """What an incident wants to know. A log on a disk has no window: what it holds is wrong whenever it was written."""
    window = ["--from", rfc3339(ask.since), "--to", rfc3339(ask.until)] if ask.check in ON_JOURNAL else []
    return [*window, *_each("--topic", ask.topics), *_each("--group", ask.groups)]


def _each(option: str, names: Iterable[str]) -> list[str]:
    """The names as shell patterns that mean nothing but them."""
    return [one for name in names for one in (option, escape(name))]
