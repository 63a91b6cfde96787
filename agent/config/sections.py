"""The tables of rules.toml that are not rules or correlations, as types: their keys, defaults and what they mean."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.config.check_sections import LogDirectories, Size
from agent.config.credentials import Credential, CredentialName, EnvironmentName, resolve
from agent.config.kafka_properties import KafkaValue
from agent.model.config_types import ConfigModel, NameFilter, PositiveDuration
from agent.model.findings import Severity

SMALLEST_MEMORY = 96_000_000
"""What following changelogs takes at least, bytes."""

_SERVER = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::\d{1,5})?"
_BOOTSTRAP = re.compile(rf"(?:\w+://)?{_SERVER}(?:,(?:\w+://)?{_SERVER})*")
_ENSEMBLE = re.compile(rf"{_SERVER}(?:,{_SERVER})*(?:/[^\s,]*)?")


def _bootstrap_servers(value: str) -> str:
    return _servers(value, _BOOTSTRAP, '"kafka-1:9092,kafka-2:9092"')


def ensemble(value: str) -> str:
    """ZooKeeper's servers and chroot, well formed. Raises ValueError."""
    return _servers(value, _ENSEMBLE, '"zk-1:2181,zk-2:2181" or "zk-1:2181,zk-2:2181/chroot"')


def _address(value: str) -> str:
    if not re.fullmatch(r"https?://\S+", value):
        msg = f'expected an address such as "https://slack.com/api/", got "{value}"'
        raise ValueError(msg)
    return value


def _servers(value: str, pattern: re.Pattern[str], example: str) -> str:
    servers = ",".join(one.strip() for one in value.split(","))
    if not pattern.fullmatch(servers):
        msg = f'expected servers such as {example}, got "{value}"'
        raise ValueError(msg)
    return servers


class Agent(ConfigModel):
    """[agent]: the daemon itself."""

    state_directory: Path = Field(
        default_factory=lambda: Path((os.environ.get("STATE_DIRECTORY") or "backflow-state").split(":")[0])
    )
    """Journal, incidents and outbox. Default: the one systemd gives, else ./backflow-state."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: colours on a terminal, JSON elsewhere."""


class Journal(ConfigModel):
    """[journal]: the observations kept."""

    retention: PositiveDuration = 30 * 86_400_000
    """How long an observation is kept."""


class ZooKeeperAuth(Credential):
    """One of ZooKeeper's authentications; the secret is what the scheme wants, "user:password" for digest."""

    scheme: str = "digest"


class ZooKeeperSasl(ConfigModel):
    """SASL towards ZooKeeper, as kazoo takes it."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"]
    username: str | None = None
    password: Credential | None = None
    service: str | None = None
    principal: str | None = None


class ZooKeeperClient(ConfigModel):
    """[clusters.NAME.zookeeper_client]: how the agent connects to ZooKeeper."""

    session_timeout: PositiveDuration = 10_000
    auth: tuple[ZooKeeperAuth, ...] = ()
    sasl: ZooKeeperSasl | None = None
    use_ssl: bool = False
    certfile: Path | None = None
    keyfile: Path | None = None
    keyfile_password: Credential | None = None
    ca: Path | None = None
    verify_certs: bool = True
    check_hostname: bool = False

    @model_validator(mode="after")
    def _tls_is_on_where_it_is_set(self) -> Self:
        if not self.use_ssl and any((self.certfile, self.keyfile, self.keyfile_password, self.ca)):
            msg = "certfile, keyfile, keyfile_password and ca have no effect without `use_ssl = true`"
            raise ValueError(msg)
        return self

    def options(self, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """The keyword arguments of kazoo's KazooClient but for the hosts, secrets and all. Raises CredentialError."""
        options: dict[str, Any] = {"timeout": self.session_timeout / 1000}
        if self.auth:
            options["auth_data"] = [(one.scheme, resolve(one, environment).get_secret_value()) for one in self.auth]
        if self.sasl:
            options["sasl_options"] = _revealed(self.sasl, environment)
        if self.use_ssl:
            options |= _revealed(self, environment, "certfile", "keyfile", "keyfile_password", "ca", "verify_certs")
            options |= {"use_ssl": True, "check_hostname": self.check_hostname}
        return options


