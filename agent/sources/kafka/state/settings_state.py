"""Settings of a cluster's brokers and topics, which are read seldom. Makes no calls."""

import re
from collections.abc import Collection

from agent.model.observations.kafka import ClusterSettings, TopicSettings
from agent.sources.kafka.admin import protocol

_EVERY_MS = 600_000
"""How often settings are read: they change seldom, and a broker returns hundreds of them."""

_TOPICS_PER_CALL = 100

_VERSION = re.compile(r"\d+(\.\d+)+")

_WITHOUT_PROTOCOL_VERSION = "4.0"
"""From this version on brokers have no inter.broker.protocol.version."""


class SettingsState:
    """When to read settings, and what they are.

    Reading requires the permission DescribeConfigs, which nothing else does. A refused request is repeated after
    `_EVERY_MS`, as is one that a broker is too old for.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._brokers: dict[int, protocol.BrokerSettings] = {}
        self._brokers_read_at: dict[int, int] = {}
        self._topics_read_at: dict[str, int] = {}

    def due_brokers(self, brokers: Collection[int], now: int) -> list[int]:
        """Return the brokers whose settings to read. brokers: all of the cluster."""
        for broker in self._brokers_read_at.keys() - set(brokers):
            self._brokers_read_at.pop(broker)
            self._brokers.pop(broker, None)
        return sorted(broker for broker in brokers if now - self._brokers_read_at.get(broker, 0) >= _EVERY_MS)

    def due_topics(self, topics: Collection[str], now: int) -> list[str]:
        """Return the topics whose settings to read in one call. topics: all that are watched."""
        for topic in self._topics_read_at.keys() - set(topics):
            del self._topics_read_at[topic]  # it may be created again
        due = sorted(topic for topic in topics if now - self._topics_read_at.get(topic, 0) >= _EVERY_MS)
        return due[:_TOPICS_PER_CALL]

    def apply_broker(
        self, broker: int, result: protocol.BrokerSettings | protocol.Failure, at: int
    ) -> list[ClusterSettings]:
        """Return the settings of the cluster, or nothing if they could not be read.

        If brokers differ: the shortest retention, the longest timeout, the oldest version.
        """
        if isinstance(result, protocol.Failure):
            if result.is_final:
                self._brokers_read_at[broker] = at
            return []
        self._brokers_read_at[broker] = at
        self._brokers[broker] = result
        settings = self._brokers.values()
        return [
            ClusterSettings(
                at=at,
                cluster=self._cluster,
                offsets_retention_ms=min(of_broker.offsets_retention_ms for of_broker in settings),
                transaction_max_timeout_ms=max(of_broker.transaction_max_timeout_ms for of_broker in settings),
                version=min((_version(of_broker.protocol_version) for of_broker in settings), key=_as_numbers),
            )
        ]

    def apply_topics(self, results: dict[str, TopicSettings | protocol.Failure], at: int) -> list[TopicSettings]:
        """Return the settings of the topics that could be read."""
        for topic, result in results.items():
            if isinstance(result, TopicSettings) or result.is_final:
                self._topics_read_at[topic] = at
        return [result for result in results.values() if isinstance(result, TopicSettings)]


def _version(protocol_version: str | None) -> str:
    """Return the version of an inter.broker.protocol.version, which may be `2.8-IV1`."""
    found = _VERSION.match(protocol_version or "")
    return found[0] if found else _WITHOUT_PROTOCOL_VERSION


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
