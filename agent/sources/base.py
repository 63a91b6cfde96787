"""The interface of a source, and the detector that turns polled observations into changes."""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Protocol
from zlib import crc32

import msgspec

from agent.model.observations.base import Observation, Subject, is_same_fact

Batch = Collection[Observation]
Emit = Callable[[Batch], None]

SCOPE = 3
"""How many parts of a subject identify what facts are confirmed together, such as all commits of a group."""

GONE = 1_000
"""How many scopes that no longer exist are remembered at least."""

HEARTBEAT_MS = 600_000
"""How often an unchanged fact is emitted again, so that every part of the journal has a baseline."""

_SPREAD_MS = 15_000
"""How much later heartbeats of what is confirmed without being read come, and once more, by their scope."""


class Source(Protocol):
    """A watched system. The scheduler calls `poll` every `interval` ms, never concurrently.

    read_at: when the system last answered, ms; None if it has not since the start. problem: why it cannot be watched as
    it should although it answers, sentences for an operator that do not change; None if it can.
    """

    name: str
    cluster: str
    interval: int

    @property
    def read_at(self) -> int | None: ...

    @property
    def problem(self) -> str | None: ...

    def poll(self) -> None:
        """Emit what changed. What cannot be read is emitted as Unavailable; an exception is a defect."""

    def close(self) -> None:
        """Release connections and threads within a few seconds; nothing is emitted afterwards."""


class ChangeDetector:
    """Reduces polls to changes: drops unchanged facts and dates each change since the old value was last seen."""

    def __init__(self, known: Iterable[Observation] = ()) -> None:
        """Start from `known`, the last observation of each subject before this run: changes during downtime count."""
        self._last = {observation.subject: observation for observation in known}
        self._last_seen = {subject: observation.seen for subject, observation in self._last.items()}
        self._confirmed: dict[Subject, int] = {}
        self._gone: dict[Subject, None] = {}
        self._due_at: dict[Subject, int] = {}
        self._tidied_at = 0

    def changes(self, polled: Iterable[Observation]) -> list[Observation]:
        """Return the observations whose fact is new, with `since` set, and heartbeats of facts unchanged for long."""
        changed = []
        for observation in polled:
            subject = observation.subject
            if self._gone and not observation.is_gone:
                self._gone.pop(subject[:SCOPE], None)
            old, last_seen = self._last.get(subject), self._last_seen.get(subject)
            self._last_seen[subject] = observation.seen
            if old is None or last_seen is None:
                current = observation
            elif is_same_fact(old, observation):
                if observation.at - old.at < HEARTBEAT_MS:
                    continue
                current = observation
            elif observation.since is None:
                since = max(last_seen, self._confirmed.get(subject[:SCOPE], last_seen))
                current = msgspec.structs.replace(observation, since=since)
            else:
                current = observation
            self._last[subject] = current
            changed.append(current)
        return changed

    def confirm(self, scope: Subject, at: int) -> None:
        """Take note that no fact has changed whose subject begins with these SCOPE parts, as seen at that time, ms."""
        self._confirmed[scope] = at

    def heartbeats(self, scope: Subject, subjects: Callable[[], Iterable[Subject]], at: int) -> list[Observation]:
        """Return the facts of these subjects that were emitted long ago, dated when they were confirmed (`at`, ms).

        scope: by which they are looked at together, only when some may be due, and not all scopes at once. subjects:
        returns all of the scope, the same each time but for new ones; called only then.
        """
        if at < self._due_at.get(scope, 0):
            return []
        facts = [last for last in map(self._last.get, subjects()) if last is not None]
        oldest = min((last.at for last in facts if at - last.at < HEARTBEAT_MS), default=at)
        self._due_at[scope] = oldest + HEARTBEAT_MS + _SPREAD_MS + crc32(repr(scope).encode()) % _SPREAD_MS
        if not 0 <= at - self._tidied_at < HEARTBEAT_MS:
            self._tidied_at = at
            self._due_at = {scope: due for scope, due in self._due_at.items() if due > at - HEARTBEAT_MS}
        return [
            msgspec.structs.replace(last, at=at, seen_at=None, since=None)
            for last in facts
            if at - last.at >= HEARTBEAT_MS
        ]

    def end(self, scope: Subject) -> None:
        """Take note that the subjects of a scope no longer exist. They may return, so that many are remembered."""
        self._confirmed.pop(scope, None)
        self._gone[scope] = None
        if len(self._gone) > 2 * GONE:
            forgotten = set(islice(self._gone, len(self._gone) - GONE))
            self._gone = {scope: None for scope in self._gone if scope not in forgotten}
            for subject in [subject for subject in self._last if subject[:SCOPE] in forgotten]:
                self.forget(subject)

    def add(self, observation: Observation) -> None:
        """Take note of an observation that was emitted otherwise."""
        self._last[observation.subject] = observation
        self._last_seen[observation.subject] = observation.seen

    def forget(self, subject: Subject) -> Observation | None:
        """Drop a subject that no longer exists; return its last observation."""
        self._last_seen.pop(subject, None)
        return self._last.pop(subject, None)

    def forget_all(self, subjects: Iterable[Subject]) -> None:
        """Drop subjects that are not polled any more; if these are most, also the room that they took."""
        before = len(self._last)
        for subject in subjects:
            self.forget(subject)
        if 2 * len(self._last) < before:
            self._last, self._last_seen = dict(self._last), dict(self._last_seen)

    def subjects(self) -> list[Subject]:
        """Return the known subjects, in the order in which they were first seen."""
        return list(self._last)
