"""The tables of rules.toml about Spark checks, as types: [spark] and [checks.NAME]. What runs them is agent.checks."""

import re
from datetime import UTC
from typing import Annotated, Any

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from agent.model.config_types import ConfigModel, Duration, PositiveDuration, duration

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECRET = re.compile(r"(password|passphrase|secret|secret\.?key|token)$", re.IGNORECASE)
_SIZE = re.compile(r"(\d{1,9})([kmgt])b?", re.IGNORECASE)
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+):\d{1,5}"
# SparkContext.createTaskScheduler, SparkMasterRegex and SparkSubmit of Spark 4.0.
_MASTER = re.compile(
    r"local(?:\[(?:[1-9]\d*|\*)(?:\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    rf"|spark://{_HOST}(?:,{_HOST})*|yarn|k8s://\S+"
)


def size(value: Any) -> int:
    """A size such as "512m" or "4g" in bytes; a k is 1024, as Spark and Java count. Raises ValueError."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match[1]):
        msg = f'expected a size such as "512m" or "4g", got {value!r}'
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2].lower()]


def trigger(schedule: str) -> CronTrigger | IntervalTrigger:
    """When a schedule is due: a duration is an interval, five fields are a line of cron, in UTC. Raises ValueError."""
    try:
        if len(schedule.split()) > 1:
            return _cron(schedule)
        return IntervalTrigger(seconds=max(duration(schedule), 1_000) / 1000, timezone=UTC)
    except ValueError as error:
        msg = f'expected a duration such as "24h" or a line of cron such as "0 3 * * *", got "{schedule}": {error}'
        raise ValueError(msg) from error


def _cron(line: str) -> CronTrigger:
    # APScheduler 3 counts days of the week from Monday, cron from Sunday (its issue 286).
    if re.search(r"(?<!/)\d", " ".join(line.split()[4:5])):
        msg = "name the days of the week, as in mon-fri"
        raise ValueError(msg)
    return CronTrigger.from_crontab(line, timezone=UTC)


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


def _within_limit(value: str, info: ValidationInfo) -> str:
    limit = info.data.get("memory_limit")  # None where it is wrong itself
    if limit is not None and size(value) > limit:
        msg = (
            f'`driver_memory`, "{value}", is above `memory_limit`, {limit >> 20:,} MiB, which is for all processes of a'
            " check together"
        )
        raise ValueError(msg)
    return value


def _spark_key(key: str) -> str:
    if not key.startswith("spark."):
        msg = f'Spark\'s properties begin with `spark.` and stand in quotes: "spark.local.dir", got "{key}"'
        raise ValueError(msg)
    if _SECRET.search(key):
        msg = "a secret must not stand in this file; Spark takes it from its environment or from core-site.xml"
        raise ValueError(msg)
    return key


def _spark_value(value: Any) -> str:
    if not isinstance(value, str | int | float):
        msg = "expected text in quotes, a number, true or false"
        raise ValueError(msg)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _broker(key: str) -> int:
    if not key.isascii() or not key.isdigit():
        msg = f'expected a broker\'s id, got "{key}"'
        raise ValueError(msg)
    return int(key)


def _directories(value: Any) -> Any:
    """A broker may name one directory or several; strict mode wants what a list has become here as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Size = Annotated[int, BeforeValidator(size)]
"""A size, bytes."""

LogDirectories = dict[
    Annotated[int, BeforeValidator(_broker)],
    Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_directories), Field(min_length=1)],
]
"""Per broker id where its log is: directories, URLs or digests."""


class Spark(ConfigModel):
    """[spark]: how every Spark check is run."""

    enabled: bool = True
    """Whether the daemon runs checks at all; they need Java 17."""
    master: Annotated[str, AfterValidator(_master)] = Field("local[*]", min_length=1)
    memory_limit: Size = 4 << 30
    """What its processes on this host may use together, bytes."""
    driver_memory: Annotated[str, AfterValidator(_java_size), AfterValidator(_within_limit)] = Field(
        "1g", validate_default=True
    )
    """The heap of the driver's JVM; Python workers, which read segments and the journal, are beside it."""
    packages: tuple[str, ...] = ()
    """Maven coordinates that Spark fetches."""
    conf: dict[Annotated[str, AfterValidator(_spark_key)], Annotated[str, BeforeValidator(_spark_value)]] = Field(
        default_factory=dict
    )
    """Any property of Spark by name."""
    time_limit: PositiveDuration = 1_800_000
    """How long a check may run."""
    concurrency: int = Field(1, ge=1)
    """How many checks run at a time."""


class Check(ConfigModel):
    """[checks.NAME]: when a check runs, and its own limits."""

    enabled: bool = True
    """Whether it runs at all, on schedule or because an incident asks."""
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None
    """A duration or a line of cron in UTC; none: only when an incident or an operator asks."""
    window: PositiveDuration | None = None
    """How far back a run on schedule looks; none: all that there is. Logs on disks are always looked at whole."""
    settle: Duration = 30_000
    """How long after an incident has asked it runs: what belongs to the incident should have happened by then."""
    time_limit: PositiveDuration | None = None
    memory_limit: Size | None = None
