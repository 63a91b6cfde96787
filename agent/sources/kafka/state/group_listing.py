"""The selected consumer groups, their types and listed states. Makes no calls."""

from collections.abc import Iterable, Mapping

import msgspec

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState
from agent.sources.kafka.admin import protocol


class GroupListing:
    """The groups that rules.toml selects, as brokers list them. A group stays until it is forgotten."""

    def __init__(self, selected: NameFilter, known: Iterable[Observation] = ()) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._selected = selected
        self._types: dict[str, str | None] = {}
        self._listed_states: dict[str, str] = {}
        for fact in known:
            match fact:
                case Commit(group=group, offset=int()):
                    self.add({group: None})
                case GroupState(group=group):
                    self.add({group: fact.type})

    @property
    def names(self) -> list[str]:
        """The groups, sorted."""
        return sorted(self._types)

    @property
    def types(self) -> Mapping[str, str | None]:
        """The groups, and their types as Kafka names them; None if unknown."""
        return self._types

    def add(self, types: Mapping[str, str | None]) -> None:
        """Add the selected ones of these groups, with their types; None if unknown."""
        for group, kind in types.items():
            if group and self._selected.match(group):
                self._types[group] = kind or self._types.get(group)

    def add_typed(self, groups: Mapping[str, protocol.TypedGroup]) -> None:
        """Add the selected ones of groups that were listed with their types and states."""
        self.add({name: group.type for name, group in groups.items()})
        self._listed_states |= {name: group.state for name, group in groups.items() if name in self._types}

    def named(self, state: GroupState) -> GroupState:
        """Return the state with the group's type, and with a name if librdkafka does not know it.

        librdkafka does not know the states Assigning and Reconciling of KIP-848; the last listing does.
        """
        group = state.group
        name = self._listed_states.get(group, state.state) if state.state == "Unknown" else state.state
        return msgspec.structs.replace(state, state=name, type=self._types.get(group))

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._types.pop(group, None)
        self._listed_states.pop(group, None)
