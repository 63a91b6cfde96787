"""Finds what the facts keep of subjects by the values of some of their key fields."""

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from agent.model.observations.base import Observation, Subject


class HasSubject(Protocol):
    """What an index finds."""

    subject: Subject
    changes: Any


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

H = TypeVar("H", bound=HasSubject)


class SubjectIndex(Generic[H]):
    """The histories of one kind of observations by the values of some of its key fields."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.values_of: Callable[[Observation], Hashable] = attrgetter(*names)
        self.members: dict[Hashable, list[H]] = {}

    def add(self, observation: Observation, history: H) -> None:
        insort(self.members.setdefault(self.values_of(observation), []), history, key=sort_key)

    def remove(self, history: H) -> None:
        """Remove a history if it is one of them: kinds may share subjects."""
        values = self.values_of(history.changes[-1])
        members = self.members.get(values, [])
        position = bisect_left(members, sort_key(history), key=sort_key)
        if position < len(members) and members[position] is history:
            del members[position]
        if not members:
            self.members.pop(values, None)


def sort_key(history: HasSubject) -> tuple[Any, ...]:
    """Return the subject in a form that sorts: None before any value."""
    return tuple((value is not None, value) for value in history.subject)