def _revealed(section: ConfigModel, environment: Mapping[str, str], *names: str) -> dict[str, Any]:
    """The section's fields that are set, credentials resolved and paths as text."""
    revealed = {}
    for name in names or type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Credential):
            value = resolve(value, environment).get_secret_value()
        if value is not None:
            revealed[name] = str(value) if isinstance(value, Path) else value
    return revealed


class Cluster(ConfigModel):
    """[clusters.NAME]: a Kafka cluster to watch."""

    bootstrap_servers: Annotated[str, AfterValidator(_bootstrap_servers)]
    zookeeper: Annotated[str, AfterValidator(ensemble)] | None = None
    """ZooKeeper's servers, the chroot behind the last; None under KRaft."""
    poll_interval: PositiveDuration = 2_000
    timeout: PositiveDuration = 5_000
    """How long a poll waits for answers."""
    groups: NameFilter = NameFilter()
    topics: NameFilter = NameFilter()
    kafka: dict[str, KafkaValue] = Field(default_factory=dict)
    """librdkafka's client properties by name."""
    zookeeper_client: ZooKeeperClient = ZooKeeperClient()
    changelog_memory: Annotated[Size, Field(ge=SMALLEST_MEMORY)] = 256 << 20
    """What following the changelogs of declared stores may take, bytes."""
    log_directories: LogDirectories = Field(default_factory=dict)
    """Where Spark checks find the brokers' logs: by broker id a directory, URL or digest, or several."""

    @model_validator(mode="after")
    def _there_is_a_zookeeper_to_connect_to(self) -> Self:
        if self.zookeeper is None and self.zookeeper_client != ZooKeeperClient():
            msg = "`zookeeper_client` has no effect without `zookeeper`"
            raise ValueError(msg)
        return self

    def kafka_properties(self, environment: Mapping[str, str] = os.environ) -> dict[str, str | int | bool]:
        """What confluent-kafka's clients take, secrets and all: never to be logged. Raises CredentialError."""
        return {"bootstrap.servers": self.bootstrap_servers} | {
            name: resolve(value, environment).get_secret_value() if isinstance(value, Credential) else value
            for name, value in self.kafka.items()
        }


class Route(ConfigModel):
    """[[slack.routes]]: incidents of these severities and clusters go to another channel."""

    channel: str = Field(min_length=1)
    severities: tuple[Severity, ...] = tuple(Severity)
    clusters: NameFilter = NameFilter()


class Slack(ConfigModel):
    """[slack]: where incidents are posted: a bot's token and channels, or one incoming webhook."""

    channel: Annotated[str, Field(min_length=1)] | None = None
    token_file: Path | None = None
    token_env: EnvironmentName | None = None
    token_credential: CredentialName | None = None
    webhook_file: Path | None = None
    webhook_env: EnvironmentName | None = None
    webhook_credential: CredentialName | None = None
    base_url: Annotated[str, AfterValidator(_address)] = "https://slack.com/api/"
    routes: tuple[Route, ...] = ()

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        names = [
            f"{what}_{place}" for what in ("token", "webhook") for place in Credential.model_fields
            if getattr(self, f"{what}_{place}") is not None
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
        """The bot's token; None where a webhook is used. Raises CredentialError."""
        return self._secret("token", environment)

    def webhook(self, environment: Mapping[str, str] = os.environ) -> SecretStr | None:
        """The incoming webhook's address; None where a token is used. Raises CredentialError."""
        return self._secret("webhook", environment)

    def _secret(self, what: str, environment: Mapping[str, str]) -> SecretStr | None:
        places = {place: getattr(self, f"{what}_{place}") for place in Credential.model_fields}
        return resolve(Credential(**places), environment) if any(places.values()) else None

    def channel_for(self, severity: Severity, cluster: str | None) -> str | None:
        """The channel for an incident: the first route that takes it, else the default; None for a webhook."""
        for route in self.routes:
            if severity in route.severities and route.clusters.match(cluster or ""):
                return route.channel
        return self.channel
