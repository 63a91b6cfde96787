"""The agent's state: incidents, the journal position they came from, what was asked of checks and what must still be
delivered. No network.

The pipeline's thread writes through IncidentStore; each outbox reads and strikes off through a Outbox, on its own connection.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from agent.engine.check_requests import CheckRequest
from agent.model.findings import Finding, Incident, Status
from agent.notify.policy import posting
from agent.storage.database import connect, transaction
from agent.storage.outbox import queue_message

_ENTRY_CHARACTERS = 2_000
_OF_INCIDENTS = {"outbox": "incident", "evidence": "incident", "deliveries": "incident", "incidents": "id"}


class CheckReport(NamedTuple):
    """What a check has to say of an incident: lines and a plot for its thread. incident None: of none that stands.

    ask: what it answers, struck off with it; None where nothing had asked.
    """

    incident: str | None
    ask: CheckRequest | None
    lines: tuple[str, ...]
    plot: bytes | None = None


class IncidentStore:
    """Incidents and the journal position. Used by one thread at a time."""

    def __init__(self, path: Path, receivers: Collection[str] = ()) -> None:
        """Open or create the file. receivers: the names of those who are to be told. Raises StorageError."""
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

    def incidents(self, *, closed_since: int = 0) -> list[Incident]:
        """The incidents in the order in which they began; of those closed the ones that had news since then (ms)."""
        rows = self._db.execute(
            "SELECT body FROM incidents WHERE status != ? OR updated_at >= ? ORDER BY opened_at, id",
            (Status.CLOSED.value, closed_since),
        )
        return [_decode(body) for (body,) in rows]

    def pending(self) -> int:
        """How many messages and entries the receivers have not confirmed yet."""
        rows = self._db.execute("SELECT receiver, count(*) FROM outbox GROUP BY receiver")
        return sum(number for receiver, number in rows if receiver in self._receivers)

    def asks(self) -> list[CheckRequest]:
        """What was asked of checks and is not answered yet, the oldest first."""
        rows = self._db.execute("SELECT body FROM asks WHERE NOT answered ORDER BY rowid")
        return [msgspec.json.decode(body, type=CheckRequest) for (body,) in rows]

    def save(
        self,
        position: int,
        incidents: Iterable[Incident],
        asks: Iterable[CheckRequest] = (),
        evidence: Iterable[CheckReport] = (),
    ) -> frozenset[str]:
        """Keep what changed and the journal position, and queue what must be said, in one transaction.

        asks: new ones are kept, those not answered yet are replaced. evidence: told once for each ask.
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
            self._db.executemany(
                "INSERT INTO asks (id, body) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body WHERE NOT answered",
                [(one.id, _encode(one)) for one in asks],
            )
            for one in evidence:
                woken.update(self._add(one))
        return frozenset(woken)

    def prune(self, before: int) -> int:
        """Forget what was closed and had its last news before then (ms), with all that was told of it; returns how many
        incidents that were.

        An incident of which a receiver is still to be told something stays. What was asked of checks goes when no
        finding is left that could ask it again. The file does not shrink; SQLite uses the room again.
        """
        with transaction(self._db):
            waiting = {
                incident
                for receiver, incident in self._db.execute("SELECT DISTINCT receiver, incident FROM outbox")
                if receiver in self._receivers
            }
            closed = self._db.execute(
                "SELECT body FROM incidents WHERE status = ? AND updated_at < ?", (Status.CLOSED.value, before)
            )
            over = [
                one.id for (body,) in closed if (one := _decode(body)).id not in waiting and _last_known(one) < before
            ]
            for table, column in _OF_INCIDENTS.items():
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(one,) for one in over])  # noqa: S608
            self._forget_asks(before)
        return len(over)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _forget_asks(self, before: int) -> None:
        answered = self._db.execute("SELECT body FROM asks WHERE answered").fetchall()
        old = [one for (body,) in answered if (one := msgspec.json.decode(body, type=CheckRequest)).until < before]
        if old:
            # What is not closed is followed again after a restart, and asks the same.
            held = {one.key for incident in self.incidents(closed_since=before) for one in _all_of(incident)}
            self._db.executemany("DELETE FROM asks WHERE id = ?", [(one.id,) for one in old if one.finding not in held])

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
            queue_message(self._db, receiver, incident.id)
        if told.entry:
            self._queue_entry(receiver, incident.id, entries, told.entry)
        if not posted:
            for (number,) in self._db.execute("SELECT number FROM evidence WHERE incident = ?", (incident.id,)):
                self._queue_evidence(receiver, incident.id, number)
        return True

    def _add(self, evidence: CheckReport) -> Iterator[str]:
        """Keep evidence, unless its ask was answered before; yields those who were told of its incident already."""
        if evidence.ask is not None:
            struck = self._db.execute(
                "INSERT INTO asks VALUES (?, 1, ?) ON CONFLICT (id) DO UPDATE SET answered = 1 WHERE NOT answered",
                (evidence.ask.id, _encode(evidence.ask)),
            )
            if not struck.rowcount:
                return
        if evidence.incident is None:
            return
        (number,) = self._db.execute(
            "INSERT INTO evidence SELECT ?1, count(*) + 1, ?2, ?3 FROM evidence WHERE incident = ?1 RETURNING number",
            (evidence.incident, _encode(evidence.lines), evidence.plot),
        ).fetchone()
        told = self._db.execute("SELECT receiver FROM deliveries WHERE incident = ?", (evidence.incident,)).fetchall()
        for (receiver,) in told:
            if receiver in self._receivers:
                self._queue_evidence(receiver, evidence.incident, number)
                yield receiver

    def _queue_evidence(self, receiver: str, incident_id: str, number: int) -> None:
        """An entry with its lines, then one with its plot: a plot that is not taken must not keep the lines back."""
        self._db.execute(
            "INSERT INTO outbox (receiver, incident, number, lines, evidence)"
            " SELECT receiver, incident, entries + part, iif(part = 1, evidence.lines, '[]'), evidence.number"
            " FROM deliveries JOIN evidence USING (incident) JOIN (SELECT 1 AS part UNION SELECT 2)"
            " WHERE receiver = ? AND incident = ? AND evidence.number = ? AND (part = 1 OR plot IS NOT NULL)",
            (receiver, incident_id, number),
        )
        self._db.execute(
            "UPDATE deliveries SET entries = (SELECT max(number) FROM outbox WHERE outbox.receiver = ?1"
            " AND outbox.incident = ?2) WHERE receiver = ?1 AND incident = ?2",
            (receiver, incident_id),
        )

    def _queue_entry(self, receiver: str, incident_id: str, last: int, lines: tuple[str, ...]) -> None:
        """Add lines to the thread's last entry while it waits untried and is short: a burst makes few entries."""
        waiting = self._db.execute(
            "SELECT seq, lines FROM outbox WHERE receiver = ? AND incident = ? AND number = ?"
            " AND number > 0 AND attempted_at IS NULL AND evidence IS NULL",
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


def _incident(db: sqlite3.Connection, incident_id: str) -> Incident | None:
    row = db.execute("SELECT body FROM incidents WHERE id = ?", (incident_id,)).fetchone()
    return None if row is None else _decode(row[0])


def _all_of(incident: Incident) -> tuple[Finding, ...]:
    return incident.causes + incident.findings


def _last_known(incident: Incident) -> int:
    """When the last of it became known: what a check finds may have happened months before."""
    return max((one.known_at for one in _all_of(incident)), default=incident.updated_at)


def _decode(body: str) -> Incident:
    return msgspec.json.decode(body, type=Incident)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
