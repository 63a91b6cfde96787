"""State of a Kafka cluster as its brokers' responses show it: observations, and what is unavailable. Makes no calls."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TypeAlias

from agent.model.config_types import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, PartitionState
from agent.sources.availability import SOURCE, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka import admin_protocol as protocol
from agent.sources.kafka.admin_client import Call, CompletedCall
from agent.sources.kafka.admin_protocol import TopicPartition
from agent.sources.kafka.streams_discovery import StreamsApplications

_UNKNOWN_TOPIC_OR_PARTITION = 3
_NOT_COORDINATOR = 16

_LEADER_SILENT = "its leader does not answer"

Reasons: TypeAlias = dict[Unit, str]


class ClusterState:
    """A cluster's groups, commits, log offsets and metadata: apply results, then take observations.

    client_is_stale: whether the admin client would contact brokers that no longer answer for what it asks: since
    `begin_poll` a broker has left the metadata, or a group has another coordinator.
    """

    def __init__(
        self,
        cluster: str,
        groups: NameFilter,
        topics: NameFilter,
        detector: ChangeDetector,
        known: Iterable[Observation],
        *,
        watch_partitions: bool,
        streams: Collection[str] = (),
    ) -> None:
        """Start from `known`, the last observation of each subject before this run.

        streams: ids of Kafka Streams applications, whatever their groups look like.
        """
        known = list(known)
        self._cluster = cluster
        self._selected_groups = groups
        self._selected_topics = topics
        self._detector = detector
        self._watch_partitions = watch_partitions
        self._metadata = MetadataState(cluster, known)
        self.streams = StreamsApplications(cluster, streams, [fact for fact in known if _is_watched(fact, groups)])
        self.client_is_stale = False
        self._metadata_at: int | None = None
        self._has_response = False
        self._failure: str | None = None
        self._observations: list[Observation] = []
        self._unavailable: dict[tuple[Hashable, ...], Reasons] = {}
        self._groups: set[str] = set()
        self._committed: dict[str, set[TopicPartition]] = defaultdict(set)
        self._leaders: dict[str, dict[int, int]] = {}
        self._offsets_at: dict[TopicPartition, int] = {}
        self._brokers: set[int] = set()
        for fact in known:
            match fact:
                case Commit(group=group, offset=int()) if groups.match(group):
                    self._groups.add(group)
                    self._committed[group].add((fact.topic, fact.partition))
                case GroupState(group=group) if _is_watched(fact, groups):
                    self._groups.add(group)

    @property
    def groups(self) -> list[str]:
        """The selected groups; a dead one until its commits are gone too."""
        return sorted(self._groups)

    @property
    def readable_groups(self) -> list[str]:
        """The selected groups whose state could be read at the last attempt."""
        return [group for group in self.groups if ("states", group) not in self._unavailable]

    @property
    def watched_topics(self) -> list[str]:
        """The topics whose partitions are watched, including those that may have been deleted."""
        if not self._watch_partitions:
            return []
        return sorted({topic for (topic, _), _ in self._watched_partitions()} | self._metadata.topics)

    @property
    def all_topics(self) -> list[str]:
        """All topics of the cluster. Safe to call from any thread."""
        return list(self._leaders)

    def partitions_by_leader(self) -> dict[int, list[TopicPartition]]:
        """Return the partitions whose log offsets are watched; those without a leader become unavailable."""
        partitions: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, leader in self._watched_partitions():
            if leader >= 0:
                partitions[leader].append(partition)
            else:
                self._lose_log(partition, "the partition has no leader")
        return partitions

    def begin_poll(self) -> None:
        """Forget whether brokers responded to the previous poll."""
        self._has_response = False
        self.client_is_stale = False

    def apply(self, completed: CompletedCall) -> None:
        """Update the state with the result of a call."""
        request = completed.call.request
        match completed.result:
            case protocol.Failure() as failure:
                self._note_failure(failure)
                self.client_is_stale = self.client_is_stale or failure.code == _NOT_COORDINATOR
                self._unavailable[completed.call.key] = _group_reasons(completed.call, failure.text)
            case protocol.Groups() as groups:
                self._apply_groups(groups)
            case protocol.Metadata() as metadata:
                self._apply_metadata(metadata, completed.at)
            case protocol.Commits() as commits if isinstance(request, protocol.ListCommits):
                self._apply_commits(request.group, commits, completed.at)
            case protocol.Offsets() as offsets:
                self._apply_offsets(offsets, completed.call.sent_at)
            case GroupState() as state:
                self._apply_group(state)
            case protocol.Tasks(assignments, undecodable) if isinstance(request, protocol.ListTasks):
                self._has_response = True
                self.streams.apply_tasks(
                    request.group, assignments, completed.call.sent_at, decodable=undecodable is None
                )
            case protocol.Topics(topics):
                self._has_response = True
                self._observations += self._metadata.apply_topics(topics, completed.at)

    def abandon(self, calls: Iterable[Call]) -> None:
        """Mark what these calls would have read as unavailable: they get no result any more."""
        for call in calls:
            if isinstance(call.request, protocol.ListOffsets):
                for partition in self._partitions_unread_since(call.request, call.sent_at):
                    self._lose_log(partition, _LEADER_SILENT)  # until any later call reads it
            else:
                self._unavailable[call.key] = self._overdue_reasons(call)

    def take_observations(self) -> list[Observation]:
        """Return the observations since the last time, in order of arrival, then the Kafka Streams applications."""
        taken, self._observations = self._observations, []
        observations = [self.streams.add_tasks(fact) if isinstance(fact, GroupState) else fact for fact in taken]
        if self._metadata_at is not None:
            observations += self.streams.observations(self._metadata_at, self._leaders, self._groups)
            self._metadata_at = None
        return observations

    def unavailable(self, overdue: Iterable[Call], client_error: str | None, before: Collection[Unit]) -> Reasons:
        """Return what is unavailable now, and why.

        overdue: calls without a result after a whole poll. client_error: what the client reports about its connections,
        which is more precise than the timeouts that follow. before: what was unavailable until now.
        """
        if not self._has_response:
            if self._failure is None:
                return dict.fromkeys(before, "")
            return {SOURCE: f"No broker of {self._cluster} answers: {client_error or self._failure}"}
        self._failure = None
        unavailable: Reasons = {}
        for reasons in (*self._unavailable.values(), self._metadata.unavailable, *map(self._overdue_reasons, overdue)):
            unavailable |= reasons
        return unavailable

    def _watched_partitions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield partition and leader (-1: none) of topics that are selected, committed to, or Streams changelogs."""
        committed = set().union(*self._committed.values())
        for topic, leaders in self._leaders.items():
            is_watched = self._selected_topics.match(topic) or self.streams.is_changelog(topic)
            for partition, leader in leaders.items():
                if is_watched or (topic, partition) in committed:
                    yield (topic, partition), leader

    def _overdue_reasons(self, call: Call) -> Reasons:
        if isinstance(call.request, protocol.ListOffsets):
            unread = self._partitions_unread_since(call.request, call.sent_at)
            return {Unit(None, *partition): _log_reason(partition, _LEADER_SILENT) for partition in unread}
        return _group_reasons(call, "its coordinator does not answer")

    def _partitions_unread_since(self, request: protocol.ListOffsets, sent_at: int) -> list[TopicPartition]:
        return [partition for partition in request.partitions if sent_at >= self._offsets_at.get(partition, 0)]

    def _lose_log(self, partition: TopicPartition, why: str) -> None:
        self._unavailable["log", *partition] = {Unit(None, *partition): _log_reason(partition, why)}

    def _note_failure(self, failure: protocol.Failure) -> None:
        if failure.is_from_broker:
            self._has_response = True
        elif self._failure is None:
            self._failure = failure.text

    def _apply_groups(self, groups: protocol.Groups) -> None:
        for failure in groups.failures:
            self._note_failure(failure)
        self._has_response = self._has_response or not groups.failures
        self._groups.update(name for name in groups.names if name and self._selected_groups.match(name))

    def _apply_metadata(self, metadata: protocol.Metadata, at: int) -> None:
        if not metadata.brokers:
            return  # a broker that is just starting knows nothing yet
        self._has_response = True
        before, current = self._leaders, {}
        for topic, leaders in metadata.topics.items():
            if leaders is not None:
                current[topic] = leaders
            elif topic in before:
                current[topic] = before[topic]
        self._leaders = current
        self._metadata_at = at
        for topic, leaders in before.items():
            for partition in leaders.keys() - current.get(topic, {}).keys():
                self._forget_log((topic, partition))
        brokers = set(metadata.brokers)
        self.client_is_stale = self.client_is_stale or not self._brokers <= brokers
        self._brokers = brokers
        if self._watch_partitions:
            self._observations += self._metadata.apply_brokers(brokers, at)

    def _apply_commits(self, group: str, result: protocol.Commits, at: int) -> None:
        self._has_response = True
        before, reasons = self._committed[group], Reasons()
        committed = {(commit.topic, commit.partition) for commit in result.commits}
        for failed in result.failures:
            topic, partition = failed.topic, failed.partition
            reasons[Unit(group, topic, partition)] = (
                f"Cannot read the committed offset of {group} on {topic}[{partition}]: {_why(failed)}"
            )
            committed |= {(topic, partition)} & before
        self._observations += result.commits
        self._observations += [
            Commit(at=at, cluster=self._cluster, group=group, topic=topic, partition=partition, offset=None)
            for topic, partition in sorted(before - committed)
        ]
        self._committed[group] = committed
        self._unavailable["commits", group] = reasons

    def _apply_offsets(self, result: protocol.Offsets, sent_at: int) -> None:
        """Apply log offsets as of when they were requested.

        An end is never dated later than it was read, so that no commit is compared with an end older than it.
        """
        for offsets in result.logs:
            partition = (offsets.topic, offsets.partition)
            if self._is_current(partition, sent_at):
                self._has_response = True
                self._unavailable.pop(("log", *partition), None)
                self._offsets_at[partition] = sent_at
                self._observations.append(offsets)
        for failed in result.failures:
            partition = (failed.topic, failed.partition)
            if self._is_current(partition, sent_at):
                if failed.failure is not None:
                    self._note_failure(failed.failure)
                self._lose_log(partition, _why(failed))

    def _is_current(self, partition: TopicPartition, sent_at: int) -> bool:
        """Return whether the partition exists and no later request, to a newer leader, has been answered."""
        topic, number = partition
        return sent_at >= self._offsets_at.get(partition, 0) and number in self._leaders.get(topic, {})

    def _apply_group(self, state: GroupState) -> None:
        group = state.group
        self._has_response = True
        self._unavailable.pop(("states", group), None)
        self.streams.apply_group(state)
        self._observations.append(state)
        if state.state == "Dead" and not self._committed[group]:
            self._groups.discard(group)
            for call in ("commits", "tasks"):
                self._unavailable.pop((call, group), None)
            self.streams.forget(group)
            del self._committed[group]

    def _forget_log(self, partition: TopicPartition) -> None:
        self._offsets_at.pop(partition, None)
        self._unavailable.pop(("log", *partition), None)
        self._detector.forget(("log_offsets", self._cluster, *partition))


