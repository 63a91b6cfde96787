"""What operators decide, in the state file: silences, acknowledgements and closures.

Commands write it, beside the agent or without it; the agent's dispatchers read it before each delivery.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from agent.model.findings import Acknowledgement, Closure, Handling, Incident, handled
from agent.model.matchers import Matchers, Silence
from agent.storage.database import keep_aside, transaction, warn_of_row
from agent.storage.queueing import queue_log_entry, queue_message

T = TypeVar("T")


class _StoredSilence(msgspec.Struct, frozen=True, kw_only=True):
    matchers: dict[str, Any]
    begins_at: int
    author: str
    comment: str


# Made at import: msgspec crashes if two threads are the first to decode a type at the same time.
_SILENCE = msgspec.json.Decoder(_StoredSilence)
_HANDLING = msgspec.json.Decoder(Handling)


class Decisions:
    """The decisions in a state file. Used by one thread at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """db: a connection to the state file, which stays the caller's."""
        self._db = db

    def silences(self, since: int) -> list[Silence]:
        """Return the silences that end after `since` (ms), the first to end first."""
        rows = self._db.execute(
            "SELECT id, ends_at, body FROM silences WHERE ends_at > ? ORDER BY ends_at, id", (since,)
        ).fetchall()
        silences = []
        for silence_id, ends_at, body in rows:
            try:
                stored = _SILENCE.decode(body)
                matchers = Matchers.model_validate_json(msgspec.json.encode(stored.matchers))
            except (msgspec.DecodeError, ValidationError) as error:
                self._set_aside("silences", "id", silence_id, body, str(error))
                continue
            silences.append(Silence(silence_id, matchers, stored.begins_at, ends_at, stored.author, stored.comment))
        return silences

    def add(self, *silences: Silence) -> None:
        """Add all these silences or none, each in place of one with its id."""
        with transaction(self._db):
            for silence in silences:
                given = set(silence.matchers.given)
                stored = _StoredSilence(
                    matchers=silence.matchers.model_dump(mode="json", exclude_unset=True, include=given),
                    begins_at=silence.begins_at,
                    author=silence.author,
                    comment=silence.comment,
                )
                self._db.execute(
                    "INSERT OR REPLACE INTO silences VALUES (?, ?, ?)", (silence.id, silence.ends_at, _encode(stored))
                )

    def expire(self, silence_id: str, now: int) -> bool:
        """End a silence at `now` (ms); return whether it was there and had not ended."""
        ended = self._db.execute("UPDATE silences SET ends_at = ?1 WHERE id = ?2 AND ends_at > ?1", (now, silence_id))
        return ended.rowcount == 1

    def handled(self, incident: Incident) -> Incident:
        """Return the incident with what operators decided about it."""
        return handled(incident, self._handling(incident.id))

    def all_handled(self, incidents: Iterable[Incident]) -> list[Incident]:
        """Return the incidents with what operators decided about them, of which there is little."""
        rows = self._db.execute("SELECT incident, body FROM handling").fetchall()
        handlings = {incident_id: self._decode(incident_id, body) for incident_id, body in rows}
        return [handled(incident, handlings.get(incident.id, Handling())) for incident in incidents]

    def acknowledge(self, incident: Incident, acknowledgement: Acknowledgement) -> None:
        """Acknowledge an incident, and queue the edit of its messages."""
        with transaction(self._db):
            self._put(incident.id, replace(self._handling(incident.id), acknowledged=acknowledgement))

    def close(self, incident: Incident, closure: Closure) -> None:
        """Close an incident, and queue the edit of its messages."""
        with transaction(self._db):
            self._put(incident.id, replace(self._handling(incident.id), closed=closure))

    def inherit(self, incident_id: str, merged_id: str) -> None:
        """Let an incident take over the acknowledgement of one that was merged into it, unless it has its own.

        A closure is not taken over: what was closed is only a part of the incident.
        """
        acknowledged, own = self._handling(merged_id).acknowledged, self._handling(incident_id)
        if acknowledged is not None and own.acknowledged is None:
            self._put(incident_id, replace(own, acknowledged=acknowledged))

    def _handling(self, incident_id: str) -> Handling:
        row = self._db.execute("SELECT body FROM handling WHERE incident = ?", (incident_id,)).fetchone()
        return Handling() if row is None else self._decode(incident_id, row[0])

    def _put(self, incident_id: str, handling: Handling) -> None:
        self._db.execute("INSERT OR REPLACE INTO handling VALUES (?, ?)", (incident_id, _encode(handling)))
        receivers = self._db.execute("SELECT receiver FROM deliveries WHERE incident = ?", (incident_id,)).fetchall()
        for (receiver,) in receivers:
            queue_message(self._db, receiver, incident_id)
            queue_log_entry(self._db, receiver, incident_id)

    def _decode(self, incident_id: str, body: str) -> Handling:
        """Return the decisions about an incident; none if they cannot be read, so that it is posted."""
        try:
            return _HANDLING.decode(body)
        except msgspec.DecodeError as error:
            self._set_aside("handling", "incident", incident_id, body, str(error))
            return Handling()

    def _set_aside(self, table: str, column: str, row_id: str, body: str, reason: str) -> None:
        warn_of_row(f"{table} {row_id}", reason)
        keep_aside(self._db, table, row_id, body, reason)
        self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (row_id,))  # noqa: S608


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
