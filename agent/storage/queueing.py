"""What is put into the outbox table for a receiver: an incident's message, entries of its thread, check reports."""

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from agent.model.findings import Incident

REPORT_PREFIX = "REPORT-"
"""How the ids of check reports begin that are messages of their own."""


def queue_message(db: sqlite3.Connection, receiver: str, incident_id: str) -> None:
    """Queue the incident's message: one row however often the incident changes, sent as it is at that moment."""
    db.execute(
        "INSERT INTO outbox (receiver, incident, number) VALUES (?, ?, 0)"
        " ON CONFLICT (receiver, incident, number) DO UPDATE SET revision = revision + 1",
        (receiver, incident_id),
    )


def queue_log_entry(db: sqlite3.Connection, receiver: str, incident_id: str) -> None:
    """Queue a thread entry, unless one is pending that has not been composed yet: it will cover this change too."""
    key = (receiver, incident_id)
    pending = db.execute(
        "UPDATE outbox SET revision = revision + 1 WHERE receiver = ? AND incident = ?"
        " AND number > 0 AND report IS NULL AND lines = '[]'",
        key,
    )
    if not pending.rowcount:
        (number,) = db.execute(
            "UPDATE deliveries SET entries = entries + 1 WHERE receiver = ? AND incident = ? RETURNING entries", key
        ).fetchone()
        db.execute("INSERT INTO outbox (receiver, incident, number) VALUES (?, ?, ?)", (*key, number))


def queue_check_report(db: sqlite3.Connection, receiver: str, incident_id: str, number: int) -> None:
    """Queue an entry with the report's lines, then one with its plot: a refused plot must not hold back the lines."""
    db.execute(
        "INSERT INTO outbox (receiver, incident, number, lines, report)"
        " SELECT receiver, incident, entries + part, iif(part = 1, check_reports.lines, '[]'), check_reports.number"
        " FROM deliveries JOIN check_reports USING (incident) JOIN (SELECT 1 AS part UNION SELECT 2)"
        " WHERE receiver = ? AND incident = ? AND check_reports.number = ? AND (part = 1 OR plot IS NOT NULL)",
        (receiver, incident_id, number),
    )
    db.execute(
        "UPDATE deliveries SET entries = (SELECT max(number) FROM outbox WHERE outbox.receiver = ?1"
        " AND outbox.incident = ?2) WHERE receiver = ?1 AND incident = ?2",
        (receiver, incident_id),
    )


def queue_report(
    db: sqlite3.Connection, receivers: Iterable[str], message: Incident, lines: Sequence[str], plot: bytes | None
) -> None:
    """Queue a check report as a message of its own, then its plot; nothing if it was queued before.

    message: an incident without findings, whose id begins with REPORT_PREFIX.
    """
    body, encoded = (msgspec.json.encode(value).decode() for value in (message, lines))
    if not db.execute(
        "INSERT OR IGNORE INTO digests VALUES (?, ?, ?)", (message.id, message.updated_at, body)
    ).rowcount:
        return
    db.execute("INSERT INTO check_reports VALUES (?, 1, ?, ?)", (message.id, encoded, plot))
    for receiver in receivers:
        db.execute("INSERT INTO deliveries (receiver, incident, entries) VALUES (?, ?, 1)", (receiver, message.id))
        parts = [(0, encoded), *([] if plot is None else [(1, "[]")])]
        db.executemany(
            "INSERT INTO outbox (receiver, incident, number, lines, report) VALUES (?, ?, ?, ?, 1)",
            [(receiver, message.id, number, shown) for number, shown in parts],
        )
