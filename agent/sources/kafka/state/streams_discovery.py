"""Discovery of a cluster's Kafka Streams applications from its groups and topics. Makes no calls."""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.model.observations.base import Observation
from agent.model.observations.kafka import GroupState, Member
from agent.model.observations.streams import StreamsApplication
from agent.sources.kafka.admin.streams_assignment import Assignment

_ASSIGNOR = "stream"
"""The protocol name of StreamsPartitionAssignor, in all versions."""

_TYPE = "streams"
"""The type of a group of the streams protocol (KIP-1071), whose description includes the tasks."""

_CHANGELOG = "-changelog"
_THREAD = re.compile(r"-StreamThread-\d+-consumer$")


class StreamsApplications:
    """The Kafka Streams applications of a cluster: their stores, instances, and which member has which task."""

    def __init__(self, cluster: str, configured: Collection[str], known: Iterable[Observation]) -> None:
        """Start from `known`, the last observation of each subject before this run.

        configured: ids of applications, whatever their groups look like.
        """
        self._cluster = cluster
        self._configured = frozenset(configured)
        self._groups: dict[str, GroupState] = {}
        self._assignments: dict[str, Mapping[str, Assignment]] = {}
        self._reassigned_at: dict[str, int] = {}
        self._tasks_read_at: dict[str, int] = {}
        self._instances: dict[str, int] = {}
        self.applications = self._configured
        for fact in known:
            match fact:
                case GroupState(group=group, members=members):
                    self.apply_group(fact)
                    self._assignments[group] = {
                        member.id: Assignment(member.partitions, member.tasks) for member in members
                    }
                    if all(len(member.tasks) == len(member.partitions) for member in members):
                        self._tasks_read_at[group] = fact.at
                case StreamsApplication(application=application):
                    self._instances.setdefault(application, fact.instances)

    @property
    def awaiting_tasks(self) -> list[str]:
        """The stable applications whose partitions were reassigned since their tasks were last read."""
        return [
            group
            for group in sorted(self.applications & self._groups.keys())
            if self._reassigned_at[group] > self._tasks_read_at.get(group, 0)
            and self._groups[group].state == "Stable"
            and self._groups[group].type != _TYPE
            and any(_partitions_by_member(self._groups[group]).values())
        ]

    def is_changelog(self, topic: str) -> bool:
        """Return whether the topic is a changelog of an application. Safe to call from any thread."""
        return _split_changelog(topic, self.applications) is not None

    def apply_group(self, state: GroupState) -> None:
        """Update the group with a newly read state."""
        group, before = state.group, self._groups.get(state.group)
        if before is None or _partitions_by_member(before) != _partitions_by_member(state):
            self._reassigned_at[group] = state.at
        if state.assignor is None and before is not None:
            state = msgspec.structs.replace(state, assignor=before.assignor)  # Kafka reports none in a rebalance
        self._groups[group] = state
        if state.assignor == _ASSIGNOR or state.type == _TYPE or group in self._configured:
            self.applications |= {group}
        elif group in self.applications:
            self.applications -= {group}
        if "Rebalance" not in state.state:
            self._instances[group] = len({_instance(member) for member in state.members})

    def apply_tasks(
        self, group: str, assignments: Mapping[str, Assignment], sent_at: int, *, decodable: bool = True
    ) -> None:
        """Update an application with its members' assignments, requested at `sent_at` (ms).

        Assignments of a rebalance that began and ended between two reads of the group are dropped, so that they are
        requested again. decodable: whether all could be decoded; if not, they are not requested again.
        """
        if group not in self._groups:
            return  # forgotten in the meantime
        members = _partitions_by_member(self._groups[group])
        if decodable and any(
            assignments.get(member, Assignment()).partitions != partitions for member, partitions in members.items()
        ):
            return
        self._assignments[group] = assignments
        self._tasks_read_at[group] = sent_at

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        for by_group in (self._groups, self._assignments, self._reassigned_at, self._tasks_read_at, self._instances):
            by_group.pop(group, None)
        self.applications = self._configured | (self.applications - {group})

    def add_tasks(self, state: GroupState) -> GroupState:
        """Return the state with the last known assignor, and with the tasks of members whose partitions match."""
        assignments = self._assignments.get(state.group, {})
        members = tuple(
            msgspec.structs.replace(member, tasks=assignment.tasks)
            if (assignment := assignments.get(member.id)) is not None and assignment.partitions == member.partitions
            else member
            for member in state.members
        )
        last = self._groups.get(state.group, state)
        return msgspec.structs.replace(state, members=members, assignor=state.assignor or last.assignor)

    def observations(
        self, at: int, topics: Mapping[str, Collection[int]], groups: Collection[str]
    ) -> list[Observation]:
        """Return the applications as of `at`, ms.

        topics: partitions of all topics. groups: those that exist; one that was not seen outside a rebalance yet is
        left out.
        """
        stores: dict[str, list[tuple[str, int]]] = {}
        for topic, partitions in topics.items():
            split = _split_changelog(topic, self.applications)
            if split is not None:
                application, store = split
                stores.setdefault(application, []).append((store, len(partitions)))
        return [
            StreamsApplication(
                at=at,
                cluster=self._cluster,
                application=application,
                stores=tuple(sorted(stores.get(application, ()))),
                instances=self._instances.get(application, 0),
            )
            for application in sorted(self.applications)
            if application in self._instances or application not in groups
        ]


def _split_changelog(topic: str, applications: Collection[str]) -> tuple[str, str] | None:
    """Split a changelog topic into (application, store); the longest application id wins."""
    if not topic.endswith(_CHANGELOG):
        return None
    name = topic.removesuffix(_CHANGELOG)
    end = name.rfind("-")
    while end > 0:
        if name[:end] in applications:
            return name[:end], name[end + 1 :]
        end = name.rfind("-", 0, end)
    return None


def _partitions_by_member(state: GroupState) -> dict[str, tuple[tuple[str, int], ...]]:
    return {member.id: member.partitions for member in state.members}


def _instance(member: Member) -> tuple[str, str]:
    """Return the member's process: its host and client.id without the thread."""
    return member.host, _THREAD.sub("", member.client_id or member.id)
