"""Polls a Kafka cluster: commits, groups and log offsets; partitions and brokers too where no ZooKeeper tells of them.

The controller is not told: under KRaft the metadata names a random broker as such (seen on 4.1.1).
"""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from agent.model.config_types import NameFilter
from agent.model.observations import (
    BrokerRegistration,
    Commit,
    GroupState,
    LogOffsets,
    Observation,
    PartitionState,
    StreamsApplication,
)
from agent.sources.availability import SOURCE, Sights, now_ms
from agent.sources.base import ChangeDetector, Emit
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka.admin_client import Call, Calls, CheckResult
from agent.sources.kafka.changes import KafkaChanges

_PATIENCE_MS = 500
"""How long a step of a poll waits for answers. Later ones are taken by the polls that follow."""

_PARTITIONS_A_CALL = 500
"""librdkafka searches its list once per partition: 10,000 in one call cost four times the CPU of 20 calls (2.16)."""

_RENEWAL_MS = 30_000
"""How often the client is replaced because a coordinator does not answer: it drops what else is in flight."""

_ORDER = (PartitionState, BrokerRegistration, StreamsApplication, GroupState, LogOffsets, Commit)
"""In a batch a re-created topic comes before the fall of its offsets, and a group's state before its commits."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaSourceSettings:
    """How to watch a cluster. interval, timeout: ms.

    properties: librdkafka's client properties (SASL, TLS ...). groups: whose commits; topics: whose log offsets besides
    those committed to and the changelogs of Kafka Streams. watch_partitions: whether leaders, topic ids and brokers are
    told from here (no ZooKeeper). streams: application ids that are taken for Kafka Streams applications whatever their
    groups say. declared: changelogs of stores that rules judge by their values.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    interval: int = 1_000
    timeout: int = 10_000
    groups: NameFilter = field(default_factory=NameFilter)
    topics: NameFilter = field(default_factory=NameFilter)
    watch_partitions: bool = False
    streams: Collection[str] = ()
    declared: Collection[str] = ()


