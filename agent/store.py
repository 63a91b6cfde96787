"""The agent's state: incidents, the journal position they came from, and what must still be delivered. No network.

The pipeline's thread writes through Store; each outbox reads and strikes off through a Queue, on its own connection.
"""

import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from agent.findings import Incident, Status
from agent.notifiers import Handle, Message
from agent.postings import posting
from agent.state_file import connect, transaction

_ENTRY_CHARACTERS = 2_000


class Row(NamedTuple):
    """A message taken from the queue. attempted_at: when an attempt began whose end is not known (ms); None: none."""

    seq: int
    revision: int
    message: Message
    handle: Handle | None
    attempted_at: int | None


class Store:
    """Incidents and the journal position. Used by one thread at a time."""

    def __init__(self, path: Path, receivers: Collection[str] = ()) -> None:
        """Open or create the file. receivers: the names of those who are to be told. Raises StoreError."""
        self._db = connect(path)
        self._receivers = tuple(receivers)

    @property
    def position(self) -> int:
        """The journal position up to which the incidents are complete; 0 in a new file."""
        (position,) = self._db.execute("SELECT position FROM journal").fetchone()
        return int(position)

    def incident(self, incident_id: str) -> Incident | None:
        """The incident as last saved; None where there is none of this id."""
        return _incident(self._db, incident_id)

    def incidents(self, *, include_closed: bool = True) -> list[Incident]:
        """All incidents in the order in which they began."""
        rows = self._db.execute(
            "SELECT body FROM incidents WHERE ? OR status != ? ORDER BY opened_at, id",
            (include_closed, Status.CLOSED.value),
        )
        return [_decode(body) for (body,) in rows]

    def pending(self) -> int:
        """How many messages and entries the receivers have not confirmed yet."""
        rows = self._db.execute("SELECT receiver, count(*) FROM outbox GROUP BY receiver")
        return sum(number for receiver, number in rows if receiver in self._receivers)

    def save(self, position: int, incidents: Iterable[Incident]) -> frozenset[str]:
        """Keep the incidents that changed and the journal position, and queue what must be said, in one transaction.

        Returns the receivers for whom something was queued: wake them.
        """
        woken: set[str] = set()
        with transaction(self._db):
            self._db.execute("UPDATE journal SET position = ?", (position,))
            for incident in incidents:
                previous = _incident(self._db, incident.id)
                self._db.execute(
                    "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)",
                    (incident.id, incident.status.value, incident.opened_at, incident.updated_at, _encode(incident)),
                )
                woken.update(name for name in self._receivers if self._queue(name, previous, incident))
        return frozenset(woken)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _queue(self, receiver: str, previous: Incident | None, incident: Incident) -> bool:
        key = (receiver, incident.id)
        entries, posted = self._db.execute(
            "SELECT entries, handle IS NOT NULL OR EXISTS (SELECT 1 FROM outbox AS tried WHERE attempted_at IS NOT NULL"
            " AND tried.receiver = deliveries.receiver AND tried.incident = deliveries.incident)"
            " FROM deliveries WHERE receiver = ? AND incident = ?",
            key,
        ).fetchone() or (0, False)
        if not posted:
            # As long as nothing of it was tried, all that waits is said afresh: in one go, or not at all if it is over.
            entries = 0
            self._db.execute("DELETE FROM outbox WHERE receiver = ? AND incident = ?", key)
            self._db.execute("DELETE FROM deliveries WHERE receiver = ? AND incident = ?", key)
        told = posting(previous, incident, posted=bool(posted))
        if not told.message and not told.entry:
            return False
        self._db.execute("INSERT OR IGNORE INTO deliveries (receiver, incident) VALUES (?, ?)", key)
        if told.message:
            _queue_message(self._db, receiver, incident.id)
        if told.entry:
            self._queue_entry(receiver, incident.id, entries, told.entry)
        return True

    def _queue_entry(self, receiver: str, incident_id: str, last: int, lines: tuple[str, ...]) -> None:
        """Add lines to the thread's last entry while it waits untried and is short: a burst makes few entries."""
        waiting = self._db.execute(
            "SELECT seq, lines FROM outbox"
            " WHERE receiver = ? AND incident = ? AND number = ? AND number > 0 AND attempted_at IS NULL",
            (receiver, incident_id, last),
        ).fetchone()
        if waiting is not None:
            joined = (*msgspec.json.decode(waiting[1]), *lines)
            if sum(map(len, joined)) <= _ENTRY_CHARACTERS:
                self._db.execute(
                    "UPDATE outbox SET lines = ?, revision = revision + 1 WHERE seq = ?", (_encode(joined), waiting[0])
                )
                return
        self._db.execute(
            "INSERT INTO outbox (receiver, incident, number, lines) VALUES (?, ?, ?, ?)",
            (receiver, incident_id, last + 1, _encode(lines)),
        )
        self._db.execute(
            "UPDATE deliveries SET entries = ? WHERE receiver = ? AND incident = ?", (last + 1, receiver, incident_id)
        )


