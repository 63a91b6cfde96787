"""Tables of rules.toml about what is monitored: [clusters.NAME], [flink.NAME], [streams.NAME] and [logs.NAME]."""

import codecs
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agent.config.checks import Size
from agent.config.credentials import Credential, resolve
from agent.config.http_client import HttpClient
from agent.config.kafka_properties import PROTOCOLS, KafkaValue
from agent.config.schedules import zone_name
from agent.config.toml_places import KeyPath
from agent.config.zookeeper import SERVER, Ensemble, ZooKeeperClient, check_ports, without_blanks
from agent.model.config_types import ConfigModel, PositiveDuration, non_empty
from agent.model.name_filter import NameFilter

SMALLEST_MEMORY = 96_000_000
"""Lower limit of `changelog_memory`, bytes."""

_BOOTSTRAP = re.compile(rf"(?:\w+://)?{SERVER}(?:,(?:\w+://)?{SERVER})*")
_PROTOCOL = re.compile(r"(\w+)://")


def _bootstrap_servers(value: str) -> str:
    servers = without_blanks(value)
    if not _BOOTSTRAP.fullmatch(servers):
        msg = f'expected servers such as "kafka-1:9092,kafka-2:9092", got "{value}"'
        raise ValueError(msg)
    for protocol in _PROTOCOL.findall(servers):
        if protocol.upper() not in PROTOCOLS:
            msg = f'"{protocol}://" is no protocol of Kafka; expected servers such as "kafka-1:9092,kafka-2:9092"'
            raise ValueError(msg)
    check_ports(servers)
    return servers


def _http_address(value: str, expected: str, *, allow_query: bool = False) -> str:
    address = value.strip()
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or (parts.query and not allow_query) or parts.fragment or any(map(str.isspace, address)):
        msg = f'expected {expected}, got "{value}"'
        raise ValueError(msg)
    if parts.username is not None:
        msg = "a user name or password must not be written in this file"
        raise ValueError(msg)
    return address


def _rest_address(value: str) -> str:
    return _http_address(value, 'the REST address of a JobManager such as "http://jobmanager-1:8081"').rstrip("/")


def _metrics_address(value: str) -> str:
    expected = 'the address of an instance\'s metrics such as "http://app-1:9404/metrics"'
    return _http_address(value, expected, allow_query=True)


def _encoding(value: str) -> str:
    try:
        "\n".encode(value)
    except (LookupError, UnicodeError) as error:
        msg = f'unknown text encoding "{value}"; expected one such as "utf-8", "latin-1" or "utf-16"'
        raise ValueError(msg) from error
    return codecs.lookup(value).name.removesuffix("-sig")  # a byte order mark occurs once, at the start of a file


def _broker_id(key: str) -> int:
    if not key.isascii() or not key.isdigit():
        msg = f'expected a broker id, got "{key}"'
        raise ValueError(msg)
    return int(key)


