"""Kafka source: polls commits, groups and log offsets; also partitions and brokers if no ZooKeeper is watched.

The controller is not observed: under KRaft the metadata names a random broker as controller (seen on 4.1.1).
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog

from agent.clock import now_ms
from agent.engine.rule import Rule
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    OFFSETS_TOPIC,
    BrokerRegistration,
    ClusterSettings,
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    OpenTransaction,
    PartitionState,
    TopicSettings,
)
from agent.model.observations.streams import StreamsApplication
from agent.sources.availability import SOURCE, AvailabilityTracker, Reasons, Unit
from agent.sources.base import SCOPE, ChangeDetector, Emit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import AdminClient, Call, CompletedCall
from agent.sources.kafka.requests import Requests
from agent.sources.kafka.source_log import SourceLog
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.state.permissions import Acl
from agent.sources.kafka.tail.commit_tail import CommitTail
from agent.sources.kafka.tail.group_turns import GroupTurns
from agent.sources.kafka.tail.progress import Poll

_WAIT_MS = 500
"""How long a step of a poll waits for results. Later ones are collected by the polls that follow."""

_EMITTED_AT_ONCE = 5_000
"""How many observations a batch has at most: what is made of each takes memory that stays with the process."""

_MIN_CLIENT_AGE_MS = 30_000
"""How long a client is kept at least when a coordinator does not answer: a restart drops all calls in flight."""

_BATCH_ORDER = (
    ClusterSettings,
    TopicSettings,
    PartitionState,
    BrokerRegistration,
    StreamsApplication,
    GroupState,
    LogOffsets,
    LastStableOffset,
    OpenTransaction,
    Commit,
)
"""In a batch a re-created topic comes before its lower offsets, and a group's state before its commits."""

