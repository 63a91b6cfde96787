"""The command `init`: look at a real cluster and write a rules.toml that fits it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar

import click
import structlog

from agent.cli.common import EPILOG, fail, silence_logs, wait_option
from agent.cli.doctor import View, read_sources
from agent.clock import now_ms
from agent.config.credentials import SOURCES, Credential
from agent.config.loading import loads
from agent.config.problems import SettingsError, describe_path
from agent.config.settings import Settings
from agent.config.shipped import shipped
from agent.model.config_types import duration_text
from agent.model.exit_status import FAILED, WRONG
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    OFFSETS_TOPIC,
    BrokerRegistration,
    ClusterSettings,
    Commit,
    GroupState,
    LogOffsets,
    TopicSettings,
)
from agent.model.observations.streams import StreamsApplication
from agent.model.text import count, visible
from agent.model.times import rfc3339
from agent.rules.retention_margin import RetentionMargin
from agent.rules.state_not_restored import StateNotRestored

_NAME = "main"
"""The cluster's name in the file."""

_REST = "# [flink.jobs]"
"""Where the part of the shipped rules begins that fits every cluster."""

_SOURCES = "{}=file:PATH, =env:NAME or =credential:NAME"
_SHORT_RETENTION_MS = 86_400_000
_MOST_NAMES = 40
_ANSWER_MS = 5_000

Fact = TypeVar("Fact", bound=Observation)


class Seen(NamedTuple):
    """What the probe found. table: the cluster's, as in rules.toml. unreadable: reasons, sentences.

    offsets_topic: whether `__consumer_offsets` is readable. at: ms.
    """

    table: Mapping[str, Any]
    facts: list[Observation]
    unreadable: list[str]
    offsets_topic: str
    at: int

    def of(self, kind: type[Fact]) -> list[Fact]:
        """Return the facts of a kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def version(self) -> str | None:
        """The oldest version among the brokers, None if unknown."""
        return next((fact.version for fact in self.of(ClusterSettings)), None)


def _read_properties(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for text in values:
        key, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not key:
            msg = "expected KEY=VALUE such as security.protocol=SASL_SSL"
            raise click.BadParameter(msg, param=parameter)
        source, separator, place = value.partition(":")
        properties[key] = {source: place} if separator and source in Credential.model_fields else value
    return properties


@click.command("init", epilog=EPILOG)
@click.option("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]", help="Brokers to connect to first.")
@click.option(
    "--zookeeper", metavar="HOST:PORT[,...][/CHROOT]", help="ZooKeeper of the cluster. Leave out under KRaft."
)
@click.option(
    "--kafka-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_read_properties,
    help="A Kafka client property. A secret only by its source: sasl.password=file:PATH, =env:NAME, =credential:NAME.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("rules.toml"), show_default=True
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@wait_option("How long to wait for what the cluster has not answered.")
def init_command(
    bootstrap_servers: str,
    zookeeper: str | None,
    properties: dict[str, Any],
    output: Path,
    *,
    force: bool,
    wait: int,
) -> None:
    """Look at a cluster and write a configuration that fits it: rules.toml.

    The file has comments with what was seen: groups, topics, Kafka Streams applications, retention, and what the
    credentials do not permit, with the commands that permit it. The cluster is only read.
    """
    if output.exists() and not force:
        fail(WRONG, f"{output} exists; name another file with -o, or overwrite it with --force")
    table: dict[str, Any] = {"bootstrap_servers": bootstrap_servers}
    table |= {"zookeeper": zookeeper} if zookeeper else {}
    table |= {"kafka": properties} if properties else {}
    try:
        overrides = {"clusters": {_NAME: {**table, "poll_interval": "500ms"}}}
        settings = loads("", "options", need_clusters=True, overrides=overrides)
    except SettingsError as error:
        keys = {describe_path(("clusters", _NAME, "kafka", key)): key for key in properties}
        fail(
            WRONG,
            "\n".join(
                # The source of a secret has another form on the command line than in the file.
                f"{found.where}: {found.message.replace(SOURCES, _SOURCES.format(keys.get(found.where, 'KEY')))}"
                for found in error.problems
            ),
        )
    if unreadable := [f"{describe_path(key)}: {reason}" for key, _, reason in settings.unreadable_secrets()]:
        fail(WRONG, "\n".join(unreadable))
    silence_logs()
    seen = _look(settings, table, wait)
    text = render(seen)
    loads(text, str(output), need_clusters=True)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(FAILED, f"{output} cannot be written: {error.strerror}")
    click.echo(f"{output}: written for {_summary(seen)}")
    for reason in seen.unreadable:
        click.echo(f"  limited: {visible(reason)}")
    click.echo(f"Next: backflow doctor --config {output}, then backflow run --config {output}")


def _look(settings: Settings, table: Mapping[str, Any], wait: int) -> Seen:
    """Return what the sources and the admin client see of the cluster; exit if it does not answer."""
    views, failures = read_sources(settings, wait, _is_complete)
    for view in views:
        if not view.facts:
            reason = failures.get(view.name) or view.verdict().problem
            fail(FAILED, f"{view.name}: {visible(reason or '')}\nNothing was written.")
    return Seen(
        table,
        [fact for view in views for fact in view.facts.values()],
        list(dict.fromkeys(line for view in views for line in _reasons(view, failures))),
        _access_to_offsets_topic(settings),
        now_ms(),
    )


def _is_complete(view: View) -> bool:
    """Return whether the source was read, Kafka with the settings of its topics: they come a little later."""
    topics = {fact.topic for fact in view.of(LogOffsets)}
    return view.is_settled() and (not topics or topics == {fact.topic for fact in view.of(TopicSettings)})


def _reasons(view: View, failures: Mapping[str, str]) -> Iterator[str]:
    if view.name in failures:
        yield failures[view.name]
    yield from (fact.reason for fact in view.unavailable())


def _access_to_offsets_topic(settings: Settings) -> str:
    """Return whether the credentials permit to read `__consumer_offsets`, or why that is unknown."""
    from agent.sources.kafka.admin import protocol  # noqa: PLC0415 - the clients take a second to load
    from agent.sources.kafka.admin.client import AdminClient  # noqa: PLC0415 - likewise

    cluster = settings.clusters[_NAME]
    properties = {key: str(value) for key, value in cluster.kafka_properties().items()}
    client = AdminClient(lambda: protocol.Setup(_NAME, properties, cluster.timeout), structlog.get_logger(__name__))
    try:
        client.send(("operations",), protocol.ListOperations(OFFSETS_TOPIC))
        for completed in client.collect(_ANSWER_MS):
            match completed.result:
                case protocol.Operations([]):
                    return "unknown, the brokers do not list permissions (Kafka 2.3 or later does)"
                case protocol.Operations(operations):
                    return _yes({"READ", "ALL"} & set(operations))
                case protocol.Failure() as failure:
                    return "not readable" if failure.is_unauthorized else f"unknown, {visible(failure.text)}"
    finally:
        client.close()
    return "unknown, the brokers did not answer in time"


def render(seen: Seen) -> str:
    """Return the configuration: the cluster's table with what was seen as comments, then the shipped rules."""
    rules = shipped().read_text(encoding="utf-8")
    lines = [
        f"# Backflow's configuration, written by `backflow init` at {rfc3339(seen.at)[:16]}Z.",
        *_commented(f"Seen: {_summary(seen)}.", ""),
        "# `backflow check-config` lists all mistakes with their lines, `backflow doctor` tries what the file names.",
        '# Durations: "500ms", "10s", "5m", "24h", "7d".',
        "",
        f"# {'---- what is monitored ':-<118}",
        "",
        *_cluster_lines(seen),
        "",
        *_permission_lines(seen),
        *_group_lines(seen),
        *_topic_lines(seen),
        *_streams_lines(seen),
    ]
    return "\n".join(lines) + "\n" + rules[rules.index(_REST) :]


