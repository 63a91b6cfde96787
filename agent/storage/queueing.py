"""What is put into the outbox table for a receiver: an incident's message, entries of its thread, check reports."""

import sqlite3


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