_LATE = (
    "Commits are made faster than the agent reads them: it has been behind for more than a minute, and reports late "
    "what happens to groups. Give the agent more CPU, or let it watch fewer groups (groups in rules.toml)."
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaSourceSettings:
    """What to watch in a cluster, and how. interval, timeout: ms.

    read_properties: returns librdkafka's client properties (SASL, TLS ...) with the current secrets. groups: whose
    commits are watched; topics: whose log offsets, besides those of topics committed to and of Kafka Streams
    changelogs. watch_partitions: whether leaders, topic ids and brokers are observed here (no ZooKeeper). streams: ids
    of Kafka Streams applications, whatever their groups look like. declared: changelogs of stores whose values
    rules check. rules: those configured, by name. commits: how they are read, see `Cluster.commits`.
    """

    bootstrap_servers: str
    read_properties: Callable[[], Mapping[str, str]] = dict
    interval: int = 1_000
    timeout: int = 10_000
    groups: NameFilter = field(default_factory=NameFilter)
    topics: NameFilter = field(default_factory=NameFilter)
    watch_partitions: bool = False
    streams: Collection[str] = ()
    declared: Collection[str] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    commits: Literal["poll", "tail", "auto"] = "poll"


class KafkaSource:
    """A Kafka cluster, polled with an admin client.

    A poll reads groups, the tasks of Kafka Streams applications after a rebalance, commits, log offsets (never older
    than those commits), then partitions. A call that hangs does not delay a poll: it stays in flight, and a later poll
    collects its result.
    """

    name = "kafka"

    def __init__(
        self, cluster: str, settings: KafkaSourceSettings, emit: Emit, known: Iterable[Observation] = ()
    ) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        known = [fact for fact in known if getattr(fact, "cluster", None) == cluster]
        self.cluster = cluster
        self.interval = settings.interval
        self.read_at: int | None = None
        self._settings = settings
        self._emit = emit
        self._detector = ChangeDetector(known)
        self._availability = AvailabilityTracker(self.name, cluster, known)
        self._acl = Acl(
            settings.bootstrap_servers,
            _principal(settings),
            AffectedRules(settings.rules, watch_partitions=settings.watch_partitions),
        )
        self._state = ClusterState(
            cluster,
            settings.groups,
            settings.topics,
            self._detector,
            known,
            acl=self._acl,
            watch_partitions=settings.watch_partitions,
            streams=settings.streams,
        )
        client_log = structlog.get_logger("librdkafka").bind(cluster=cluster)
        self._client = AdminClient(self._read_setup, client_log)
        read_before = () if settings.commits == "poll" else known
        self._tail = CommitTail(cluster, self._read_properties, settings.groups.match, emit, read_before)
        self._followed: frozenset[str] = frozenset()
        self._turns = GroupTurns(self._is_followed)
        self._requests = Requests(
            self._client,
            self._state,
            self._turns,
            self._tail,
            watch_partitions=settings.watch_partitions,
            reads_log=settings.commits != "poll",
            log_is_readable=lambda: settings.commits != "poll" and self._commits_failure is None,
            is_followed=self._is_followed,
        )
        self._source_log = SourceLog(cluster, settings.groups, settings.topics, settings.declared)
        self._polling = threading.Lock()
        self._closed = False

    def poll(self) -> None:
        """Read the cluster once and emit what changed, in one batch.

        Raises, after that, what ended the thread that reads the log of commits; the next poll starts it again.
        """
        with self._polling:
            in_flight_before, begun_at = set(self._client.in_flight), now_ms()
            self._state.begin_poll()
            self._apply_followed()
            polls = self._request_all()
            if self._closed:
                return
            overdue = [call for call in self._client.in_flight if call in in_flight_before]
            self._restart_stuck_client(overdue)
            self._restart_denied_client()
            self._emit_changes(overdue)
            if not self._closed:
                self._tail.add_polls(polls, begun_at)
                self._tail.raise_crash()

    def _request_all(self) -> list[Poll]:
        """Send the requests, each kind once the responses to those before it are in; return the commits of groups."""
        polls: list[Poll] = []
        for send_requests in self._requests.rounds:
            if self._closed:
                break
            send_requests()
            for completed in self._client.collect(_WAIT_MS):
                if isinstance(completed.call.request, protocol.ListCommits):
                    if self._is_followed(completed.call.request.group):
                        continue  # requested before it was: the log tells more
                    polls += _as_poll(completed)
                self._state.apply(completed)
                self._source_log.add(completed)
                self._requests.add(completed)
        return polls

    def _emit_changes(self, overdue: Sequence[Call]) -> None:
        """Emit what has changed, and what cannot be read. overdue: calls that were in flight before this poll."""
        now = now_ms()
        if self._state.has_response:
            self.read_at = now
        unavailable = self._state.unavailable(
            overdue, self._client.connection_failures, self._availability.unavailable, now
        )
        if SOURCE not in unavailable:
            unavailable |= self._unreadable_commits()
        availability = self._availability.update(now, unavailable)
        facts = sorted(self._state.take_observations(), key=lambda fact: _BATCH_ORDER.index(type(fact)))
        changes = self._detector.changes([*availability, *facts])
        for fact in facts:
            if isinstance(fact, PartitionState) and fact.is_deleted:
                self._detector.end(fact.subject[:SCOPE])
        for begin in range(0, len(changes), _EMITTED_AT_ONCE):
            if self._closed:
                return
            self._emit(changes[begin : begin + _EMITTED_AT_ONCE])
        self._source_log.add_applications(facts)

    @property
    def problem(self) -> str | None:
        """Why commits are read late; None if they are not. Safe to call from any thread."""
        return _LATE if self._tail.is_late else None

    def topics(self) -> list[str]:
        """Return all topics of the cluster, as last read. Safe to call from any thread."""
        return self._state.all_topics

    def is_changelog(self, topic: str) -> bool:
        """Return whether the topic is a changelog of a Kafka Streams application. Safe to call from any thread."""
        return self._state.streams.is_changelog(topic)

    def reads_log_of(self, group: str) -> bool:
        """Return whether each commit of the group is read from the log at present, so that it is not polled."""
        return self._tail.is_followed(group)

    def close(self) -> None:
        """End the client, and with it a poll in progress."""
        self._closed = True
        with self._polling:  # a poll waits for half a second at most before it notices
            self._client.close()
        self._tail.close()

    def _apply_followed(self) -> None:
        """Take over what the log has shown since the last poll: it was emitted already."""
        if self._settings.commits == "poll":
            return
        if self.read_at is not None:
            self._tail.set_partitions(self._state.offsets_partitions, self.read_at)
        self._source_log.add_undecodable_records(self._tail.undecodable)
        taken = self._tail.take_over(self._state.groups)
        for commit in taken.commits:
            if commit.group not in taken.followed:
                self._detector.add(commit)
        self._detector.forget_all(
            (Commit.subject_kind, self.cluster, group, *place)
            for group in taken.followed - self._followed
            for place in self._state.committed.of(group)
        )
        self._followed = taken.followed
        self._state.add_groups(taken.touched)
        self._turns.touch(taken.touched)
        self._state.apply_followed(taken.followed, taken.commits, self._tail.standing, now_ms())
        self._state.logs.wake(taken.stirred, now_ms())

    def _is_followed(self, group: str) -> bool:
        """Return whether the group is not polled. One that was lost is only once its last commits are taken over."""
        return group in self._followed or self._tail.is_followed(group)

    def _unreadable_commits(self) -> Reasons:
        """Return why the offsets topic cannot be read if it has to be; if it need not be, log it once."""
        failure = self._commits_failure
        if failure is None:
            return {}
        if self._settings.commits != "tail":
            self._source_log.add_polled_commits(failure)
            return {}
        command = self._acl.command("Read", topics=[OFFSETS_TOPIC])
        reason = f"Cannot read commits from {OFFSETS_TOPIC}, so groups are polled: {failure}. Allow it: {command}"
        return {Unit(topic=OFFSETS_TOPIC): reason}

    @property
    def _commits_failure(self) -> str | None:
        """Why the offsets topic cannot be read; None if it can. A new cluster has none until a group commits."""
        is_hidden = not self._state.offsets_partitions and self._state.all_topics and self._state.committed.partitions
        if self._settings.commits != "poll" and is_hidden:
            return "the cluster does not show it, though groups have committed"
        return self._tail.failure

    def _restart_stuck_client(self, overdue: list[Call]) -> None:
        """Restart a client that would wait for a coordinator without end (see agent.sources.kafka.admin.process)."""
        now = now_ms()
        is_stuck = any(
            isinstance(call.request, protocol.ListCommits | protocol.DescribeGroup)
            and now - call.sent_at > self._settings.timeout
            for call in overdue
        )
        if self._state.client_is_stale or (is_stuck and self._client.age_ms > _MIN_CLIENT_AGE_MS):
            self._state.abandon(overdue)
            self._client.restart()

    def _restart_denied_client(self) -> None:
        """Restart a client that brokers refuse, or that refuses them: secrets and certificates may have changed."""
        if not self._client.connection_failures.is_access_denied(now_ms()):
            return
        is_outdated = self._client.is_outdated()
        if is_outdated or (not self._state.has_response and self._client.age_ms > _MIN_CLIENT_AGE_MS):
            log.info("kafka_client_restarted", cluster=self.cluster, secrets_changed=is_outdated)
            self._state.abandon(self._client.in_flight)
            self._client.restart()

    def _read_properties(self) -> dict[str, str]:
        return {**self._settings.read_properties(), "bootstrap.servers": self._settings.bootstrap_servers}

    def _read_setup(self) -> protocol.Setup:
        return protocol.Setup(self.cluster, self._read_properties(), self._settings.timeout)


def _as_poll(completed: CompletedCall) -> list[Poll]:
    """Return a group's commits, if all of them could be read."""
    match completed:
        case CompletedCall(call=Call(request=protocol.ListCommits(group), sent_at=sent_at), at=at, result=result):
            if isinstance(result, protocol.Commits) and not result.failures:
                return [Poll(group, result, sent_at, at)]
    return []


def _principal(settings: KafkaSourceSettings) -> str:
    """Return our user as ACLs name it; what stands for it if our certificate or token names it."""
    return f"User:{settings.read_properties().get('sasl.username', 'OUR_PRINCIPAL')}"
