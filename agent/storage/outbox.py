"""The outbox table: what must be delivered to one receiver, and how far each delivery has come."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from agent.model.findings import Incident, Severity, Status
from agent.model.matchers import Silence
from agent.storage.database import connect, keep_aside, transaction, warn_of_row
from agent.storage.queueing import REPORT_PREFIX, queue_message
from agent.storage.silences_and_acknowledgements import Decisions

Handle: TypeAlias = Mapping[str, Any]
"""What a receiver remembers of a delivery, such as a channel and a timestamp; plain JSON."""


# Made at import: msgspec crashes if two threads are the first to decode a type at the same time.
_INCIDENT = msgspec.json.Decoder(Incident)
_LINES = msgspec.json.Decoder(tuple[str, ...])
_HANDLE = msgspec.json.Decoder(dict[str, Any])


class Row(NamedTuple):
    """One pending delivery, with the incident as it is now.

    number: 0 for the incident's message, n for its nth thread entry. lines: of an entry that was attempted before, or
    of a check report. check_report: the number of the one that it carries, 0 if none; plot: of that report, a PNG.
    attempted_at: when an attempt began whose outcome is unknown (ms), or None. fingerprint: of the message as last
    delivered. covered: what the thread covers, as JSON; None before the first message. quiet_until: end of the quiet
    hours that hold it back (ms), or None.
    """

    seq: int
    revision: int
    incident: Incident
    number: int = 0
    lines: tuple[str, ...] = ()
    check_report: int = 0
    plot: bytes | None = None
    handle: Handle | None = None
    attempted_at: int | None = None
    fingerprint: str | None = None
    covered: str | None = None
    quiet_until: int | None = None

    @property
    def is_log_entry(self) -> bool:
        """Whether it is a thread entry about the incident itself, not a check report."""
        return self.number > 0 and not self.check_report

    @property
    def is_digest(self) -> bool:
        """Whether it is a digest after quiet hours."""
        return self.number == 0 and bool(self.lines) and not self.is_report

    @property
    def is_report(self) -> bool:
        """Whether it is a check report that is a message of its own, or its plot."""
        return self.incident.id.startswith(REPORT_PREFIX)


class Digest(NamedTuple):
    """What to deliver after quiet hours.

    incident: one without findings, which carries id, severity and title. lines: one for each incident that was held
    back. over: ids of those that are no longer open: nothing else is delivered of them.
    """

    incident: Incident
    lines: tuple[str, ...]
    over: tuple[str, ...]


class Outbox:
    """Pending deliveries of one receiver. Used by one thread at a time."""

    def __init__(self, path: Path, receiver: str) -> None:
        """Open the state file. Raises StorageError."""
        self._db = connect(path)
        self._receiver = receiver
        self._decisions = Decisions(self._db)

    def silences(self, now: int) -> list[Silence]:
        """Return the silences that last at `now`, ms."""
        return [silence for silence in self._decisions.silences(now) if silence.is_active(now)]

    def announced(self, before: int) -> list[tuple[Incident, int]]:
        """Return the open incidents that were last announced before then (ms), and when.

        One with an entry that is pending is left out: it may notify its people when it is delivered.
        """
        rows = self._db.execute(
            "SELECT body, coalesce(announced_at, opened_at) FROM deliveries JOIN incidents ON id = incident"
            " WHERE receiver = ? AND handle IS NOT NULL AND status = ? AND coalesce(announced_at, opened_at) < ?"
            " AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.receiver = deliveries.receiver"
            " AND outbox.incident = deliveries.incident AND number > 0 AND report IS NULL)",
            (self._receiver, Status.OPEN.value, before),
        ).fetchall()
        return [(self._decisions.handled(incident), at) for body, at in rows for incident in _decoded(body)]

    def handles(self) -> list[Handle]:
        """Return the handles of all incidents that were delivered and are not closed."""
        rows = self._db.execute(
            "SELECT handle FROM deliveries JOIN incidents ON id = incident"
            " WHERE receiver = ? AND handle IS NOT NULL AND status != ? ORDER BY opened_at, id",
            (self._receiver, Status.CLOSED.value),
        )
        return [_HANDLE.decode(handle) for (handle,) in rows]

    def queue_edits(self) -> None:
        """Queue the messages of all incidents that were delivered and are not closed, if they read differently now."""
        with transaction(self._db):
            delivered = self._db.execute(
                "SELECT incident FROM deliveries JOIN incidents ON id = incident"
                " WHERE receiver = ? AND handle IS NOT NULL AND status != ?",
                (self._receiver, Status.CLOSED.value),
            ).fetchall()
            for (incident_id,) in delivered:
                queue_message(self._db, self._receiver, incident_id)

    def announce(self, incident_id: str, line: str, now: int) -> None:
        """Queue an entry of the thread that notifies people again, at `now`, ms."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE deliveries SET announced_at = ?, entries = entries + 1 WHERE receiver = ? AND incident = ?",
                (now, self._receiver, incident_id),
            )
            self._db.execute(
                "INSERT INTO outbox (receiver, incident, number, lines) SELECT receiver, incident, entries, ?"
                " FROM deliveries WHERE receiver = ? AND incident = ?",
                (msgspec.json.encode([line]).decode(), self._receiver, incident_id),
            )

    def hold(self, incident_id: str, quiet_until: int) -> None:
        """Record that quiet hours hold back the incident until then, ms."""
        self._db.execute(
            "UPDATE deliveries SET quiet_until = ? WHERE receiver = ? AND incident = ?",
            (quiet_until, self._receiver, incident_id),
        )

    def end_quiet_hours(self, summarize: Callable[[list[Incident]], Digest | None], now: int) -> None:
        """Queue the digest of what quiet hours have held back and nothing was attempted of. now: ms.

        summarize: returns the digest of the incidents as they are now, None if there is nothing to report.
        """
        with transaction(self._db):
            rows = self._db.execute(
                "SELECT body FROM deliveries JOIN incidents ON id = incident"
                " WHERE receiver = ? AND quiet_until IS NOT NULL AND handle IS NULL"
                " AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.receiver = deliveries.receiver"
                " AND outbox.incident = deliveries.incident AND attempted_at IS NOT NULL) ORDER BY opened_at, id",
                (self._receiver,),
            ).fetchall()
            digest = summarize([self._decisions.handled(incident) for (body,) in rows for incident in _decoded(body)])
            if digest is not None:
                self._queue_digest(digest, now)
            self._db.execute(
                "UPDATE deliveries SET quiet_until = NULL WHERE receiver = ? AND quiet_until IS NOT NULL",
                (self._receiver,),
            )

    def _queue_digest(self, digest: Digest, now: int) -> None:
        key = (self._receiver, digest.incident.id)
        body, lines = (msgspec.json.encode(value).decode() for value in (digest.incident, digest.lines))
        self._db.execute("INSERT INTO digests VALUES (?, ?, ?)", (digest.incident.id, now, body))
        self._db.execute("INSERT INTO deliveries (receiver, incident) VALUES (?, ?)", key)
        self._db.execute("INSERT INTO outbox (receiver, incident, number, lines) VALUES (?, ?, 0, ?)", (*key, lines))
        for table in ("outbox", "deliveries"):
            self._db.executemany(
                f"DELETE FROM {table} WHERE receiver = ? AND incident = ?",  # noqa: S608
                [(self._receiver, incident_id) for incident_id in digest.over],
            )

    def heads(self) -> list[tuple[str, int]]:
        """Return (incident id, seq) of the next delivery of each incident.

        Incidents not yet delivered come first, of them the critical ones.
        """
        rows = self._db.execute(
            "SELECT incident, seq FROM outbox JOIN deliveries USING (receiver, incident)"
            " LEFT JOIN incidents ON incidents.id = incident LEFT JOIN digests ON digests.id = incident"
            " WHERE receiver = ? AND coalesce(incidents.id, digests.id) IS NOT NULL"
            " ORDER BY CASE WHEN number > 0 OR handle IS NOT NULL THEN 2 WHEN json_valid(incidents.body)"
            " THEN coalesce(json_extract(incidents.body, '$.severity'), '') != ? END, seq",
            (self._receiver, Severity.CRITICAL.value),
        )
        first: dict[str, int] = {}
        for incident_id, seq in rows:
            first.setdefault(str(incident_id), int(seq))
        return list(first.items())

    def message(self, incident_id: str) -> Row | None:
        """Return the incident's message if it is pending, even behind entries of its thread."""
        row = self._db.execute(
            "SELECT seq FROM outbox WHERE receiver = ? AND incident = ? AND number = 0", (self._receiver, incident_id)
        ).fetchone()
        return None if row is None else self.read(row[0])

    def read(self, seq: int) -> Row | None:
        """Return the row, with the incident as it is at this moment; None if it is no longer pending."""
        row = self._db.execute(
            "SELECT revision, coalesce(incidents.body, digests.body), outbox.number, outbox.lines, report, plot,"
            " handle, attempted_at, digest, covered, quiet_until FROM outbox JOIN deliveries USING (receiver, incident)"
            " LEFT JOIN incidents ON incidents.id = outbox.incident LEFT JOIN digests ON digests.id = outbox.incident"
            " LEFT JOIN check_reports ON check_reports.incident = outbox.incident"
            " AND check_reports.number = outbox.report AND outbox.lines = '[]' WHERE seq = ?",
            (seq,),
        ).fetchone()
        if row is None:
            return None
        revision, body, number, lines, report, plot, handle, attempted_at, fingerprint, covered, quiet_until = row
        try:
            return Row(
                seq=seq,
                revision=revision,
                incident=self._decisions.handled(_INCIDENT.decode(body)),
                number=number,
                lines=_LINES.decode(lines),
                check_report=report or 0,
                plot=plot,
                handle=None if handle is None else _HANDLE.decode(handle),
                attempted_at=attempted_at,
                fingerprint=fingerprint,
                covered=covered,
                quiet_until=quiet_until,
            )
        except (msgspec.DecodeError, TypeError) as error:
            self._set_aside(seq, body, str(error))
            return None

    def attempt(self, row: Row, now: int, covered: str | None = None) -> bool:
        """Record an attempt at `now` (ms) before anything is sent; return False if the row changed since it was read.

        covered: for a first message, or an entry that is composed now and no longer changes: what the thread covers
        with it.
        """
        with transaction(self._db):
            marked = self._db.execute(
                "UPDATE outbox SET attempted_at = coalesce(attempted_at, ?), lines = ? WHERE seq = ? AND revision = ?",
                (now, msgspec.json.encode(row.lines).decode(), row.seq, row.revision),
            )
            if marked.rowcount and covered is not None:
                self._cover(row.incident.id, covered)
        return marked.rowcount == 1

    def found(self, row: Row, handle: Handle) -> None:
        """Remember where the receiver keeps the incident; the row stays."""
        self._remember(row.incident.id, handle)

    def confirmed(
        self, row: Row, handle: Handle | None, fingerprint: str | None = None, now: int | None = None
    ) -> None:
        """Remove the delivered row; a message that changed while it was being sent stays, behind its thread.

        fingerprint: of the message that was delivered. now: when that announced the incident, ms; None if it did not.
        """
        with transaction(self._db):
            self._remember(row.incident.id, handle)
            if now is not None:
                self._db.execute(
                    "UPDATE deliveries SET announced_at = ? WHERE receiver = ? AND incident = ?",
                    (now, self._receiver, row.incident.id),
                )
            if fingerprint is not None:
                self._db.execute(
                    "UPDATE deliveries SET digest = ? WHERE receiver = ? AND incident = ?",
                    (fingerprint, self._receiver, row.incident.id),
                )
            self._db.execute("DELETE FROM outbox WHERE seq = ? AND revision = ?", (row.seq, row.revision))
            if self._db.execute("DELETE FROM outbox WHERE seq = ?", (row.seq,)).rowcount:
                queue_message(self._db, self._receiver, row.incident.id)

    def skip(self, row: Row, covered: str | None = None) -> bool:
        """Remove a row that needs no delivery; return False if it changed since it was read."""
        with transaction(self._db):
            removed = self._db.execute("DELETE FROM outbox WHERE seq = ? AND revision = ?", (row.seq, row.revision))
            if removed.rowcount and covered is not None:
                self._cover(row.incident.id, covered)
            if removed.rowcount and row.number > 0:
                self._db.execute(
                    "UPDATE deliveries SET entries = entries - 1 WHERE receiver = ? AND incident = ? AND entries = ?",
                    (self._receiver, row.incident.id, row.number),
                )
        return removed.rowcount == 1

    def discard(self, row: Row) -> bool:
        """Remove all that is pending for an incident that was never delivered; return False if the row changed."""
        key = (self._receiver, row.incident.id)
        with transaction(self._db):
            if not self._db.execute("DELETE FROM outbox WHERE seq = ? AND revision = ?", row[:2]).rowcount:
                return False
            self._db.execute("DELETE FROM outbox WHERE receiver = ? AND incident = ?", key)
            self._db.execute("DELETE FROM deliveries WHERE receiver = ? AND incident = ?", key)
        return True

    def refused(self, row: Row) -> None:
        """Record that the receiver certainly did not take it: the next attempt needs no look-up."""
        self._db.execute("UPDATE outbox SET attempted_at = NULL WHERE seq = ?", (row.seq,))
        if row.number == 0:  # a thread begins with what the message says when it is posted
            self._cover(row.incident.id, row.covered)

    def gone(self, row: Row) -> None:
        """Record that the delivered message no longer exists: it is posted again before anything else."""
        with transaction(self._db):
            self._remember(row.incident.id, None)
            self.refused(row)
            queue_message(self._db, self._receiver, row.incident.id)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _set_aside(self, seq: int, body: Any, reason: str) -> None:
        """Remove all that is pending for an incident with a row that cannot be read: its next change is posted."""
        warn_of_row(f"outbox {seq}", reason)
        with transaction(self._db):
            incident = self._db.execute("SELECT incident FROM outbox WHERE seq = ?", (seq,)).fetchone()[0]
            keep_aside(self._db, "outbox", str(incident), body, reason)
            for table in ("outbox", "deliveries"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE receiver = ? AND incident IS ?",  # noqa: S608
                    (self._receiver, incident),
                )

    def _remember(self, incident_id: str, handle: Handle | None) -> None:
        self._db.execute(
            "UPDATE deliveries SET handle = ? WHERE receiver = ? AND incident = ?",
            (None if handle is None else msgspec.json.encode(handle).decode(), self._receiver, incident_id),
        )

    def _cover(self, incident_id: str, covered: str | None) -> None:
        self._db.execute(
            "UPDATE deliveries SET covered = ? WHERE receiver = ? AND incident = ?",
            (covered, self._receiver, incident_id),
        )


def _decoded(body: str) -> Iterator[Incident]:
    """Yield the incident, unless it cannot be read: the store then sets it aside at its next change."""
    with suppress(msgspec.DecodeError, TypeError):
        yield _INCIDENT.decode(body)
