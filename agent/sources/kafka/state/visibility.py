"""What of a cluster we may see: permissions on what rules.toml selects, and topics that are hidden. Makes no calls."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from agent.model.name_filter import NameFilter
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.sources.availability import Reasons, Unit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.committed_offsets import Position, positions
from agent.sources.kafka.state.permissions import Acl, Permissions, TopicCheck, VanishedTopics
from agent.sources.kafka.state.reasons import commit_reason, group_reasons, log_reason, text_of

_MAX_METADATA_FAILURES = 3
"""How many requests for metadata in a row may fail unreported: the client asks another broker each time."""


class CommitsRead(NamedTuple):
    """What a listing of a group's commits shows.

    committed: its positions, as last read where they are not shown. unavailable: these, and why. is_whole: whether
    none is missing.
    """

    committed: dict[TopicPartition, Position]
    deleted: list[TopicPartition]
    unavailable: Reasons
    is_whole: bool


class Visibility:
    """What we may see of a cluster, and the topics that it lists."""

    def __init__(self, cluster: str, groups: NameFilter, topics: NameFilter, acl: Acl) -> None:
        """acl: whom to permit what is missing."""
        self._cluster = cluster
        self._acl = acl
        self._permissions = Permissions(groups, topics, acl)
        self.vanished = VanishedTopics()
        self._topics: Collection[str] = ()
        self._metadata_failures = 0
        self._metadata_failure = ""

    def take_due_checks(self, now: int, *, has_groups: bool) -> tuple[list[str], list[str]]:
        """Return the topics and groups of which to check whether we may describe them."""
        groups_exist = has_groups or OFFSETS_TOPIC in self._topics
        topics, groups = self._permissions.take_due(now, groups_exist=groups_exist)
        return sorted({*topics, *self.vanished.due(now)}), groups

    def apply_topic_checks(self, failures: Mapping[str, protocol.Failure | None], sent_at: int) -> None:
        """Update with the results of checking topics."""
        for topic, failure in failures.items():
            self._permissions.apply_topic(topic, failure)
            self.vanished.apply_check(topic, TopicCheck(sent_at, failure))

    def apply_group_check(self, group: str, failure: protocol.Failure | None) -> None:
        """Update with the result of checking a group."""
        self._permissions.apply_group(group, failure)

    def apply_metadata(self, before: Mapping[str, Collection[int]], listed: Collection[str], at: int) -> None:
        """Update with the topics listed at `at`, ms. before: partitions of those listed before."""
        self._topics = listed
        self._metadata_failures = 0
        self.vanished.apply_metadata(before, listed, at)

    def apply_failure(self, call: Call, failure: protocol.Failure) -> Reasons:
        """Update with a failed call; return what it leaves unavailable."""
        match call.request:
            case protocol.CheckGroup(group):
                self._permissions.apply_group(group, failure)
            case protocol.FetchMetadata():
                self._metadata_failures += 1
                self._metadata_failure = failure.text
            case protocol.ListShareOffsets() if failure.code == protocol.UNSUPPORTED:
                return {}  # brokers before 4.2: the source logs that once
        return group_reasons(call.request, self.describe(failure, group=getattr(call.request, "group", None)))

    def describe(self, failure: protocol.Failure | None, *, topic: str | None = None, group: str | None = None) -> str:
        """Return a failure in words, with the command that permits what it refuses. failure: None: no leader."""
        return text_of(failure, self._acl, topic=topic, group=group)

    def describe_partition(self, failed: protocol.PartitionFailure) -> str:
        """Return the failure of a partition in words."""
        return self.describe(failed.failure, topic=failed.topic)

    @property
    def metadata_failed(self) -> bool:
        """Whether the last request for metadata failed."""
        return self._metadata_failures > 0

    @property
    def unavailable(self) -> Reasons:
        """What may be hidden, is hidden, or cannot be listed, and why."""
        reasons = self._permissions.unavailable
        for partition, failure in self.vanished.hidden.items():
            reasons[Unit(None, *partition)] = log_reason(partition, self.describe(failure, topic=partition[0]))
        if self._metadata_failures >= _MAX_METADATA_FAILURES:
            reasons[Unit(topic="*")] = (
                f"Cannot list the topics of {self._cluster}, so log offsets are not read: {self._metadata_failure}"
            )
        return reasons

    def apply_commits(
        self,
        group: str,
        commits: Iterable[Commit],
        failures: Iterable[protocol.PartitionFailure],
        before: Mapping[TopicPartition, Position],
        at: int,
    ) -> CommitsRead:
        """Update with a listing of a group's commits at `at`, ms; return what it shows. before: as last read."""
        committed, why = positions(commits, before, at), dict[TopicPartition, str]()
        for failed in failures:
            place = (failed.topic, failed.partition)
            why[place] = self.describe(failed.failure, topic=failed.topic)
            if place in before:
                committed[place] = before[place]
        missing = before.keys() - committed
        deleted, hidden = self.vanished.apply_commits(group, missing, at)
        why |= {place: self.describe(failure, topic=place[0]) for place, failure in hidden.items()}
        committed |= {place: before[place] for place in missing - set(deleted)}
        reasons = {Unit(group, *place): commit_reason(group, place, text) for place, text in why.items()}
        return CommitsRead(committed, deleted, reasons, is_whole=not missing and not reasons)
