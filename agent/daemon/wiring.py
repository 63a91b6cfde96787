"""Sources, receivers and the archiver made from the configuration."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from agent.config.sections import Slack as SlackSettings
from agent.config.settings import Settings
from agent.config.sources import Cluster
from agent.daemon.health import Health
from agent.model.findings import Incident
from agent.model.observations.base import Available, Observation, Unavailable
from agent.notify.base import Receiver
from agent.notify.console import Console
from agent.notify.http_calls import TIMEOUT_S
from agent.notify.slack import Slack, configure_connections, web_client
from agent.notify.slack_presses import SlackPresses
from agent.notify.slack_socket import SlackSocket
from agent.notify.slack_webhook import Webhook
from agent.rules.log_pattern import LogPattern
from agent.sources.base import Emit, Source
from agent.sources.flink.source import FlinkSource, source_of_part
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from agent.sources.logs.source import LogSource
from agent.sources.streams.changelog_source import ChangelogSource
from agent.sources.streams.metrics_source import StreamsMetricsSource
from agent.sources.zookeeper.source import ZooKeeperSource
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.segments import DAY_MS, Unreadable


def make_sources(settings: Settings, emit_for: Callable[[str, str], Emit], known: list[Observation]) -> list[Source]:
    """Return a source for each monitored system.

    emit_for: returns where the source of a cluster, by its name, emits. known: observations of the earlier run.
    """
    sources: list[Source] = []
    topics = {}
    applications = {
        name: (streams.cluster or next(iter(settings.clusters)), streams.application or name)
        for name, streams in settings.streams.items()
    }
    for name, cluster in settings.clusters.items():
        kafka_settings = KafkaSourceSettings(
            bootstrap_servers=cluster.bootstrap_servers,
            read_properties=partial(_properties, cluster),
            interval=cluster.poll_interval,
            commits=cluster.commits,
            timeout=cluster.timeout,
            groups=cluster.groups,
            topics=cluster.topics,
            watch_partitions=cluster.zookeeper is None,
            streams=[application for on, application in applications.values() if on == name],
            declared={store.changelog for store in settings.declared_stores(name)},
            rules=settings.rules,
        )
        kafka = KafkaSource(name, kafka_settings, emit_for(name, KafkaSource.name), known)
        topics[name] = kafka.topics
        sources.append(kafka)
        if cluster.zookeeper is not None:
            zookeeper = ZooKeeperSource(
                name,
                cluster.zookeeper,
                emit_for(name, ZooKeeperSource.name),
                known,
                interval=cluster.poll_interval,
                topics=cluster.topics,
                also=kafka.is_changelog,
                read_options=cluster.zookeeper_client.options,
            )
            sources.append(zookeeper)
    for name, flink in settings.flink.items():
        emit = emit_for(name, FlinkSource.name)
        sources.append(FlinkSource(name, flink, emit, known, topics=topics.get(flink.kafka or "")))
    for name, cluster in settings.clusters.items():
        if stores := settings.declared_stores(name):
            sources.append(
                ChangelogSource(
                    name,
                    cluster.bootstrap_servers,
                    partial(_properties, cluster),
                    stores,
                    emit_for(name, ChangelogSource.name),
                    known,
                    memory=cluster.changelog_memory,
                    interval=cluster.poll_interval,
                )
            )
    for name, streams in settings.streams.items():
        if streams.metrics:
            emit = emit_for(name, StreamsMetricsSource.name)
            sources.append(StreamsMetricsSource(name, *applications[name], streams, emit, known))
    patterns = [rule.pattern for rule in settings.rules.values() if isinstance(rule, LogPattern)]
    for name, logs in settings.logs.items():
        sources.append(LogSource(name, logs, patterns, emit_for(name, LogSource.name), known))
    return sources


def find_unwatched(sources: Iterable[Source], known: Iterable[Observation], now: int) -> list[Observation]:
    """Return that nothing is unavailable any more of what the configuration no longer names. now: ms.

    Such as ZooKeeper after the change to KRaft: no source reports it, so the outage would not end.
    """
    watched = {(source.name, source.cluster) for source in sources}
    return [
        Available(
            at=max(now, outage.at),
            source=outage.source,
            cluster=outage.cluster,
            group=outage.group,
            topic=outage.topic,
            partition=outage.partition,
        )
        for outage in known
        if isinstance(outage, Unavailable) and (source_of_part(outage.source), outage.cluster) not in watched
    ]


def make_archiver(settings: Settings, begin: int, health: Health, unreadable: Unreadable) -> Archiver | None:
    """Return what ships the journal to the configured archive, None without one. Raises CredentialError.

    begin: the journal's position at the start. health: takes what fails. unreadable: takes damaged files.
    """
    journal = settings.journal
    if journal.archive is None:
        return None
    retention = journal.archive_retention
    return Archiver(
        settings.agent.state_directory / "journal",
        Archive(journal.archive, os.environ | journal.s3.variables()),
        settings.agent.name,
        begin,
        retention=None if retention is None else retention // DAY_MS,
        failed=partial(health.failed, "journal archive"),
        works=partial(health.works, "journal archive"),
        unreadable=unreadable,
    )


def _properties(cluster: Cluster) -> dict[str, str]:
    return {key: str(value) for key, value in cluster.kafka_properties().items() if key != "bootstrap.servers"}


def make_receivers(settings: Settings, stream: TextIO) -> list[Receiver]:
    """Return the receivers of incidents. stream: where the console prints. Raises CredentialError, OSError."""
    if settings.is_console_only:
        return [Console(stream)]
    return [*_slack_receivers(settings.slack), *_other_receivers(settings)]


def make_test_receivers(settings: Settings, stream: TextIO) -> list[Receiver]:
    """Return a receiver for each place to which an incident may go; each takes every incident."""
    slack = settings.slack
    if slack is None or slack.is_webhook:
        return make_receivers(settings, stream)
    channels = [slack.channel, *(route.channel for route in slack.routes)]
    return [*(_slack(slack, channel) for channel in dict.fromkeys(channels)), *_other_receivers(settings)]


def _other_receivers(settings: Settings) -> list[Receiver]:
    """Return those of [receivers.NAME]; their kind is part of the name, so that none is called as Slack's are."""
    return [table.connect(f"{table.kind} {name}") for name, table in settings.receivers.items()]


