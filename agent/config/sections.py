"""Tables of rules.toml about the agent: [agent], [journal], [slack], [spark] and [checks.NAME]."""

import os
import re
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from agent.config.credentials import Credential, CredentialName, EnvironmentName, resolve
from agent.model.config_types import ConfigModel, Duration, NameFilter, PositiveDuration, duration
from agent.model.findings import Severity

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


def trigger(schedule: str) -> CronTrigger | IntervalTrigger:
    """Return the trigger of a schedule: a duration is an interval, five fields are a cron expression in UTC.

    Raises ValueError.
    """
    try:
        if len(schedule.split()) > 1:
            return _cron(schedule)
        return IntervalTrigger(seconds=max(duration(schedule), 1_000) / 1000, timezone=UTC)
    except ValueError as error:
        msg = f'expected a duration such as "24h" or a cron expression such as "0 3 * * *", got "{schedule}": {error}'
        raise ValueError(msg) from error


def _cron(expression: str) -> CronTrigger:
    # APScheduler 3 counts days of the week from Monday, cron from Sunday (APScheduler issue 286).
    if re.search(r"(?<!/)\d", " ".join(expression.split()[4:5])):
        msg = "write the days of the week as names, such as mon-fri"
        raise ValueError(msg)
    return CronTrigger.from_crontab(expression, timezone=UTC)


def _schedule(value: str) -> str:
    trigger(value)
    return value


def _address(value: str) -> str:
    if not re.fullmatch(r"https?://\S+", value):
        msg = f'expected an address such as "https://slack.com/api/", got "{value}"'
        raise ValueError(msg)
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
        msg = "a secret must not be written in this file; pass it to Spark by its environment or by core-site.xml"
        raise ValueError(msg)
    return key


def _spark_value(value: Any) -> str:
    if not isinstance(value, str | int | float):
        msg = "expected text in quotes, a number, true or false"
        raise ValueError(msg)
    return str(value).lower() if isinstance(value, bool) else str(value)


Size = Annotated[int, BeforeValidator(size)]
"""A size, bytes."""


def _state_directory() -> Path:
    """Return `$STATE_DIRECTORY`, else `"backflow-state"`."""
    return Path((os.environ.get("STATE_DIRECTORY") or "backflow-state").split(":")[0])


class Agent(ConfigModel):
    """The daemon itself."""

    state_directory: Path = Field(default_factory=_state_directory)
    """Directory of the journal, the incidents and the outbox. systemd sets `$STATE_DIRECTORY`."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """Format of the agent's own log; `"auto"` means colours on a terminal and JSON elsewhere."""


class Journal(ConfigModel):
    """The journal of observations, which `replay` and Spark checks read."""

    retention: PositiveDuration = 30 * 86_400_000
    """How long observations and closed incidents are kept."""


class Route(ConfigModel):
    """Incidents that go to another channel.

    The first route that matches an incident decides; an incident without a match goes to `channel` of `[slack]`.
    """

    channel: str = Field(min_length=1)
    """Id or name of the channel."""
    severities: tuple[Severity, ...] = tuple(Severity)
    """Severities of the incidents."""
    clusters: NameFilter = NameFilter()
    """Names of the clusters of the incidents."""


