"""The settings in rules.toml as a whole, and the model of each of its tables."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from agent.config.checks import Check, Spark
from agent.config.credentials import Credential, CredentialError, resolve
from agent.config.journal import Journal
from agent.config.receivers import ReceiverSettings, authorities
from agent.config.sections import Agent, Notifications, Slack
from agent.config.self_report import Heartbeat, Http
from agent.config.silences import ConfiguredSilence
from agent.config.sources import Cluster, Flink, Logs, Streams
from agent.config.toml_places import KeyPath
from agent.engine.correlation import Correlation
from agent.engine.incidents import Lifetimes
from agent.engine.rule import Rule
from agent.model.config_types import ConfigModel
from agent.model.declared_stores import DeclaredStore
from agent.model.matchers import Silence
from agent.rules.state_not_restored import StateNotRestored

SECTIONS: Mapping[str, type[ConfigModel]] = {
    "agent": Agent,
    "journal": Journal,
    "incidents": Lifetimes,
    "notifications": Notifications,
    "slack": Slack,
    "http": Http,
    "heartbeat": Heartbeat,
    "spark": Spark,
}
"""Tables that occur once, all optional. Those that contain tables by name: NAMED_TABLES."""

NAMED_MODELS: Mapping[str, type[ConfigModel]] = {
    "clusters": Cluster,
    "flink": Flink,
    "streams": Streams,
    "logs": Logs,
    "rules": Rule,
    "correlations": Correlation,
    "checks": Check,
    "receivers": ReceiverSettings,
}
"""The model of each table by name; that of a rule or a receiver depends on its kind."""

LISTED_MODELS: Mapping[str, type[ConfigModel]] = {"silences": ConfiguredSilence}
"""The model of the tables in each list of tables: LISTED_TABLES."""


class Settings(NamedTuple):
    """A valid configuration."""

    agent: Agent
    journal: Journal
    incidents: Lifetimes
    clusters: Mapping[str, Cluster]
    flink: Mapping[str, Flink]
    streams: Mapping[str, Streams]
    logs: Mapping[str, Logs]
    rules: Mapping[str, Rule]
    correlations: Mapping[str, Correlation]
    slack: Slack | None
    http: Http | None
    heartbeat: Heartbeat | None
    spark: Spark
    checks: Mapping[str, Check]
    """All checks, including those that the file does not mention."""
    silences: tuple[ConfiguredSilence, ...] = ()
    notifications: Notifications = Notifications()
    receivers: Mapping[str, ReceiverSettings] = {}
    is_substitute: bool = False
    """Whether most of it is not the file's, which has mistakes."""

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each rule, by its name."""
        return {name: rule.kind for name, rule in self.rules.items()}

    @property
    def is_console_only(self) -> bool:
        """Whether no one is notified: incidents are only printed."""
        return self.slack is None and not self.receivers

    def silences_at(self, now: int) -> list[Silence]:
        """Return the configured silences that last at `now`, ms."""
        silences = (silence.silence(number, now) for number, silence in enumerate(self.silences, 1))
        return [silence for silence in silences if silence is not None]

    def declared_stores(self, cluster: str | None) -> list[DeclaredStore]:
        """Return the cluster's stores declared in rules of the kind state_not_restored, without duplicates."""
        rules = (rule for rule in self.rules.values() if isinstance(rule, StateNotRestored))
        return list(dict.fromkeys(store for rule in rules for store in rule.stores if store.is_on(cluster)))

    def unreadable_secrets(self) -> Iterator[tuple[KeyPath, Credential, str]]:
        """Yield the key path, the source and the reason of each secret that cannot be read at present."""
        for path, source, read in self._secrets():
            try:
                read()
            except CredentialError as error:
                yield path, source, str(error)

    def _secrets(self) -> Iterator[tuple[KeyPath, Credential, Callable[[], object]]]:
        if self.slack is not None:
            yield ("slack", self.slack.secret_key), self.slack.secret, self.slack.read_secret
            if self.slack.app_token is not None:
                yield ("slack", "app_token"), self.slack.app_token, self.slack.read_app_token
            for path, source, read in authorities(self.slack.ca):
                yield ("slack", *path), source, read
        if self.heartbeat is not None and self.heartbeat.secret is not None:
            key, source = self.heartbeat.secret
            yield ("heartbeat", key), source, self.heartbeat.read_url
        for path, source in self.journal.s3.secrets():
            yield ("journal", "s3", *path), source, partial(resolve, source)
        for name, receiver in self.receivers.items():
            for path, source, read in receiver.secrets():
                yield ("receivers", name, *path), source, read
        for table in ("clusters", "flink", "streams"):
            for name, settings in getattr(self, table).items():
                for path, source in settings.secrets():
                    yield (table, name, *path), source, partial(resolve, source)