def _slack_receivers(slack: SlackSettings | None) -> list[Receiver]:
    if slack is None:
        return []
    if slack.is_webhook:
        configure_connections(slack.proxy, slack.ca)
        return [Webhook(slack.read_secret().get_secret_value())]
    copies = (
        _slack(
            slack,
            channel,
            name=f"slack {channel}",
            accepts=partial(slack.is_copied, channel=channel),
            channels=[channel],
            has_buttons=slack.app_token is not None,
        )
        for channel in slack.additional_channels
    )
    chosen = _slack(
        slack,
        slack.channel_for,
        channels=slack.chosen_channels,
        own_channels=[channel for channel in slack.chosen_channels if channel not in slack.additional_channels],
        has_buttons=slack.app_token is not None,
    )
    return [chosen, *copies]


def make_slack_socket(slack: SlackSettings | None) -> SlackSocket | None:
    """Return the socket on which Slack sends presses of buttons; None without an app token. Raises CredentialError."""
    token = None if slack is None else slack.read_app_token()
    if slack is None or token is None:
        return None
    configure_connections(slack.proxy, slack.ca)
    return SlackSocket(token.get_secret_value(), base_url=slack.base_url, proxy=slack.proxy, ca=slack.ca)


def make_slack_presses(
    slack: SlackSettings | None, path: Callable[[], Path], wake: Callable[[], None]
) -> SlackPresses | None:
    """Return what answers presses of buttons in Slack; None without an app token. Raises CredentialError.

    path: returns where the state file is. wake: lets the dispatchers look for what a press changed.
    """
    socket = make_slack_socket(slack)
    if slack is None or socket is None:
        return None
    client = web_client(slack.read_secret().get_secret_value(), slack.base_url, TIMEOUT_S)
    return SlackPresses(socket, client, path, wake)


def _slack(slack: SlackSettings, channel: str | Callable[[Incident], str | None] | None, **options: Any) -> Slack:
    """Return the receiver for a channel, or for the one that a function chooses."""
    configure_connections(slack.proxy, slack.ca)
    secret = slack.read_secret().get_secret_value()

    def channel_of(incident: Incident) -> str:
        return (channel(incident) if callable(channel) else channel) or ""

    return Slack(secret, channel_of, base_url=slack.base_url, **options)
