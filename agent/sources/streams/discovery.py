"""The Kafka Streams applications of a cluster, as its groups and topics show them. No call is made here."""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.model.observations import GroupState, Member, Observation, StreamsApplication
from agent.sources.streams.assignment import Assignment

_ASSIGNOR = "stream"
"""What StreamsPartitionAssignor calls itself, in all versions."""

_CHANGELOG = "-changelog"
_THREAD = re.compile(r"-StreamThread-\d+-consumer$")


class StreamsView:
    """Learns from groups and topics which applications there are, what their stores are, and who has which task."""

    def __init__(self, cluster: str, named: Collection[str], known: Iterable[Observation]) -> None:
        """named: application ids of applications, whatever their groups say. known: as every source takes it."""
        self._cluster = cluster
        self._named = frozenset(named)
        self._groups: dict[str, GroupState] = {}
        self._assignments: dict[str, Mapping[str, Assignment]] = {}
        self._changed: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._instances: dict[str, int] = {}
        self.applications = self._named
        for one in known:
            match one:
                case GroupState(group=group, members=members):
                    self.take_group(one)
                    self._assignments[group] = {each.id: Assignment(each.partitions, each.tasks) for each in members}
                    if all(len(each.tasks) == len(each.partitions) for each in members):
                        self._answered[group] = one.at
                case StreamsApplication(application=application):
                    self._instances.setdefault(application, one.instances)

    @property
    def untold(self) -> list[str]:
        """The applications whose members have come to partitions since their tasks were last told."""
        return [
            group
            for group in sorted(self.applications & self._groups.keys())
            if self._changed[group] > self._answered.get(group, 0)
            and self._groups[group].state == "Stable"
            and any(_places(self._groups[group]).values())
        ]

    def owns(self, topic: str) -> bool:
        """Whether the topic is the changelog of an application's store. May be asked from any thread."""
        return _store(topic, self.applications) is not None

    def take_group(self, state: GroupState) -> None:
        """A group's state was read."""
        group, before = state.group, self._groups.get(state.group)
        if before is None or _places(before) != _places(state):
            self._changed[group] = state.at
        if state.assignor is None and before is not None:
            state = msgspec.structs.replace(state, assignor=before.assignor)  # in a rebalance none is told
        self._groups[group] = state
        if state.assignor == _ASSIGNOR or group in self._named:
            self.applications |= {group}
        elif group in self.applications:
            self.applications -= {group}
        if "Rebalance" not in state.state:
            self._instances[group] = len({_instance(member) for member in state.members})

    def take_tasks(
        self, group: str, assignments: Mapping[str, Assignment], asked: int, *, decodable: bool = True
    ) -> None:
        """An application's assignments were read, having been asked for at that moment, ms.

        Those of a rebalance that came and went between two readings of the group are no answer: they are asked for
        again. decodable: whether all could be read; of what could not, the same is not asked for twice.
        """
        if group not in self._groups:
            return  # it has been forgotten meanwhile
        places = _places(self._groups[group])
        if decodable and any(assignments.get(one, Assignment()).partitions != held for one, held in places.items()):
            return
        self._assignments[group] = assignments
        self._answered[group] = asked

    def forget(self, group: str) -> None:
        """The group is no more."""
        for known in (self._groups, self._assignments, self._changed, self._answered, self._instances):
            known.pop(group, None)
        self.applications = self._named | (self.applications - {group})

    def completed(self, state: GroupState) -> GroupState:
        """The state with the assignor last told, and with the tasks that go with the partitions of its members."""
        assignments = self._assignments.get(state.group, {})
        members = tuple(
            msgspec.structs.replace(member, tasks=told.tasks)
            if (told := assignments.get(member.id)) is not None and told.partitions == member.partitions
            else member
            for member in state.members
        )
        last = self._groups.get(state.group, state)
        return msgspec.structs.replace(state, members=members, assignor=state.assignor or last.assignor)

    def facts(self, at: int, topics: Mapping[str, Collection[int]], groups: Collection[str]) -> list[Observation]:
        """The applications as of that moment, ms. topics: partitions of all topics. groups: those that there are; one
        that has not been read at rest yet is left out.
        """
        stores: dict[str, list[tuple[str, int]]] = {}
        for topic, partitions in topics.items():
            found = _store(topic, self.applications)
            if found is not None:
                stores.setdefault(found[0], []).append((found[1], len(partitions)))
        return [
            StreamsApplication(
                at=at,
                cluster=self._cluster,
                application=one,
                stores=tuple(sorted(stores.get(one, ()))),
                instances=self._instances.get(one, 0),
            )
            for one in sorted(self.applications)
            if one in self._instances or one not in groups
        ]


def _store(topic: str, applications: Collection[str]) -> tuple[str, str] | None:
    """(application, store) of a changelog topic: of applications whose ids begin alike the longest."""
    if not topic.endswith(_CHANGELOG):
        return None
    name = topic.removesuffix(_CHANGELOG)
    end = name.rfind("-")
    while end > 0:
        if name[:end] in applications:
            return name[:end], name[end + 1 :]
        end = name.rfind("-", 0, end)
    return None


def _places(state: GroupState) -> dict[str, tuple[tuple[str, int], ...]]:
    return {member.id: member.partitions for member in state.members}


def _instance(member: Member) -> tuple[str, str]:
    """Where the process is that the member is a thread of, and its client.id."""
    return member.host, _THREAD.sub("", member.client_id or member.id)