class MetadataState:
    """Partitions and brokers according to the cluster's metadata, for clusters without a ZooKeeper to watch.

    unavailable: topics that cannot be described, and why.
    """

    def __init__(self, cluster: str, known: Iterable[Observation]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self.unavailable: Reasons = {}
        self._cluster = cluster
        self._partitions: dict[str, dict[int, PartitionState]] = defaultdict(dict)
        self._unknown: set[str] = set()
        self._brokers: set[int] = set()
        for fact in known:
            match fact:
                case PartitionState() if fact.replicas:
                    self._partitions[fact.topic][fact.partition] = fact
                case BrokerRegistration() if not fact.gone:
                    self._brokers.add(fact.broker)

    @property
    def topics(self) -> set[str]:
        """The topics that existed when last described."""
        return set(self._partitions)

    def apply_brokers(self, brokers: set[int], at: int) -> list[Observation]:
        """Return the brokers in the metadata, and those no longer in it. It has no sessions or epochs."""
        known, self._brokers = self._brokers, brokers
        return [
            BrokerRegistration(
                at=at, cluster=self._cluster, broker=broker, session=None, epoch=-1 if broker in brokers else None
            )
            for broker in sorted(known | brokers)
        ]

    def apply_topics(self, topics: dict[str, protocol.Topic | protocol.Failure], at: int) -> list[Observation]:
        """Return the partitions of the topics described, and those deleted."""
        observations: list[Observation] = []
        for name, topic in topics.items():
            if isinstance(topic, protocol.Topic):
                observations += self._apply_topic(name, topic, at)
            elif topic.code == _UNKNOWN_TOPIC_OR_PARTITION:
                observations += self._apply_unknown_topic(name, at)
            elif topic.is_from_broker:
                self.unavailable[Unit(topic=name)] = f"Cannot describe topic {name}: {topic.text}"
        return observations

    def _apply_topic(self, name: str, topic: protocol.Topic, at: int) -> list[Observation]:
        self.unavailable.pop(Unit(topic=name), None)
        self._unknown.discard(name)
        states = {state.partition: state for state in topic.partitions}
        before, self._partitions[name] = self._partitions[name], states
        return [*topic.partitions, *_deleted((last for last in before.values() if last.partition not in states), at)]

    def _apply_unknown_topic(self, name: str, at: int) -> list[Observation]:
        """Delete a topic when a broker does not know it for the second time: one broker's metadata may lag."""
        if name not in self._unknown:
            self._unknown.add(name)
            return []
        self._unknown.discard(name)
        self.unavailable.pop(Unit(topic=name), None)
        return _deleted(self._partitions.pop(name, {}).values(), at)


def _deleted(states: Iterable[PartitionState], at: int) -> list[Observation]:
    return [
        PartitionState(
            at=at,
            cluster=state.cluster,
            topic=state.topic,
            partition=state.partition,
            leader=None,
            replicas=(),
            isr=(),
            topic_id=state.topic_id,
        )
        for state in states
    ]


def _is_watched(known: Observation, groups: NameFilter) -> bool:
    """Return whether a known fact is still relevant: not of a group that was dead or is no longer selected."""
    return not isinstance(known, GroupState) or (known.state != "Dead" and groups.match(known.group))


def _group_reasons(call: Call, why: str) -> Reasons:
    """Return what a failed call about a group leaves unavailable; nothing if any broker can be asked again."""
    match call.request:
        case protocol.ListCommits(group):
            return {Unit(group=group): f"Cannot read the committed offsets of group {group}: {why}"}
        case protocol.DescribeGroup(group):
            return {Unit(group=group): f"Cannot read the state of group {group}: {why}"}
        case _:
            return {}


def _log_reason(partition: TopicPartition, why: str) -> str:
    topic, number = partition
    return f"Cannot read the log offsets of {topic}[{number}]: {why}"


def _why(failed: protocol.PartitionFailure) -> str:
    return _LEADER_SILENT if failed.failure is None else failed.failure.text
