"""The agent's state: incidents, the journal position they came from, check requests, and what must be delivered.

The pipeline's thread writes through IncidentStore; each dispatcher reads and removes rows through an Outbox of its own.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from agent.engine.check_requests import CheckRequest
from agent.model.findings import Finding, Incident, Severity, Status
from agent.storage.database import connect, keep_aside, storage_error, transaction, warn_of_row
from agent.storage.outbox import Handle
from agent.storage.queueing import (
    REPORT_PREFIX,
    queue_check_report,
    queue_log_entry,
    queue_message,
    queue_report,
)
from agent.storage.silences_and_acknowledgements import Decisions

T = TypeVar("T")

_TABLES_BY_INCIDENT = {
    "outbox": "incident",
    "check_reports": "incident",
    "deliveries": "incident",
    "handling": "incident",
    "incidents": "id",
}


class CheckReport(NamedTuple):
    """What a check reports about an incident: lines and a plot for its thread.

    incident: its id; None if it belongs to none. request: the request that it answers; None if it was scheduled.
    message: as an incident without findings, the message of its own that has the lines and the plot; None if it is no
    message.
    """

    incident: str | None
    request: CheckRequest | None
    lines: tuple[str, ...]
    plot: bytes | None = None
    message: Incident | None = None


# Made at import: msgspec 0.22 crashes if two threads are the first to decode a type at the same time.
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Incident, CheckRequest)
}


class Delivery(NamedTuple):
    """How far an incident has come with one receiver.

    handle: the receiver's own, None before the first message is confirmed. waiting: how many messages and entries are
    pending. attempted_at: when the oldest attempt began whose outcome is unknown (ms), or None.
    """

    receiver: str
    handle: Handle | None
    waiting: int
    attempted_at: int | None


class IncidentStore:
    """Incidents and the journal position. Used by one thread at a time.

    A row that cannot be read or written is set aside and passed to `unusable`.
    """

    def __init__(
        self, path: Path, receivers: Collection[str] = (), unusable: Callable[[str, str], None] = warn_of_row
    ) -> None:
        """Open or create the file. receivers: names of those who get every incident. Raises StorageError."""
        self.unusable = unusable
        self._receivers = tuple(receivers)
        self._open(path)

    @property
    def path(self) -> Path:
        """Where the state is."""
        return self._path

    @property
    def is_deleted(self) -> bool:
        """Whether the file is no longer what its path leads to."""
        try:
            status = self._path.stat()
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._file

    def move(self, path: Path, now: int) -> None:
        """Copy the state to another file, replacing its content, and go on there. Raises StorageError.

        A delivery confirmed meanwhile may not be part of the copy, so each pending one is looked up first. now: ms.
        """
        target = connect(path)
        try:
            self._db.backup(target)
            target.execute(
                "UPDATE outbox SET attempted_at = coalesce(attempted_at, ?) WHERE number = 0 OR report IS NOT NULL",
                (now,),
            )
        except sqlite3.Error as error:
            raise storage_error(path, error) from error
        finally:
            target.close()
        before = self._db
        self._open(path)
        before.close()

    def begin_again(self, path: Path, position: int, incidents: Iterable[Incident], now: int) -> None:
        """Go on with these incidents in another file: the present one cannot be read. Raises StorageError."""
        self._db.close()
        self._open(path)
        self.mark_rebuilt(now)
        self.save(position, incidents)

    def mark_rebuilt(self, now: int) -> None:
        """Look up at the receivers what is saved from now on if it opened before `now` (ms): it may be there."""
        self._db.execute("UPDATE journal SET rebuilt_at = ?", (now,))
        self._rebuilt_at = now

    def _open(self, path: Path) -> None:
        self._db, self._path = connect(path), path
        status = path.stat()
        self._file = status.st_dev, status.st_ino
        (self._rebuilt_at,) = self._db.execute("SELECT coalesce(rebuilt_at, 0) FROM journal").fetchone()

    @property
    def decisions(self) -> Decisions:
        """What operators decided."""
        return Decisions(self._db)

    @property
    def position(self) -> int:
        """The journal position up to which the incidents are complete; 0 in a new file."""
        (position,) = self._db.execute("SELECT position FROM journal").fetchone()
        return int(position)

    def incident(self, incident_id: str) -> Incident | None:
        """Return the incident as last saved, or None."""
        row = self._db.execute("SELECT body FROM incidents WHERE id = ?", (incident_id,)).fetchone()
        return None if row is None else self._decoded("incidents", incident_id, row[0], Incident)

    def incidents(self, *, closed_since: int = 0) -> list[Incident]:
        """Return the incidents by opening time; closed ones only if they were updated since then (ms)."""
        rows = self._db.execute(
            "SELECT id, body FROM incidents WHERE status != ? OR updated_at >= ? ORDER BY opened_at, id",
            (Status.CLOSED.value, closed_since),
        ).fetchall()
        return list(self._all_decoded("incidents", rows, Incident))

    def deliveries(self, incident_id: str) -> list[Delivery]:
        """Return how far the incident has come with each receiver, by name."""
        rows = self._db.execute(
            "SELECT receiver, handle, count(seq), min(attempted_at) FROM deliveries"
            " LEFT JOIN outbox USING (receiver, incident) WHERE incident = ? GROUP BY receiver ORDER BY receiver",
            (incident_id,),
        )
        return [
            Delivery(receiver, None if handle is None else msgspec.json.decode(handle), waiting, attempted_at)
            for receiver, handle, waiting, attempted_at in rows
        ]

    def check_reports(self, incident_id: str) -> list[tuple[str, ...]]:
        """Return the lines of each check report about the incident, the oldest first."""
        rows = self._db.execute("SELECT lines FROM check_reports WHERE incident = ? ORDER BY number", (incident_id,))
        return [tuple(msgspec.json.decode(lines)) for (lines,) in rows]

    def plot(self, incident_id: str) -> tuple[int, bytes] | None:
        """Return the latest plot of the incident's check reports, a PNG, after its report's number; None without."""
        row = self._db.execute(
            "SELECT number, plot FROM check_reports WHERE incident = ? AND plot IS NOT NULL"
            " ORDER BY number DESC LIMIT 1",
            (incident_id,),
        ).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def pending(self) -> int:
        """Return how many deliveries are pending, for all receivers."""
        rows = self._db.execute("SELECT receiver, count(*) FROM outbox GROUP BY receiver")
        return sum(number for receiver, number in rows if receiver in self._receivers)

    def check_requests(self) -> list[CheckRequest]:
        """Return the check requests without a result, the oldest first."""
        rows = self._db.execute("SELECT id, body FROM check_requests WHERE NOT answered ORDER BY rowid").fetchall()
        return list(self._all_decoded("check_requests", rows, CheckRequest))

    def save(
        self,
        position: int,
        incidents: Iterable[Incident],
        asks: Iterable[CheckRequest] = (),
        reports: Iterable[CheckReport] = (),
    ) -> frozenset[str]:
        """Save what changed with the journal position, and queue what must be delivered, in one transaction.

        asks: new requests are added, those without a result replaced. reports: taken once for each request.
        Returns the receivers for whom something was queued.
        """
        woken: set[str] = set()
        with transaction(self._db):
            self._db.execute("UPDATE journal SET position = ?", (position,))
            for incident in incidents:
                previous = self.incident(incident.id)
                if self._put(incident) and _is_changed(previous, incident):
                    woken.update(self._receivers)
                    for receiver in dict.fromkeys([*self._receivers, *self._receivers_of(incident.id)]):
                        self._queue(receiver, incident)
                    if incident.merged_into is not None:
                        self.decisions.inherit(incident.merged_into, incident.id)
            self._db.executemany(
                "INSERT INTO check_requests (id, body) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body WHERE NOT answered",
                [(request.id, _encode(request)) for request in asks],
            )
            for report in reports:
                woken.update(self._add(report))
        return frozenset(woken)

    def queue_open(self) -> None:
        """Queue each open incident for the receivers that do not have it, such as one that was added."""
        with transaction(self._db):
            rows = self._db.execute("SELECT id, body FROM incidents WHERE status = ?", (Status.OPEN.value,)).fetchall()
            for incident in self._all_decoded("incidents", rows, Incident):
                known = self._receivers_of(incident.id)
                for receiver in self._receivers:
                    if receiver not in known:
                        self._queue(receiver, incident)

    def prune(self, before: int) -> int:
        """Delete incidents closed and last updated before then (ms), with all their deliveries; return how many.

        An incident with a pending delivery stays. A check request goes once no finding is left that could repeat it.
        The file does not shrink; SQLite reuses the space. It says since when it has all incidents.
        """
        with transaction(self._db):
            self._db.execute("UPDATE journal SET pruned_before = max(coalesce(pruned_before, 0), ?)", (before,))
            waiting = {
                incident
                for receiver, incident in self._db.execute("SELECT DISTINCT receiver, incident FROM outbox")
                if receiver in self._receivers
            }
            rows = self._db.execute(
                "SELECT id, body FROM incidents WHERE status = ? AND updated_at < ?", (Status.CLOSED.value, before)
            ).fetchall()
            closed = list(self._all_decoded("incidents", rows, Incident))
            expired = [
                (incident.id,) for incident in closed if incident.id not in waiting and _last_known(incident) < before
            ]
            for table, column in _TABLES_BY_INCIDENT.items():
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", expired)  # noqa: S608
            self._db.execute("DELETE FROM silences WHERE ends_at < ?", (before,))
            self._db.execute(
                "DELETE FROM deliveries WHERE incident IN (SELECT id FROM digests WHERE made_at < ?)"
                " AND incident NOT IN (SELECT incident FROM outbox)",
                (before,),
            )
            self._db.execute("DELETE FROM digests WHERE id NOT IN (SELECT incident FROM deliveries)")
            self._db.execute(
                "DELETE FROM check_reports WHERE incident LIKE ? AND incident NOT IN (SELECT id FROM digests)",
                (f"{REPORT_PREFIX}%",),
            )
            self._prune_requests(before)
        return len(expired)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _prune_requests(self, before: int) -> None:
        rows = self._db.execute("SELECT id, body FROM check_requests WHERE answered").fetchall()
        requests = self._all_decoded("check_requests", rows, CheckRequest)
        old = [request for request in requests if request.until < before]
        if old:
            # Incidents that are not closed are correlated again after a restart, and request the same checks.
            kept = {finding.key for incident in self.incidents(closed_since=before) for finding in _findings(incident)}
            self._db.executemany(
                "DELETE FROM check_requests WHERE id = ?",
                [(request.id,) for request in old if request.finding not in kept],
            )

    def _put(self, incident: Incident) -> bool:
        """Write the incident; return whether it could be written."""
        try:
            self._db.execute(
                "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)",
                (incident.id, incident.status.value, incident.opened_at, incident.updated_at, _encode(incident)),
            )
        except (ValueError, TypeError, OverflowError) as error:
            self.unusable(f"incidents {incident.id}", f"cannot be written: {error}")
            return False
        return True

    def _all_decoded(self, table: str, rows: Iterable[tuple[str, str]], kind: type[T]) -> Iterator[T]:
        """Yield the bodies of rows (id, body) that can be read."""
        for row_id, body in rows:
            if (decoded := self._decoded(table, row_id, body, kind)) is not None:
                yield decoded

    def _decoded(self, table: str, row_id: str, body: str, kind: type[T]) -> T | None:
        """Return the body of a row; None, and the row is set aside, if it cannot be read."""
        try:
            return _DECODERS[kind].decode(body)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, TypeError) as error:
            reason = str(error)
        keep_aside(self._db, table, str(row_id), body, reason)
        self._db.execute(f"DELETE FROM {table} WHERE id IS ?", (row_id,))  # noqa: S608
        if table == "incidents":
            self._db.execute("DELETE FROM outbox WHERE incident IS ?", (row_id,))
        self.unusable(f"{table} {row_id}", f"cannot be read: {reason}")
        return None

    def _receivers_of(self, incident_id: str) -> list[str]:
        """Return who has the incident or waits for it, also those that are not configured: they may be again."""
        rows = self._db.execute("SELECT receiver FROM deliveries WHERE incident = ?", (incident_id,)).fetchall()
        return [receiver for (receiver,) in rows]

    def _queue(self, receiver: str, incident: Incident) -> None:
        """Queue the message and a thread entry; with the first message also the check reports there are."""
        incident_id = incident.id
        is_new = self._db.execute(
            "INSERT OR IGNORE INTO deliveries (receiver, incident) VALUES (?, ?)", (receiver, incident_id)
        ).rowcount
        queue_message(self._db, receiver, incident_id)
        queue_log_entry(self._db, receiver, incident_id)
        if is_new:
            rows = self._db.execute("SELECT number FROM check_reports WHERE incident = ?", (incident_id,)).fetchall()
            for (number,) in rows:
                queue_check_report(self._db, receiver, incident_id, number)
            if incident.opened_at < self._rebuilt_at and incident.severity is not Severity.INFO:
                self._db.execute(
                    "UPDATE outbox SET attempted_at = ? WHERE receiver = ? AND incident = ? AND number = 0",
                    (incident.opened_at, receiver, incident_id),
                )

    def _add(self, report: CheckReport) -> Iterator[str]:
        """Save a report unless its request had a result before; yield the receivers for whom it was queued."""
        if report.request is not None:
            answered = self._db.execute(
                "INSERT INTO check_requests VALUES (?, 1, ?)"
                " ON CONFLICT (id) DO UPDATE SET answered = 1 WHERE NOT answered",
                (report.request.id, _encode(report.request)),
            )
            if not answered.rowcount:
                return
        if report.message is not None:
            queue_report(self._db, self._receivers, report.message, report.lines, report.plot)
            yield from self._receivers
        if report.incident is None:
            return
        (number,) = self._db.execute(
            "INSERT INTO check_reports"
            " SELECT ?1, count(*) + 1, ?2, ?3 FROM check_reports WHERE incident = ?1 RETURNING number",
            (report.incident, _encode(report.lines), report.plot),
        ).fetchone()
        for receiver in self._receivers_of(report.incident):
            queue_check_report(self._db, receiver, report.incident, number)
            if receiver in self._receivers:
                yield receiver


def _is_changed(previous: Incident | None, incident: Incident) -> bool:
    """Whether anything but the time of the last update differs."""
    return previous is None or msgspec.structs.replace(previous, updated_at=incident.updated_at) != incident


def _findings(incident: Incident) -> tuple[Finding, ...]:
    return incident.causes + incident.findings


def _last_known(incident: Incident) -> int:
    """When the last of its findings became known: what a check finds may have happened months before."""
    return max((finding.known_at for finding in _findings(incident)), default=incident.updated_at)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