class KafkaSource:
    """One cluster. A poll reads groups, the tasks of Kafka Streams where a rebalance may have moved them, commits, log
    offsets (no end is older than those commits), then partitions.

    Calls that a broker leaves hanging stretch no poll: they stay in flight, and their answers are taken when they come.
    """

    name = "kafka"

    def __init__(
        self, cluster: str, settings: KafkaSourceSettings, emit: Emit, known: Iterable[Observation] = ()
    ) -> None:
        """known: the last observation of each subject before this run."""
        known = [one for one in known if getattr(one, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = settings.interval
        self._settings = settings
        self._emit = emit
        self._polled = ChangeDetector(known)
        self._sights = Sights(self.name, cluster, known)
        self._view = KafkaChanges(
            cluster,
            settings.groups,
            settings.topics,
            self._polled,
            known,
            watch_partitions=settings.watch_partitions,
            streams=settings.streams,
        )
        properties = {**settings.properties, "bootstrap.servers": settings.bootstrap_servers}
        librdkafka = structlog.get_logger("librdkafka").bind(cluster=cluster)
        self._calls = Calls(wire.Setup(properties, settings.timeout), librdkafka)
        self._logged: set[tuple[str, str]] = set()
        self._polling = threading.Lock()
        self._closed = False

    def poll(self) -> None:
        """Look once and emit what changed, in one batch."""
        with self._polling:
            late = self._calls.flying
            self._view.begin()
            for ask in (
                self._ask_what_there_is,
                self._ask_states,
                self._ask_tasks,
                self._ask_commits,
                self._ask_log_offsets,
                self._ask_topics,
            ):
                if self._closed:
                    return
                ask()
                for answer in self._calls.collect(_PATIENCE_MS):
                    self._view.take(answer)
                    self._log_undecodable(answer)
            overdue = [call for call in self._calls.flying if call in late]
            self._renew_client(overdue)
            unseen = self._view.unseen(overdue, self._calls.complaint, self._sights)
            if SOURCE not in unseen:
                self._calls.complaint = None
            sights = self._sights.now(now_ms(), unseen)
            facts = sorted(self._view.facts(), key=lambda one: _ORDER.index(type(one)))
            changes = self._polled.changes([*sights, *facts])
            if changes and not self._closed:
                self._emit(changes)
            self._log_applications(facts)

    def topics(self) -> list[str]:
        """All topics of the cluster, as last read. May be asked from any thread."""
        return self._view.every_topic

    def is_changelog(self, topic: str) -> bool:
        """Whether the topic is a changelog of a Kafka Streams application found. May be asked from any thread."""
        return self._view.streams.owns(topic)

    def close(self) -> None:
        """End the client, and a poll that is under way with it."""
        self._closed = True
        with self._polling:  # a poll waits for half a second at most before it sees that it is over
            self._calls.close()

    def _renew_client(self, overdue: list[Call]) -> None:
        """Replace a client that would wait for a coordinator for ever (the reasons stand in kafka_client)."""
        now = now_ms()
        stuck = [
            call
            for call in overdue
            if isinstance(call.question, wire.ListCommits | wire.DescribeGroup)
            and now - call.asked > self._settings.timeout
        ]
        if self._view.out_of_date or (stuck and self._calls.age > _RENEWAL_MS):
            self._view.give_up(overdue)
            self._calls.renew()

    def _ask_what_there_is(self) -> None:
        self._calls.ask(("groups",), wire.ListGroups())
        self._calls.ask(("layout",), wire.Layout())

    def _ask_states(self) -> None:
        for group in self._view.groups:
            self._calls.ask(("states", group), wire.DescribeGroup(group))

    def _ask_tasks(self) -> None:
        for group in self._view.streams.untold:
            self._calls.ask(("tasks", group), wire.ListTasks(group))

    def _ask_commits(self) -> None:
        """Of groups whose coordinator has just answered: one that refuses this call crashes librdkafka."""
        flying = {call.key for call in self._calls.flying}
        for group in self._view.groups_in_sight:
            if ("states", group) not in flying:
                self._calls.ask(("commits", group), wire.ListCommits(group))

    def _ask_log_offsets(self) -> None:
        flying = {
            (call.whom, place)
            for call in self._calls.flying
            if isinstance(call.question, wire.ListOffsets)
            for place in call.question.places
        }
        for leader, led in self._view.by_leader().items():
            whom = ("offsets", leader)
            places = [place for place in led if (whom, place) not in flying]
            for first in range(0, len(places), _PARTITIONS_A_CALL):
                some = places[first : first + _PARTITIONS_A_CALL]
                self._calls.ask((*whom, some[0]), wire.ListOffsets(some), whom)

    def _ask_topics(self) -> None:
        topics = self._view.topics
        if topics:
            self._calls.ask(("topics",), wire.DescribeTopics(topics))

    def _log_undecodable(self, answer: CheckResult) -> None:
        """Say once of an application that its tasks cannot be read; they are guessed then."""
        match answer:
            case CheckResult(call=Call(question=wire.ListTasks(group)), result=wire.Tasks(undecodable=str(reason))):
                if self._first(group, reason):
                    log.warning("cannot decode tasks", cluster=self.cluster, application=group, reason=reason)

    def _log_applications(self, facts: Iterable[Observation]) -> None:
        """Say once of each application what was found, and again where it has other stores."""
        for one in facts:
            if isinstance(one, StreamsApplication) and self._first(one.application, str(one.stores)):
                stores = [store for store, _ in one.stores]
                log.info(
                    "Kafka Streams application",
                    cluster=self.cluster,
                    application=one.application,
                    instances=one.instances,
                    stores=stores,
                    declared=[each for each in stores if one.changelog(each) in self._settings.declared],
                )

    def _first(self, application: str, what: str) -> bool:
        first = (application, what) not in self._logged
        self._logged.add((application, what))
        return first
