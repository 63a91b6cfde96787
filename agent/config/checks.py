"""[spark] and [checks.NAME]: how Spark checks run, their schedules and limits; sizes such as "4g"."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from agent.config.credentials import EnvironmentName
from agent.config.schedules import trigger
from agent.model.config_types import ConfigModel, Duration, PositiveDuration

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,9})([kmgt])b?", re.IGNORECASE)
_SECRET = re.compile(r"(password|passphrase|secret|secret\.?key|token)$", re.IGNORECASE)
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+):\d{1,5}"

# SparkContext.createTaskScheduler, SparkMasterRegex and SparkSubmit of Spark 4.0.
_MASTER = re.compile(
    r"local(?:\[(?:[1-9]\d*|\*)(?:\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    rf"|spark://{_HOST}(?:,{_HOST})*|yarn|k8s://\S+"
)


def size(value: Any) -> int:
    """Return a size such as "512m" or "4g" in bytes.

    A k is 1024 bytes, as in Spark and Java. Raises ValueError.
    """
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match[1]):
        msg = f'expected a size such as "512m" or "4g", got {value!r}'
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2].lower()]


def _schedule(value: str) -> str:
    trigger(value)
    return value


def _java_size(value: str) -> str:
    size(value)
    return value.lower().removesuffix("b")


def _master(value: str) -> str:
    if value and not _MASTER.fullmatch(value):
        examples = '"local[*]", "spark://host:7077", "yarn" or "k8s://https://host:6443"'
        msg = f'expected a master such as {examples}, got "{value}"'
        raise ValueError(msg)
    return value


def _remote(value: str, context: ValidationInfo) -> str:
    if not re.fullmatch(rf"sc://{_HOST}(?:/\S*)?", value):
        msg = f'expected the address of a Spark Connect server such as "sc://host:15002", got "{value}"'
        raise ValueError(msg)
    if context.data.get("master") not in (None, "local[*]"):
        msg = "`remote` and `master` exclude each other: a Spark Connect server has its own master"
        raise ValueError(msg)
    return value


def _within_limit(value: str, context: ValidationInfo) -> str:
    limit = context.data.get("memory_limit")  # None if it is invalid itself
    if limit is not None and size(value) > limit:
        msg = (
            f'`driver_memory` ("{value}") exceeds `memory_limit` ({limit >> 20:,} MiB), the limit of all processes of '
            "a check together"
        )
        raise ValueError(msg)
    return value


def _spark_key(key: str) -> str:
    if not key.startswith("spark."):
        msg = f'expected a Spark property in quotes such as "spark.local.dir", got "{key}"'
        raise ValueError(msg)
    if _SECRET.search(key):
        msg = (
            "a secret must not be written in this file; pass it to Spark in an environment variable that `environment` "
            "names, or by core-site.xml"
        )
        raise ValueError(msg)
    return key


def _spark_value(value: Any) -> str:
    if not isinstance(value, str | int | float):
        msg = "expected text in quotes, a number, true or false"
        raise ValueError(msg)
    return str(value).lower() if isinstance(value, bool) else str(value)


Size = Annotated[int, BeforeValidator(size)]
"""A size, bytes."""


class Spark(ConfigModel):
    """How Spark checks run: as processes of their own, which need a JDK, 17 or newer.

    The daemon itself loads nothing of Spark. A check that exceeds a limit is stopped with all processes it started.
    """

    enabled: bool = True
    """Whether the daemon runs Spark checks. Set to `false` without Java."""
    master: Annotated[str, AfterValidator(_master)] = Field("local[*]", min_length=1)
    """Spark's master: this host, or `spark://host:7077`, `yarn`, `k8s://...`."""
    remote: Annotated[str, AfterValidator(_remote)] | None = None
    """A Spark Connect server, `sc://host:15002`, in place of a master. Of `conf` it takes `spark.sql.*`, and no Java
    is needed here."""
    memory_limit: Size = 4 << 30
    """Memory that all processes of one check on this host may use together; what they share counts once."""
    driver_memory: Annotated[str, AfterValidator(_java_size), AfterValidator(_within_limit)] = Field(
        "1g", validate_default=True
    )
    """Heap of the driver's JVM. Python workers, which read segments and the journal, come on top."""
    packages: tuple[str, ...] = ()
    """Maven coordinates that Spark downloads, such as the connector of a file system."""
    conf: dict[Annotated[str, AfterValidator(_spark_key)], Annotated[str, BeforeValidator(_spark_value)]] = Field(
        default_factory=dict
    )
    """Spark properties, with names in quotes: `{ "spark.local.dir" = "/var/tmp" }`."""
    environment: tuple[EnvironmentName, ...] = ()
    """Names of environment variables that checks inherit, such as `AWS_ACCESS_KEY_ID`. Others stay with the agent."""
    time_limit: PositiveDuration = 1_800_000
    """How long one check may run."""
    concurrency: int = Field(1, ge=1)
    """How many checks run at the same time; others wait. Each has a Spark session of its own."""
    session_idle: Duration = 600_000
    """How long a Spark session is kept after a check, so that the next check need not start one. An idle session holds
    about 760 MiB of memory, and on a cluster its executors. `"0s"`: it ends after each check."""
    session_checks: int = Field(20, ge=1)
    """After how many checks a session is replaced by a new one."""
    always_ready: bool = False
    """Whether a session starts with the agent and is kept however long it is idle. Default: it starts up to a minute
    before a check is due, for an incident while `settle` passes."""


class Check(ConfigModel):
    """Schedule and limits of one Spark check; NAME is its name.

    `offset_history` compares the history in the journal. `cluster_failover` compares groups that move between clusters
    and runs only if several are configured. `log_segments` examines the brokers' logs and
    `replica_divergence` compares replicas; both run only for clusters with `log_directories`. `job_history` searches
    the journal and the `storage_directory` of each `[flink.NAME]` for jobs that came back and for stray job graphs.
    `changelog_restore` reads the changelogs of the stores declared in `state_not_restored` rules and lists the keys
    whose values decreased. `review` makes a page about the week of each cluster and posts its summary with a picture as
    a message of its own. A check that fails or exceeds a limit is reported by the rule kind `check_failed`.
    """

    enabled: bool = True
    """Whether the daemon runs the check, on schedule or for an incident."""
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None
    """When the check runs: an interval (`"24h"`), or a cron expression in UTC (`"0 3 * * mon-fri"`) with days by name.
    Intervals are counted from 1970-01-01 00:00 UTC, a Thursday: `"24h"` is midnight, `"7d"` is Thursday 00:00.

    Default: only when an incident or an operator requests it.
    """
    window: PositiveDuration | None = None
    """How far back a scheduled run looks. Default: everything. Log segments are always examined completely."""
    settle: Duration = 30_000
    """Delay between the request of an incident and the run, so that all that belongs to the incident has happened."""
    time_limit: PositiveDuration | None = None
    """How long it may run. Default: `time_limit` of `[spark]`."""
    memory_limit: Size | None = None
    """Memory that it may use. Default: `memory_limit` of `[spark]`."""
