"""Polls a Kafka cluster by AdminClient: commits, groups, log offsets; partitions and brokers where no ZooKeeper tells.

The controller is not told: under KRaft the metadata names a random broker as such (seen on 4.1.1).
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from agent.observations import BrokerRegistration, Commit, GroupState, LogOffsets, Observation, PartitionState
from agent.options import Names
from agent.sources import Emit, Polled
from agent.sources.calls import Calls, Futures, in_thread
from agent.sources.kafka_view import KafkaView, Place, places_of
from agent.sources.sight import Sights, now_ms

_PATIENCE_MS = 500
"""How long a step of a poll waits for answers. Later ones are taken by the polls that follow."""

_METADATA_TIMEOUT_MS = 3_000
"""Any broker can answer for metadata, so do not wait long for a frozen one: the client asks another next time."""

_PARTITIONS_A_CALL = 500
"""librdkafka searches its list once per partition: 10,000 in one call cost four times the CPU of 20 calls (2.15)."""

_CLIENT_DEFAULTS = {"client.id": "backflow", "reconnect.backoff.max.ms": "2000"}

_ORDER = (PartitionState, BrokerRegistration, GroupState, LogOffsets, Commit)
"""In a batch a re-created topic comes before the fall of its offsets, and a group's state before its commits."""


@dataclass(frozen=True, kw_only=True)
class KafkaSourceSettings:
    """How to watch a cluster. interval, timeout: ms.

    properties: librdkafka's client properties (SASL, TLS ...). groups: whose commits; topics: whose log offsets besides
    those committed to. watch_partitions: whether leaders, topic ids and brokers are told from here (no ZooKeeper).
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    interval: int = 1_000
    timeout: int = 10_000
    groups: Names = field(default_factory=Names)
    topics: Names = field(default_factory=Names)
    watch_partitions: bool = False


class KafkaSource:
    """One cluster. A poll reads commits, then log offsets (an end is never older than those commits), then the rest.

    Calls that a broker leaves hanging stretch no poll: they stay in flight, and their answers are taken when they come.
    """

    name = "kafka"

    def __init__(
        self, cluster: str, settings: KafkaSourceSettings, emit: Emit, known: Iterable[Observation] = ()
    ) -> None:
        """known: the last observation of each subject before this run. Raises KafkaException on an unknown property."""
        known = [one for one in known if getattr(one, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = settings.interval
        self._settings = settings
        self._emit = emit
        self._polled = Polled(known)
        self._sights = Sights(self.name, cluster, known)
        self._view = KafkaView(
            cluster, settings.groups, self._polled, known, watch_partitions=settings.watch_partitions
        )
        self._calls = Calls()
        properties: dict[str, Any] = _CLIENT_DEFAULTS | dict(settings.properties)
        properties |= {"bootstrap.servers": settings.bootstrap_servers, "error_cb": self._view.client_failed}
        self._admin = AdminClient(properties, logger=structlog.get_logger("librdkafka").bind(cluster=cluster))
        self._seconds = settings.timeout / 1000
        self._polling = threading.Lock()
        self._closed = False

    def poll(self) -> None:
        """Look once and emit what changed, in one batch."""
        with self._polling:
            late = {call.key for call in self._calls.flying}
            self._view.begin()
            self._admin.poll(0)  # lets the client log, and complain to the view
            for ask in (self._ask_what_there_is, self._ask_commits, self._ask_log_offsets, self._ask_states):
                if self._closed:
                    return
                ask()
                for answer in self._calls.collect(_PATIENCE_MS):
                    self._view.take(answer)
            overdue = [call for call in self._calls.flying if call.key in late]
            sights = self._sights.now(now_ms(), self._view.unseen(overdue, self._sights))
            facts = sorted(self._view.facts(), key=lambda one: _ORDER.index(type(one)))
            changes = self._polled.changes([*sights, *facts])
            if changes and not self._closed:
                self._emit(changes)

    def close(self) -> None:
        """Let go of the client within about 3 s; where a call hangs, a thread that nobody waits for does it later."""
        self._closed = True
        self._polling.acquire(timeout=1)
        ending = threading.Thread(target=self._end, name="kafka-end", daemon=True)
        ending.start()
        ending.join(1.5)

    def _end(self) -> None:
        """The client must not go while a thread is inside it; calls by future it fails itself."""
        wait([future for call in self._calls.flying if call.key == ("layout",) for future in call.futures[0].values()])
        self._admin.__exit__(None, None, None)

    def _ask_what_there_is(self) -> None:
        seconds = min(self._seconds, _METADATA_TIMEOUT_MS / 1000)
        self._calls.ask(("groups",), lambda: ({"": self._admin.list_consumer_groups(request_timeout=self._seconds)},))
        self._calls.ask(("layout",), lambda: ({"": in_thread(partial(self._admin.list_topics, timeout=seconds))},))

    def _ask_commits(self) -> None:
        for group in self._view.groups:
            self._calls.ask(("commits", group), partial(self._list_commits, group))

    def _ask_log_offsets(self) -> None:
        flying = {(call.whom, place) for call in self._calls.flying for place in places_of(call)}
        for leader, led in self._view.by_leader(self._settings.topics).items():
            whom = ("offsets", leader)
            places = [place for place in led if (whom, place) not in flying]
            for first in range(0, len(places), _PARTITIONS_A_CALL):
                some = places[first : first + _PARTITIONS_A_CALL]
                self._calls.ask((*whom, some[0]), partial(self._list_offsets, some), whom)

    def _ask_states(self) -> None:
        for group in self._view.groups:
            self._calls.ask(("states", group), partial(self._describe_group, group))
        topics = self._view.topics(self._settings.topics) if self._settings.watch_partitions else []
        if topics:
            self._calls.ask(("topics",), partial(self._describe_topics, topics))

    def _list_commits(self, group: str) -> Futures:
        asked = [ConsumerGroupTopicPartitions(group)]
        return (self._admin.list_consumer_group_offsets(asked, require_stable=False, request_timeout=self._seconds),)

    def _list_offsets(self, places: list[Place]) -> Futures:
        partitions = [TopicPartition(*place) for place in places]
        starts, ends = (
            self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=self._seconds)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return starts, ends

    def _describe_group(self, group: str) -> Futures:
        return (self._admin.describe_consumer_groups([group], request_timeout=self._seconds),)

    def _describe_topics(self, topics: list[str]) -> Futures:
        seconds = min(self._seconds, _METADATA_TIMEOUT_MS / 1000)
        return (self._admin.describe_topics(TopicCollection(topics), request_timeout=seconds),)
