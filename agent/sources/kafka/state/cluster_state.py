"""State of a Kafka cluster as its brokers' responses show it: observations, and what is unavailable. Makes no calls."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, GroupState, PartitionState
from agent.sources.availability import SOURCE, Reasons, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call, CompletedCall
from agent.sources.kafka.admin.connection_failures import ConnectionFailures
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.committed_offsets import CommittedOffsets
from agent.sources.kafka.state.group_listing import GroupListing, without_other_groups
from agent.sources.kafka.state.log_state import LogState
from agent.sources.kafka.state.metadata_state import MetadataState
from agent.sources.kafka.state.permissions import Acl
from agent.sources.kafka.state.poll_observations import PollObservations
from agent.sources.kafka.state.reasons import COORDINATOR_SILENT, explain_silences, group_reasons
from agent.sources.kafka.state.settings_state import SettingsState
from agent.sources.kafka.state.share_offsets import ShareGroupOffsets
from agent.sources.kafka.state.stable_offsets import FindStanding, StableOffsets
from agent.sources.kafka.state.streams_discovery import StreamsApplications
from agent.sources.kafka.state.visibility import Visibility
from agent.sources.kafka.state.watched_partitions import WatchedPartitions

_NOT_COORDINATOR = 16


class ClusterState:
    """A cluster's groups, commits, log offsets and metadata: apply results, then take observations.

    has_response: whether a broker has responded since `begin_poll`.
    committed: what groups have committed. logs: when log offsets were read.
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
        acl: Acl,
        watch_partitions: bool,
        streams: Collection[str] = (),
    ) -> None:
        """Start from `known`, the last observation of each subject before this run.

        acl: whom to permit what is missing. streams: ids of Kafka Streams applications, whatever their groups are.
        """
        known = without_other_groups(known, groups)
        self._cluster = cluster
        self._observed = PollObservations(cluster, detector)
        self._watch_partitions = watch_partitions
        self._metadata = MetadataState(cluster, known)
        self._settings = SettingsState(cluster)
        self._stable_offsets = StableOffsets(known)
        self._share_offsets = ShareGroupOffsets(cluster)
        self.streams = StreamsApplications(cluster, streams, known)
        self.client_is_stale = self.has_response = False
        self._visibility = Visibility(cluster, groups, topics, acl)
        self._metadata_at: int | None = None
        self._last_metadata: protocol.Metadata | None = None
        self._failure: str | None = None
        self._unavailable: dict[tuple[Hashable, ...], Reasons] = {}
        self._groups = GroupListing(groups, known)
        self.committed = CommittedOffsets(known, groups.match)
        self._watched = WatchedPartitions(topics, self.streams.is_changelog)
        self.logs = LogState()
        self._brokers: set[int] = set()

    @property
    def groups(self) -> list[str]:
        """The selected groups; a dead one until its commits are gone too."""
        return self._groups.names

    @property
    def readable_groups(self) -> list[str]:
        """The selected groups whose state could be read at the last attempt."""
        return [group for group in self.groups if ("states", group) not in self._unavailable]

    def type_of(self, group: str) -> str | None:
        """Return a group's type as Kafka names it, or None if it is unknown."""
        return self._groups.types.get(group)

    def is_described(self, group: str) -> bool:
        """Return whether a group's coordinator has described it, so that only changes are of interest."""
        return group in self._groups.described

    @property
    def watched_topics(self) -> list[str]:
        """The topics whose partitions are watched, including those that may have been deleted."""
        if not self._watch_partitions:
            return []
        self._update_watched()
        return sorted(self._watched.topics | self._metadata.topics)

    def due_settings(self, now: int) -> tuple[list[int], list[str]]:
        """Return the brokers and the topics whose settings to read."""
        return self._settings.due_brokers(self._brokers, now), self._settings.due_topics(self._watched.topics, now)

    @property
    def all_topics(self) -> list[str]:
        """All topics of the cluster. Safe to call from any thread."""
        return list(self._watched.leaders)

    def partitions_by_leader(self, now: int) -> Mapping[int, Sequence[TopicPartition]]:
        """Return the partitions whose log offsets are watched; those without a leader become unavailable. now: ms."""
        self._update_watched()
        self.logs.watch(self._watched.by_leader)
        self.logs.wake(self._share_offsets.partitions, now)  # their positions follow from log ends
        for partition in self._watched.without_leader:
            self.logs.lose(partition, "the partition has no leader")
        return self._watched.by_leader

    def _update_watched(self) -> None:
        self._watched.update(
            self.committed.partitions.union(self._share_offsets.partitions, self._stable_offsets.held_back)
        )
        if self.logs.unavailable:
            self.logs.keep_unavailable({*chain(self._watched.without_leader, *self._watched.by_leader.values())})
        if self._metadata.unavailable:
            self._metadata.keep_unavailable(self._watched.topics)

    def due_transactions(self, now: int) -> list[protocol.DescribeOpenTransaction]:
        """Return the transactions that hold last stable offsets back and have not been described lately."""
        return self._stable_offsets.due_transactions(self._watched.leaders, now)

    def due_stable_offsets(self, now: int) -> Mapping[int, Sequence[TopicPartition]]:
        """Return the partitions whose last stable offsets to read, by leader."""
        return self._stable_offsets.select(self._watched.by_leader, now)

    @property
    def needed_topics(self) -> list[str]:
        """The topics to describe one by one if the whole list of topics cannot be read, as at the last attempt."""
        return sorted({topic for topic, _ in self.committed.partitions}) if self._visibility.metadata_failed else []

    def due_checks(self, now: int) -> tuple[list[str], list[str]]:
        """Return the topics and groups of which to check whether we may describe them."""
        return self._visibility.take_due_checks(now, has_groups=bool(self._groups.types))

    @property
    def offsets_partitions(self) -> int:
        """The number of partitions of `__consumer_offsets`; 0 if it does not exist or is hidden."""
        return len(self._watched.leaders.get(OFFSETS_TOPIC, {}))

    def add_groups(self, groups: Iterable[str]) -> None:
        """Add the selected ones of groups that were seen otherwise than in a list."""
        self._groups.add(dict.fromkeys(groups))

    def apply_followed(
        self, groups: Collection[str], commits: Iterable[Commit], find_standing: FindStanding, at: int
    ) -> None:
        """Update with commits that were read in the log. groups: all that are followed there.

        find_standing: returns the partitions in which one of these has stood still.
        """
        changes = list(commits)
        self.committed.apply(changes)
        self.logs.wake(((commit.topic, commit.partition) for commit in changes), at)
        for group in groups:
            self._unavailable.pop(("commits", group), None)
        self._stable_offsets.apply_followed(groups, find_standing, at)

    def begin_poll(self) -> None:
        """Forget whether brokers responded to the previous poll."""
        self.has_response = self.client_is_stale = False

    def apply(self, completed: CompletedCall) -> None:
        """Update the state with the result of a call."""
        request = completed.call.request
        match completed.result:
            case protocol.Failure() as failure:
                self._apply_failure(completed, failure)
            case protocol.Groups() as groups:
                self._note_failures(groups.failures)
                self.has_response = self.has_response or not groups.failures
                self._groups.add(groups.types)
            case protocol.Metadata() as metadata:
                self._last_metadata = metadata
                self._apply_metadata(metadata, completed.at)
            case protocol.TypedGroups(typed_groups):
                self.has_response = True
                self._groups.add_typed(typed_groups)
            case protocol.Commits() as commits if isinstance(request, protocol.ListCommits):
                self._apply_commits(request.group, list(commits), commits.failures, completed.at)
            case protocol.Unchanged():
                self._apply_unchanged(request, completed.at)
            case protocol.ShareOffsets() as offsets if isinstance(request, protocol.ListShareOffsets):
                self._take_share_offsets()
                self._share_offsets.hold(request.group, offsets, completed.at)
            case protocol.Offsets() as offsets if isinstance(request, protocol.ListOffsets):
                self._apply_offsets(request, offsets, completed.call.sent_at)
            case GroupState() as state:
                self._apply_group(state)
            case protocol.Tasks(assignments, undecodable) if isinstance(request, protocol.ListTasks):
                self.has_response = True
                self.streams.apply_tasks(
                    request.group, assignments, completed.call.sent_at, decodable=undecodable is None
                )
            case protocol.Topics(topics):
                failures = [topic for topic in topics.values() if isinstance(topic, protocol.Failure)]
                self.has_response = self.has_response or len(failures) < len(topics)
                self._note_failures(failures)
                self._observed.add(*self._metadata.apply_topics(topics, completed.at))
            case protocol.TopicChecks(checks):
                self._visibility.apply_topic_checks(checks, completed.call.sent_at)
            case protocol.GroupCheck() if isinstance(request, protocol.CheckGroup):
                self._visibility.apply_group_check(request.group, None)
            case protocol.StableOffsets(at_end=True) if isinstance(request, protocol.ListStableOffsets):
                at = completed.call.sent_at
                self._observed.add(*self._stable_offsets.apply_ends(self._cluster, request.partitions, at))
            case protocol.StableOffsets(stable_offsets):
                self._observed.add(*self._stable_offsets.apply(stable_offsets))
            case protocol.OpenTransactions(transactions):
                self._observed.add(*transactions)
            case protocol.BrokerSettings() as settings if isinstance(request, protocol.DescribeBrokerSettings):
                self._observed.add(*self._settings.apply_broker(request.broker, settings, completed.at))
            case protocol.Settings(topic_settings):
                self._observed.add(*self._settings.apply_topics(topic_settings, completed.at))

    def abandon(self, calls: Iterable[Call]) -> None:
        """Mark what these calls would have read as unavailable: they get no result any more."""
        for call in calls:
            if isinstance(call.request, protocol.ListOffsets):
                self.logs.unavailable |= self.logs.unread_since(call.request, call.sent_at)
            else:
                self._unavailable[call.key] = self._overdue_reasons(call)

    def take_observations(self) -> list[Observation]:
        """Return the observations since the last time, in order of arrival, then the Kafka Streams applications."""
        self._take_share_offsets()
        observations = [
            self.streams.add_tasks(fact) if isinstance(fact, GroupState) else fact for fact in self._observed.take()
        ]
        if self._metadata_at is not None:
            observations += self.streams.observations(self._metadata_at, self._watched.leaders, self._groups.types)
            self._metadata_at = None
        return observations

    def unavailable(
        self, overdue: Iterable[Call], connections: ConnectionFailures, before: Collection[Unit], now: int
    ) -> Reasons:
        """Return what is unavailable now, and why.

        overdue: calls without a result after a whole poll. connections: why brokers cannot be connected to, which is
        more precise than the timeouts that follow. before: what was unavailable until now.
        """
        if not self.has_response and self._failure is None and connections.client_failure(now) is None:
            return dict.fromkeys(before, "")
        if not self.has_response:
            return {SOURCE: f"No broker of {self._cluster} answers: {connections.reasons(now) or self._failure}"}
        self._failure = None
        unavailable: Reasons = {}
        for reasons in (
            self._metadata.unavailable,
            self.logs.unavailable,
            *self._unavailable.values(),
            *map(self._overdue_reasons, overdue),
            self._visibility.unavailable,
        ):
            unavailable |= reasons
        return explain_silences(unavailable, self._watched.leaders, connections, now)

    def _overdue_reasons(self, call: Call) -> Reasons:
        if isinstance(call.request, protocol.ListOffsets):
            return self.logs.unread_since(call.request, call.sent_at)
        return group_reasons(call.request, COORDINATOR_SILENT)

    def _note_failures(self, failures: Iterable[protocol.Failure | None]) -> None:
        for failure in filter(None, failures):
            if failure.is_from_broker:
                self.has_response = True
            elif self._failure is None:
                self._failure = failure.text

    def _apply_failure(self, completed: CompletedCall, failure: protocol.Failure) -> None:
        self._note_failures([failure])
        request = completed.call.request
        if isinstance(request, protocol.DescribeBrokerSettings):
            self._settings.apply_broker(request.broker, failure, completed.at)
        if isinstance(request, protocol.ListCommits | protocol.DescribeGroup):
            self.client_is_stale = self.client_is_stale or failure.code == _NOT_COORDINATOR
        self._unavailable[completed.call.key] = self._visibility.apply_failure(completed.call, failure)

    def _apply_metadata(self, metadata: protocol.Metadata, at: int) -> None:
        if not metadata.brokers:
            return  # a broker that is just starting knows nothing yet
        self.has_response = True
        before = self._watched.leaders
        known = {topic: before.get(topic) if leaders is None else leaders for topic, leaders in metadata.topics.items()}
        self._watched.leaders = {topic: leaders for topic, leaders in known.items() if leaders is not None}
        self._metadata_at = at
        self._visibility.apply_metadata(before, metadata.topics, at)
        for topic, leaders in before.items():
            current = self._watched.leaders.get(topic, {})
            if current is leaders:
                continue  # the metadata has not changed
            self.logs.wake(((topic, partition) for partition, _ in current.items() - leaders.items()), at)
            for partition in leaders.keys() - current.keys():
                self._forget_log((topic, partition))
        brokers = set(metadata.brokers)
        self.client_is_stale = self.client_is_stale or not self._brokers <= brokers
        self._brokers = brokers
        if self._watch_partitions:
            self._observed.add(*self._metadata.apply_brokers(brokers, at))

    def _apply_commits(
        self, group: str, commits: list[Commit], failures: Iterable[protocol.PartitionFailure], at: int
    ) -> None:
        self.has_response = True
        before = self.committed.of(group)
        committed, deleted, reasons, is_whole = self._visibility.apply_commits(group, commits, failures, before, at)
        self._observed.add(
            *commits,
            *(
                Commit(at=at, cluster=self._cluster, group=group, topic=topic, partition=partition, offset=None)
                for topic, partition in deleted
            ),
        )
        self.logs.wake((place for place, _ in before.items() ^ committed.items()), at)
        self.committed.replace(group, committed, settled=is_whole)
        self._stable_offsets.apply_commits(group, committed, at)
        if not self._visibility.vanished.is_undecided(group):
            self._observe_group(self._groups.take_missing(group, has_commits=self.committed.has(group)))
        self._unavailable["commits", group] = reasons

    def _apply_unchanged(self, request: protocol.Request, at: int) -> None:
        """Apply that a group's state, its commits, the metadata or all topics are the same as at the last poll."""
        self.has_response = True
        match request:
            case protocol.DescribeGroup(group) if (described := self._groups.described.get(group)) is not None:
                self._apply_group(msgspec.structs.replace(described, at=at))
            case protocol.ListCommits(group):
                self._unavailable.pop(("commits", group), None)
                self._observed.confirm(Commit, group, partial(self.committed.of, group), at)
                if self._stable_offsets.is_due(group, at):
                    self._stable_offsets.apply_commits(group, self.committed.of(group), at)
            case protocol.FetchMetadata() if self._last_metadata is not None:
                self._apply_metadata(self._last_metadata, at)
            case protocol.DescribeTopics(topics):
                for topic in topics:
                    self._observed.confirm(PartitionState, topic, partial(self._metadata.partitions, topic), at)

    def _take_share_offsets(self) -> None:
        for group, commits, failures, at in self._share_offsets.take(self.committed.of):
            self._apply_commits(group, commits, failures, at)

    def _apply_offsets(self, request: protocol.ListOffsets, result: protocol.Offsets, sent_at: int) -> None:
        logs, failures, unchanged = self.logs.apply(
            request, result, sent_at, self._watched.leaders, self._visibility.describe_partition
        )
        self.has_response = self.has_response or bool(logs or unchanged)
        self._observed.add(*logs)
        for offsets in logs:
            partition = (offsets.topic, offsets.partition)
            self._stable_offsets.apply_end(partition, offsets.log_end)
            self._share_offsets.apply_end(partition, offsets.log_end, sent_at)
        self._share_offsets.confirm_ends(unchanged, sent_at)
        self._observed.confirm_logs(request, unchanged, sent_at)
        self._note_failures(failed.failure for failed in failures)

    def _apply_group(self, state: GroupState) -> None:
        self.has_response = True
        self._unavailable.pop(("states", state.group), None)
        current = self._groups.apply(state, has_commits=self.committed.has(state.group))
        if current is None:
            self.committed.unsettle(state.group)
        self._observe_group(current)

    def _observe_group(self, state: GroupState | None) -> None:
        if state is None:
            return
        self.streams.apply_group(state)
        self._observed.add(state)
        if state.is_gone:
            self._forget_group(state.group)

    def _forget_group(self, group: str) -> None:
        for listed in (self._groups, self.streams, self.committed):
            listed.forget(group)
        for part in (self._stable_offsets, self._visibility.vanished, self._share_offsets):
            part.forget_group(group)
        for call in ("commits", "tasks"):
            self._unavailable.pop((call, group), None)
        self._observed.end_group(group)

    def _forget_log(self, partition: TopicPartition) -> None:
        self.logs.forget(partition)
        self._stable_offsets.forget_partition(partition)
        self._share_offsets.forget_partition(partition)
        self._observed.forget_log(partition)
