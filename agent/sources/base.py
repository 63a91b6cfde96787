"""The edge where facts come in: what every source is, and how a poll becomes changes. One file per system watched."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from agent.model.observations import Observation, Subject

Batch = Sequence[Observation]
Emit = Callable[[Batch], None]

HEARTBEAT_MS = 600_000
"""How often an unchanged fact is emitted all the same, so that every stretch of the journal has a baseline."""


class Source(Protocol):
    """A system watched. `poll` is called every `interval` ms by the scheduler, never twice at a time."""

    name: str
    cluster: str
    interval: int

    def poll(self) -> None:
        """Look once and emit what changed. What cannot be seen is said with Unavailable; an exception is a defect."""

    def close(self) -> None:
        """Let go of connections and threads within a few seconds; nothing is emitted afterwards."""


class ChangeDetector:
    """Turns polls into changes: drops what is unchanged, and dates each change since the last sighting of the old
    value.
    """

    def __init__(self, known: Iterable[Observation] = ()) -> None:
        """known: the last observation of each subject before this run, so that what happened meanwhile is a change."""
        self._last = {one.subject: one for one in known}
        self._sighted = {subject: one.seen for subject, one in self._last.items()}

    def changes(self, polled: Iterable[Observation]) -> list[Observation]:
        """The observations whose fact is new, with `since` set, and a heartbeat of each that has long been
        unchanged.
        """
        changed = []
        for one in polled:
            subject = one.subject
            old, sighted = self._last.get(subject), self._sighted.get(subject)
            self._sighted[subject] = one.seen
            if old is None or sighted is None:
                self._last[subject] = one
                changed.append(one)
                continue
            if _fact(one) == _fact(old):
                if one.at - old.at >= HEARTBEAT_MS:
                    self._last[subject] = one
                    changed.append(one)
                continue
            dated = one if one.since is not None else msgspec.structs.replace(one, since=sighted)
            self._last[subject] = dated
            changed.append(dated)
        return changed

    def forget(self, subject: Subject) -> Observation | None:
        """Drop a subject that is gone for good; returns what was last known of it."""
        self._sighted.pop(subject, None)
        return self._last.pop(subject, None)

    def subjects(self) -> list[Subject]:
        """The subjects known, in order of first sighting."""
        return list(self._last)


def _fact(observation: Observation) -> Observation:
    """The observation with its times blanked: equal where the fact is the same."""
    return msgspec.structs.replace(observation, at=0, seen_at=None, since=None)