def _directories(value: Any) -> Any:
    """Accept one directory or a list of them; strict mode requires a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


LogDirectories = dict[
    Annotated[int, BeforeValidator(_broker_id)],
    Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_directories), Field(min_length=1)],
]
"""Log directories, URLs or digests by broker id."""


class Cluster(ConfigModel):
    """A Kafka cluster to monitor. NAME appears in incidents.

    `groups` and `topics` select what is monitored. The log offsets of partitions with committed offsets and the
    changelogs of Kafka Streams applications are read in any case.
    """

    bootstrap_servers: Annotated[str, AfterValidator(_bootstrap_servers)]
    """Brokers to connect to first, `host:port`, separated by commas."""
    zookeeper: Ensemble | None = None
    """ZooKeeper servers with an optional chroot after the last (`"zk-1:2181,zk-2:2181/kafka"`). Leave out for KRaft."""
    poll_interval: PositiveDuration = 2_000
    """How often offsets, leaders and groups are read."""
    commits: Literal["poll", "tail", "auto"] = "poll"
    """How committed offsets are read.

    `poll` asks each group's coordinator every `poll_interval`. `tail` reads each commit from the topic
    `__consumer_offsets` as soon as it is made, which needs the permission to read that topic; a group whose commits
    cannot be read there at present is polled. `auto` is `tail` without a report where that is not permitted.
    """
    timeout: PositiveDuration = 5_000
    """How long one poll waits for responses."""
    groups: NameFilter = NameFilter()
    """Consumer groups to monitor."""
    topics: NameFilter = NameFilter()
    """Topics to monitor. Leaders and replicas of a topic that was monitored before are watched until it is deleted."""
    kafka: dict[str, KafkaValue] = Field(default_factory=dict)
    """Client properties of [librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md).

    Property names contain dots and therefore need quotes. Values are text, whole numbers, `true` or `false`.
    Passwords, PEM keys and other secrets must be given by their source ([Secrets](#secrets)); any property may be.
    """
    zookeeper_client: ZooKeeperClient = ZooKeeperClient()
    """How to connect to ZooKeeper."""
    changelog_memory: Annotated[Size, Field(ge=SMALLEST_MEMORY)] = 256 << 20
    """Memory for following the changelogs of the stores declared in `state_not_restored` rules; at least 96 MB."""
    log_directories: LogDirectories = Field(default_factory=dict)
    """Where Spark checks read the brokers' logs, by broker id.

    A log directory as the hosts of the Spark driver and its workers see it (a mount or a copy), a URL (`hdfs://`,
    `s3://`, whatever pyarrow opens), or a digest made by `backflow digest` on the broker's host. A list if the broker
    has several. They are only read.
    """

    @model_validator(mode="after")
    def _require_zookeeper(self) -> Self:
        if self.zookeeper is None and self.zookeeper_client != ZooKeeperClient():
            msg = "`zookeeper_client` has no effect without `zookeeper`"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _reject_other_protocols(self) -> Self:
        """librdkafka leaves out servers with another protocol than that of its clients."""
        protocol = self.kafka.get("security.protocol", "plaintext")
        named = _PROTOCOL.findall(self.bootstrap_servers)
        other = next((name for name in named if name.lower() != str(protocol).lower()), None)
        if other is not None and not isinstance(protocol, Credential):
            msg = (
                f'`bootstrap_servers` begins an address with "{other}://", but the clients use {protocol}; '
                f'write `kafka."security.protocol" = "{other.lower()}"`, or leave out "{other}://"'
            )
            raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        for name, value in self.kafka.items():
            if isinstance(value, Credential):
                yield ("kafka", name), value
        for path, source in self.zookeeper_client.secrets():
            yield ("zookeeper_client", *path), source

    def kafka_properties(self, environment: Mapping[str, str] = os.environ) -> dict[str, str | int | bool]:
        """Return the properties for confluent-kafka's clients.

        They include secrets and must not be logged. Raises CredentialError.
        """
        return {"bootstrap.servers": self.bootstrap_servers} | {
            name: resolve(value, environment).get_secret_value() if isinstance(value, Credential) else value
            for name, value in self.kafka.items()
        }


class Flink(ConfigModel):
    """A Flink cluster to monitor (1.4 to 2.x).

    REST alone shows jobs, checkpoints and source positions. ZooKeeper shows the leading JobManager and the job graphs
    that were left behind; without it Backflow cannot warn before a finished job comes back.
    """

    rest: Annotated[tuple[Annotated[str, AfterValidator(_rest_address)], ...], AfterValidator(non_empty)]
    """REST addresses of all JobManagers, including standbys: `["http://jobmanager-1:8081"]`."""
    zookeeper: Ensemble | None = None
    """ZooKeeper servers of Flink's high availability, with an optional chroot after the last."""
    zookeeper_root: str = "/flink"
    """Flink's `high-availability.zookeeper.path.root`."""
    cluster_id: str = "/default"
    """Flink's `high-availability.cluster-id`."""
    zookeeper_client: ZooKeeperClient = ZooKeeperClient()
    """How to connect to ZooKeeper."""
    http_client: HttpClient = HttpClient()
    """How to connect to the REST addresses."""
    storage_directory: Path | None = None
    """Flink's `high-availability.storageDir` as a path on this host. It is only read."""
    kafka: str | None = None
    """The `[clusters.NAME]` that its jobs read. Without it source positions are not read."""
    jobs: NameFilter = NameFilter()
    """Jobs, by name, whose state, checkpoints and positions are monitored."""
    poll_interval: PositiveDuration = 2_000
    """How often jobs, checkpoints and high-availability data are read."""
    timeout: PositiveDuration = 5_000
    """How long one poll waits for the list of jobs, and for all responses about one job."""
    metrics_interval: PositiveDuration = 10_000
    """How often source positions are read. Flink renews them every 10 s (`metrics.fetcher.update-interval`)."""

    @model_validator(mode="after")
    def _require_zookeeper(self) -> Self:
        if self.zookeeper is None:
            given = {"zookeeper_root", "cluster_id", "zookeeper_client"} & self.model_fields_set
            if self.storage_directory is not None:
                given -= {"cluster_id"}
            if given:
                msg = f"`{min(given)}` has no effect without `zookeeper`"
                raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        for name, client in (("zookeeper_client", self.zookeeper_client), ("http_client", self.http_client)):
            for path, source in client.secrets():
                yield (name, *path), source

    @property
    def zookeeper_path(self) -> str:
        """The znode that holds the high-availability data of the cluster, such as /flink/default."""
        parts = [part.strip("/") for part in (self.zookeeper_root, self.cluster_id)]
        return "/" + "/".join(part for part in parts if part)


class Streams(ConfigModel):
    """A Kafka Streams application that needs configuration; others are found without it.

    Needed for an application whose group has never been seen with members or uses an assignor of its own, and to
    read restore metrics (3.5 or later): with them an incident says how much of a store was restored when its task
    moved.

        [streams.shop]
        metrics = ["http://shop-1:9404/metrics", "http://shop-2:9404/metrics"]

    The addresses are those of the Prometheus JMX exporter with its default naming, or of Micrometer's
    `KafkaStreamsMetrics`. The application must have `metrics.recording.level=DEBUG`: at `INFO` Kafka Streams does not
    count restored records and reports 0, which Backflow ignores.
    """

    cluster: str | None = None
    """The `[clusters.NAME]` it runs on. Required if there are several."""
    application: Annotated[str, Field(min_length=1)] | None = None
    """Its `application.id`. Default: the table's name."""
    metrics: tuple[Annotated[str, AfterValidator(_metrics_address)], ...] = ()
    """Addresses of its instances' metrics in Prometheus format, one per instance."""
    http_client: HttpClient = HttpClient()
    """How to connect to these addresses."""
    metrics_interval: PositiveDuration = 10_000
    """How often the metrics are read."""
    timeout: PositiveDuration = 5_000
    """How long one poll waits for responses."""

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        for path, source in self.http_client.secrets():
            yield ("http_client", *path), source


class Logs(ConfigModel):
    """Log files to follow: of brokers, ZooKeeper, Flink or consumers.

    They are searched for lines that explain why a reader was reset, and for the patterns of `log_pattern` rules.

        [logs.task-managers]
        paths = ["/mnt/logs/flink-*-taskexecutor-*.log"]
        cluster = "main"
        flink = "jobs"
        time_zone = "Europe/Berlin"
    """

    paths: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(non_empty)]
    """Shell patterns of the files. Rotated files (`server.log.1`) are found without being named."""
    component: Literal["kafka", "zookeeper", "consumer", "librdkafka", "streams", "flink"] | None = None
    """What writes the files. Default: recognised line by line."""
    cluster: str | None = None
    """The `[clusters.NAME]` whose topics and brokers the lines mention."""
    flink: str | None = None
    """The `[flink.NAME]` whose jobs the lines mention."""
    host: str | None = None
    """The host that wrote the files, shown in incidents."""
    time_zone: Annotated[str, AfterValidator(zone_name)] = "UTC"
    """Time zone of timestamps without one, an IANA name. A wrong zone raises `source_unavailable`."""
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    """Text encoding."""
    poll_interval: PositiveDuration = 1_000
    """How often the files are read."""
