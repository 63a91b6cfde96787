"""When a consumer group has had consumers: since when, and how long it was away. Histories are too short for that.

A rebalance makes two changes of a group's state, and a history keeps two dozen.
"""

from typing import NamedTuple

from agent.engine.history import History
from agent.model.observations.base import Subject
from agent.model.observations.kafka import GroupState

MEMORY_MS = 8 * 86_400_000
"""For how long after its end an absence counts."""


class _Absence(NamedTuple):
    """A time in which a group was Empty. end: ms. duration: in ms."""

    end: int
    duration: int


class Presence(NamedTuple):
    """When a group had consumers, as its states show.

    since: from when on, but for absences, ms; None if it had none, or was deleted. empty_since: from when on it has
    been Empty, ms; None if it is not. is_gone: whether it was deleted, and has had no consumers again. absences: those
    after which there was none as long, oldest first.
    """

    since: int | None = None
    empty_since: int | None = None
    is_gone: bool = False
    absences: tuple[_Absence, ...] = ()

    def then(self, state: GroupState) -> "Presence":
        """Return what is known with the next state."""
        if not state.has_consumers and not state.is_gone:
            begins = self.empty_since is None and not self.is_gone
            return self._replace(empty_since=state.at) if begins else self
        since, absences = self.since, self.absences
        if self.empty_since is not None:
            ended = _Absence(state.at, state.at - self.empty_since)
            old = [absence.end for absence in absences if absence.end < state.at - MEMORY_MS]
            since = None if since is None else max([since, *old])
            absences = (*(last for last in absences[len(old) :] if last.duration > ended.duration), ended)
        if state.is_gone:
            return Presence(is_gone=True, absences=absences)
        return Presence(state.at if since is None else since, absences=absences)

    def up_since(self, least: int) -> int | None:
        """Return since when the group has had consumers but for absences of less than `least` ms; None if it has not.

        It may have had them before that, when it was not observed or too long ago.
        """
        ends = (absence.end for absence in self.absences if absence.duration >= least)
        return None if self.since is None else max([self.since, *ends])

    def longest_absence(self, least: int) -> int:
        """Return the longest absence of the last days that took `least` ms or more; 0 if there was none."""
        return max((absence.duration for absence in self.absences if absence.duration >= least), default=0)


class GroupStates(History[GroupState]):
    """The states of a group. presence: as those showed that are no longer among `changes`."""

    __slots__ = ("presence",)

    def __init__(self, subject: Subject = ()) -> None:
        super().__init__(subject)
        self.presence = Presence()

    def drop(self, count: int) -> None:
        for state in self.changes[:count]:
            self.presence = self.presence.then(state)
        super().drop(count)
