"""The selected consumer groups, their types and states. Makes no calls."""

from collections.abc import Iterable, Mapping

import msgspec

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState
from agent.sources.kafka.admin import protocol


class GroupListing:
    """The groups that rules.toml selects, as brokers list them. A group stays until it is forgotten.

    described: the last state of each group, as its coordinator described it.
    """

    def __init__(self, selected: NameFilter, known: Iterable[Observation] = ()) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._selected = selected
        self._types: dict[str, str | None] = {}
        self._listed_states: dict[str, str] = {}
        self.described: dict[str, GroupState] = {}
        self._missing: dict[str, GroupState] = {}
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

    def apply(self, state: GroupState, *, has_commits: bool) -> GroupState | None:
        """Update with a group's state; return the state to observe, or None if its commits must be read first.

        They must if the coordinator does not know a group that has commits as one of consumers.
        """
        self.described[state.group] = state
        self._missing.pop(state.group, None)
        if state.is_gone and has_commits:
            self._missing[state.group] = state
            return None
        return self._named(state)

    def take_missing(self, group: str, *, has_commits: bool) -> GroupState | None:
        """Return the state to observe of a group whose commits had to be read first and have been; else None.

        Kafka deletes a group together with its offsets. If it has any, it is one of a type that the call cannot
        describe: a Streams application that has moved to the streams protocol (KIP-1071).
        """
        state = self._missing.pop(group, None)
        if state is None:
            return None
        return self._named(msgspec.structs.replace(state, state="Unknown") if has_commits else state)

    def _named(self, state: GroupState) -> GroupState:
        """Return the state with the group's type, and with a name if librdkafka does not know it.

        librdkafka does not know the states Assigning and Reconciling of KIP-848; the last listing does.
        """
        group = state.group
        name = self._listed_states.get(group, state.state) if state.state == "Unknown" else state.state
        return msgspec.structs.replace(state, state=name, type=self._types.get(group))

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        for by_group in (self._types, self._listed_states, self.described, self._missing):
            by_group.pop(group, None)


def without_other_groups(known: Iterable[Observation], selected: NameFilter) -> list[Observation]:
    """Return what is known without the states of groups that are gone or not selected."""
    return [
        fact for fact in known if not isinstance(fact, GroupState) or (selected.match(fact.group) and not fact.is_gone)
    ]