def _cluster_lines(seen: Seen) -> Iterator[str]:
    yield f"[clusters.{_NAME}]"
    yield f"bootstrap_servers = {_quoted(seen.table['bootstrap_servers'])}"
    if "zookeeper" in seen.table:
        yield f"zookeeper = {_quoted(seen.table['zookeeper'])}"
    elif seen.version is None or int(seen.version.split(".")[0]) < 4:
        yield '# zookeeper = "zk-1:2181,zk-2:2181,zk-3:2181"     # unless it is KRaft: shows sessions of brokers'
    yield 'groups = { exclude = ["console-consumer-*"] }'
    yield '# topics = { exclude = ["tmp-*"] }                # topics that groups read are monitored in any case'
    if "kafka" in seen.table:
        yield ""
        yield f"[clusters.{_NAME}.kafka]"
        for key, value in seen.table["kafka"].items():
            if isinstance(value, Mapping):
                ((source, place),) = value.items()
                yield f"{_quoted(key)} = {{ {source} = {_quoted(place)} }}"
            else:
                yield f"{_quoted(key)} = {_quoted(value)}"


def _permission_lines(seen: Seen) -> Iterator[str]:
    yield "# What the credentials permit:"
    yield f"# - brokers' settings (DescribeConfigs on the cluster): {_yes(seen.of(ClusterSettings))}"
    yield f"# - topics' settings, such as retention (DescribeConfigs on topics): {_yes(seen.of(TopicSettings))}"
    yield from _commented(f"{OFFSETS_TOPIC} (Read): {seen.offsets_topic}", "- ")
    for reason in seen.unreadable:
        yield from _commented(f"Limited: {reason}", "- ")
    yield "#"