class Slack(ConfigModel):
    """Delivery of incidents to Slack. Without this table they are printed to the console.

    Exactly one of `token_file`, `token_env`, `token_credential`, `webhook_file`, `webhook_env` and
    `webhook_credential` is required. With a bot token (`xoxb-...`) messages are edited as the incident changes; an
    incoming webhook sends plain messages that are never edited.
    """

    channel: Annotated[str, Field(min_length=1)] | None = None
    """Id or name of the channel. Required with a bot token."""
    token_file: Path | None = None
    """File that holds the bot token."""
    token_env: EnvironmentName | None = None
    """Environment variable that holds the bot token."""
    token_credential: CredentialName | None = None
    """systemd credential that holds the bot token."""
    webhook_file: Path | None = None
    """File that holds the address of an incoming webhook."""
    webhook_env: EnvironmentName | None = None
    """Environment variable that holds the address of an incoming webhook."""
    webhook_credential: CredentialName | None = None
    """systemd credential that holds the address of an incoming webhook."""
    base_url: Annotated[str, AfterValidator(_address)] = "https://slack.com/api/"
    """Address of Slack's Web API."""
    routes: tuple[Route, ...] = ()
    """Channels for some of the incidents."""

    @model_validator(mode="after")
    def _require_one_secret(self) -> Self:
        names = [
            f"{secret}_{source}" for secret in ("token", "webhook") for source in Credential.model_fields
            if getattr(self, f"{secret}_{source}") is not None
        ]  # fmt: skip
        if len(names) != 1:
            msg = (
                "exactly one of token_file, token_env, token_credential, webhook_file, webhook_env, webhook_credential "
                f"is required; given: {' and '.join(names) or 'none'}"
            )
            raise ValueError(msg)
        if names[0].startswith("token") and self.channel is None:
            msg = "`channel` is required with a token"
            raise ValueError(msg)
        if names[0].startswith("webhook") and (self.channel is not None or self.routes):
            msg = "an incoming webhook posts to its own channel; `channel` and `routes` need a bot's token"
            raise ValueError(msg)
        return self

    def token(self, environment: Mapping[str, str] = os.environ) -> SecretStr | None:
        """Return the bot token, or None if a webhook is configured. Raises CredentialError."""
        return self._secret("token", environment)

    def webhook(self, environment: Mapping[str, str] = os.environ) -> SecretStr | None:
        """Return the address of the webhook, or None if a token is configured. Raises CredentialError."""
        return self._secret("webhook", environment)

    def _secret(self, secret: str, environment: Mapping[str, str]) -> SecretStr | None:
        sources = {source: getattr(self, f"{secret}_{source}") for source in Credential.model_fields}
        return resolve(Credential(**sources), environment) if any(sources.values()) else None

    def channel_for(self, severity: Severity, cluster: str | None) -> str | None:
        """Return the channel of the first route that matches, else the default channel; None for a webhook."""
        for route in self.routes:
            if severity in route.severities and route.clusters.match(cluster or ""):
                return route.channel
        return self.channel


class Spark(ConfigModel):
    """How Spark checks run: as processes of their own, which need Java 17.

    The daemon itself loads nothing of Spark. A check that exceeds a limit is stopped with all processes it started.
    """

    enabled: bool = True
    """Whether the daemon runs Spark checks. Set to `false` without Java."""
    master: Annotated[str, AfterValidator(_master)] = Field("local[*]", min_length=1)
    """Spark's master: this host, or `spark://host:7077`, `yarn`, `k8s://...`."""
    memory_limit: Size = 4 << 30
    """Resident memory that all processes of one check on this host may use together."""
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
    time_limit: PositiveDuration = 1_800_000
    """How long one check may run."""
    concurrency: int = Field(1, ge=1)
    """How many checks run at the same time; others wait."""


class Check(ConfigModel):
    """Schedule and limits of one Spark check; NAME is its name.

    `offset_history` compares the history in the journal. `log_segments` examines the brokers' logs and
    `replica_divergence` compares replicas; both run only for clusters with `log_directories`. `job_history` searches
    the journal and the `storage_directory` of each `[flink.NAME]` for jobs that came back and for stray job graphs.
    `changelog_restore` reads the changelogs of the stores declared in `state_not_restored` rules and lists the keys
    whose values decreased. A check that fails or exceeds a limit is reported by the rule kind `check_failed`.
    """

    enabled: bool = True
    """Whether the daemon runs the check, on schedule or for an incident."""
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None
    """When the check runs: an interval (`"24h"`), or a cron expression in UTC (`"0 3 * * mon-fri"`) with days by name.

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