class Queue:
    """What one receiver has not confirmed yet. Used by one thread at a time."""

    def __init__(self, path: Path, receiver: str) -> None:
        """Open the file. Raises StoreError."""
        self._db = connect(path)
        self._receiver = receiver

    def heads(self) -> list[tuple[str, int]]:
        """(incident id, seq) of the next thing to say of each incident; those never told come first."""
        rows = self._db.execute(
            "SELECT incident, seq FROM outbox JOIN deliveries USING (receiver, incident) WHERE receiver = ?"
            " ORDER BY number > 0 OR handle IS NOT NULL, seq",
            (self._receiver,),
        )
        first: dict[str, int] = {}
        for incident_id, seq in rows:
            first.setdefault(str(incident_id), int(seq))
        return list(first.items())

    def read(self, seq: int) -> Row | None:
        """The row, with the incident as it is at this moment; None where it is no longer queued."""
        row = self._db.execute(
            "SELECT revision, attempted_at, number, lines, handle, body FROM outbox"
            " JOIN deliveries USING (receiver, incident) JOIN incidents ON incidents.id = incident WHERE seq = ?",
            (seq,),
        ).fetchone()
        if row is None:
            return None
        revision, attempted_at, number, lines, handle, body = row
        message = Message(_decode(body), number, tuple(msgspec.json.decode(lines)))
        return Row(seq, revision, message, None if handle is None else msgspec.json.decode(handle), attempted_at)

    def attempt(self, row: Row, now: int) -> bool:
        """Mark the row as tried since `now` (ms), before anything is sent; False where it changed since it was read."""
        marked = self._db.execute(
            "UPDATE outbox SET attempted_at = coalesce(attempted_at, ?) WHERE seq = ? AND revision = ?",
            (now, row.seq, row.revision),
        )
        return marked.rowcount == 1

    def found(self, row: Row, handle: Handle) -> None:
        """Remember where the receiver keeps the incident; the row stays."""
        self._remember(row.message.incident.id, handle)

    def confirmed(self, row: Row, handle: Handle | None) -> None:
        """Strike the row off. A message that changed while it was being sent waits again, behind its thread."""
        with transaction(self._db):
            self._remember(row.message.incident.id, handle)
            self._db.execute("DELETE FROM outbox WHERE seq = ? AND revision = ?", (row.seq, row.revision))
            if self._db.execute("DELETE FROM outbox WHERE seq = ?", (row.seq,)).rowcount:
                _queue_message(self._db, self._receiver, row.message.incident.id)

    def refused(self, row: Row) -> None:
        """The receiver certainly did not take it: the next attempt needs no look-up."""
        self._db.execute("UPDATE outbox SET attempted_at = NULL WHERE seq = ?", (row.seq,))

    def gone(self, row: Row) -> None:
        """What was delivered is no longer there: the incident's message is made anew before anything else is said."""
        with transaction(self._db):
            self._remember(row.message.incident.id, None)
            self.refused(row)
            _queue_message(self._db, self._receiver, row.message.incident.id)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _remember(self, incident_id: str, handle: Handle | None) -> None:
        self._db.execute(
            "UPDATE deliveries SET handle = ? WHERE receiver = ? AND incident = ?",
            (None if handle is None else _encode(handle), self._receiver, incident_id),
        )


def _queue_message(db: sqlite3.Connection, receiver: str, incident_id: str) -> None:
    """One row however often the incident changes: it is sent as it is at that moment."""
    db.execute(
        "INSERT INTO outbox (receiver, incident, number) VALUES (?, ?, 0)"
        " ON CONFLICT (receiver, incident, number) DO UPDATE SET revision = revision + 1",
        (receiver, incident_id),
    )


def _incident(db: sqlite3.Connection, incident_id: str) -> Incident | None:
    row = db.execute("SELECT body FROM incidents WHERE id = ?", (incident_id,)).fetchone()
    return None if row is None else _decode(row[0])


def _decode(body: str) -> Incident:
    return msgspec.json.decode(body, type=Incident)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