def _group_lines(seen: Seen) -> Iterator[str]:
    groups = {fact.group: fact for fact in seen.of(GroupState) if not fact.is_gone}
    topics: dict[str, set[str]] = {}
    for commit in seen.of(Commit):
        if commit.offset is not None:
            topics.setdefault(commit.group, set()).add(commit.topic)
    names = sorted(groups.keys() | topics)
    yield f"# {count(len(names), 'consumer group')}:"
    for name in names[:_MOST_NAMES]:
        group = groups.get(name)
        state = f"{group.state}, {count(len(group.members), 'member')}" if group else "state unknown"
        read = ", ".join(sorted(topics.get(name, ()))) or "no committed offsets"
        yield from _commented(f"{name} ({state}): {read}", "- ")
    yield from _more(names)
    yield "#"


def _topic_lines(seen: Seen) -> Iterator[str]:
    partitions: dict[str, int] = {}
    for log in seen.of(LogOffsets):
        partitions[log.topic] = partitions.get(log.topic, 0) + 1
    settings = {fact.topic: fact for fact in seen.of(TopicSettings)}
    internal = sorted(name for name in partitions if _is_internal(name))
    names = sorted(partitions.keys() - set(internal))
    yield f"# {count(len(names), 'topic')}, and internal ones: {', '.join(internal) or 'none'}"
    for name in names[:_MOST_NAMES]:
        yield from _commented(f"{name}: {count(partitions[name], 'partition')}{_retention(settings.get(name))}", "- ")
    yield from _more(names)
    for cluster in seen.of(ClusterSettings):
        kept = duration_text(cluster.offsets_retention_ms)
        yield f"# Committed offsets of a group without members expire after {kept}."
    if short := [name for name in names if name in settings and _is_short(settings[name])]:
        text = f"Kept for less than a day, so that a slow reader soon loses records: {', '.join(short)}. Consider a "
        yield from _commented(f"{text}shorter `within` in [rules.{RetentionMargin.kind}].", "")
    yield "#"


def _streams_lines(seen: Seen) -> Iterator[str]:
    applications = seen.of(StreamsApplication)
    if not applications:
        return
    yield "# Kafka Streams applications, found by themselves. [streams.NAME] adds their restore metrics (below);"
    yield f"# `stores` in [rules.{StateNotRestored.kind}] names stores whose values never decrease."
    for fact in sorted(applications, key=lambda found: found.application):
        changelogs = [fact.changelog(store) for store, _ in fact.stores]
        text = f"{fact.application} ({count(fact.instances, 'instance')}): changelogs {', '.join(changelogs) or 'none'}"
        yield from _commented(text, "- ")
    yield "#"


def _summary(seen: Seen) -> str:
    brokers = sorted({fact.broker for fact in seen.of(BrokerRegistration) if not fact.gone})
    groups = {fact.group for fact in seen.of(GroupState) if not fact.is_gone} | {fact.group for fact in seen.of(Commit)}
    topics = {fact.topic for fact in seen.of(LogOffsets)}
    version = f"Kafka {seen.version}{' or later' if seen.version == '4.0' else ''}, " if seen.version else ""
    ids = f"{count(len(brokers), 'broker')} ({', '.join(map(str, brokers))})"
    return f"{version}{ids}, {count(len(topics), 'topic')}, {count(len(groups), 'group')}"


def _retention(settings: TopicSettings | None) -> str:
    if settings is None:
        return ""
    kept = "without limit" if settings.retention_ms < 0 else f"for {duration_text(settings.retention_ms)}"
    size = "" if settings.retention_bytes < 0 else f", at most {settings.retention_bytes:,} bytes"
    deleted = f"kept {kept}{size}" if "delete" in settings.cleanup_policy else ""
    return "".join(f", {part}" for part in (deleted, "compacted" if settings.is_compacted else "") if part)


def _is_short(settings: TopicSettings) -> bool:
    return "delete" in settings.cleanup_policy and 0 <= settings.retention_ms < _SHORT_RETENTION_MS


def _is_internal(topic: str) -> bool:
    return topic.startswith("__") or topic.endswith(("-changelog", "-repartition"))


def _more(names: list[str]) -> Iterator[str]:
    if len(names) > _MOST_NAMES:
        yield f"# - and {len(names) - _MOST_NAMES:,} more"


def _yes(found: Iterable[object]) -> str:
    return "readable" if any(True for _ in found) else "not readable"


def _commented(text: str, bullet: str) -> list[str]:
    """Return the text as lines of a comment; words that are longer than a line stay whole, to be copied."""
    first, rest = f"# {bullet}", f"# {' ' * len(bullet)}"
    return wrap(
        visible(text), 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _quoted(text: str) -> str:
    """Return the text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
