"""What must be said to one receiver, read and struck off by its outbox. What is queued, and when, lives in store."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.model.findings import Incident
from agent.notify.base import Handle, Message
from agent.storage.database import connect, transaction


class Row(NamedTuple):
    """A message taken from the queue. attempted_at: when an attempt began whose end is not known (ms); None: none."""

    seq: int
    revision: int
    message: Message
    handle: Handle | None
    attempted_at: int | None


class Outbox:
    """What one receiver has not confirmed yet. Used by one thread at a time."""

    def __init__(self, path: Path, receiver: str) -> None:
        """Open the file. Raises StorageError."""
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
            "SELECT revision, attempted_at, outbox.number, outbox.lines, outbox.evidence, plot, handle, body"
            " FROM outbox JOIN deliveries USING (receiver, incident) JOIN incidents ON id = outbox.incident"
            " LEFT JOIN evidence ON evidence.incident = outbox.incident AND evidence.number = outbox.evidence"
            " AND outbox.lines = '[]' WHERE seq = ?",
            (seq,),
        ).fetchone()
        if row is None:
            return None
        revision, attempted_at, number, lines, evidence, plot, handle, body = row
        incident = msgspec.json.decode(body, type=Incident)
        message = Message(incident, number, tuple(msgspec.json.decode(lines)), evidence or 0, plot)
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
                queue_message(self._db, self._receiver, row.message.incident.id)

    def refused(self, row: Row) -> None:
        """The receiver certainly did not take it: the next attempt needs no look-up."""
        self._db.execute("UPDATE outbox SET attempted_at = NULL WHERE seq = ?", (row.seq,))

    def gone(self, row: Row) -> None:
        """What was delivered is no longer there: the incident's message is made anew before anything else is said."""
        with transaction(self._db):
            self._remember(row.message.incident.id, None)
            self.refused(row)
            queue_message(self._db, self._receiver, row.message.incident.id)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _remember(self, incident_id: str, handle: Handle | None) -> None:
        self._db.execute(
            "UPDATE deliveries SET handle = ? WHERE receiver = ? AND incident = ?",
            (None if handle is None else msgspec.json.encode(handle).decode(), self._receiver, incident_id),
        )


def queue_message(db: sqlite3.Connection, receiver: str, incident_id: str) -> None:
    """One row however often the incident changes: it is sent as it is at that moment."""
    db.execute(
        "INSERT INTO outbox (receiver, incident, number) VALUES (?, ?, 0)"
        " ON CONFLICT (receiver, incident, number) DO UPDATE SET revision = revision + 1",
        (receiver, incident_id),
    )
