"""The state file: its schema, and how it is opened, checked, upgraded and written to.

One SQLite file, `state.sqlite3`, in WAL mode with synchronous=FULL: a transaction that has returned is on the disk.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "state.sqlite3"

# outbox.number: 0 is the incident's message, n its nth thread entry. outbox.lines: of an entry, from its first attempt
# on; until then the entry is composed when it is due. outbox.revision: changes since the row was made; one that comes
# while the row is being sent keeps it. outbox.attempted_at: when an attempt began whose outcome is unknown.
# deliveries.entries: how many thread entries were numbered; handle: the receiver's own.
_TABLES = """
CREATE TABLE journal (position INTEGER NOT NULL);
CREATE TABLE incidents (
    id TEXT PRIMARY KEY, status TEXT NOT NULL,
    opened_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE deliveries (
    receiver TEXT NOT NULL, incident TEXT NOT NULL, entries INTEGER NOT NULL DEFAULT 0, handle TEXT,
    PRIMARY KEY (receiver, incident)
) WITHOUT ROWID;
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, incident TEXT NOT NULL, number INTEGER NOT NULL,
    lines TEXT NOT NULL DEFAULT '[]', revision INTEGER NOT NULL DEFAULT 0, attempted_at INTEGER,
    UNIQUE (receiver, incident, number)
);
INSERT INTO journal VALUES (0);
"""

_CHECKS = """
CREATE TABLE asks (id TEXT PRIMARY KEY, answered INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL);
CREATE TABLE evidence (
    incident TEXT NOT NULL, number INTEGER NOT NULL, lines TEXT NOT NULL, plot BLOB, PRIMARY KEY (incident, number)
);
ALTER TABLE outbox ADD COLUMN evidence INTEGER;
"""

# check_requests.answered: an answered request stays, so that it is not run twice. check_reports.number: the nth of its
# incident. outbox.report: the check report that an entry carries; the entry with its plot has no lines.
# deliveries.digest: of the message as last delivered; covered: what the thread covers, NULL before its first entry.
_RENDERED_ON_DELIVERY = """
ALTER TABLE asks RENAME TO check_requests;
ALTER TABLE evidence RENAME TO check_reports;
ALTER TABLE outbox RENAME COLUMN evidence TO report;
ALTER TABLE deliveries ADD COLUMN digest TEXT;
ALTER TABLE deliveries ADD COLUMN covered TEXT;
UPDATE deliveries SET covered = (SELECT json_object('incident', json(body)) FROM incidents WHERE id = incident)
    WHERE entries > 0;
"""

_VERSIONS = (_TABLES, _CHECKS, _RENDERED_ON_DELIVERY)
"""What leads from each schema to the next, beginning with an empty file."""

SCHEMA = len(_VERSIONS)


class StorageError(Exception):
    """The state cannot be used; the message says which file, why and what to do."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, creating and upgrading it as necessary. Raises StorageError."""
    try:
        db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        msg = f"{path}: cannot open the state file: {error}; check that its directory exists and is writable"
        raise StorageError(msg) from error
    try:
        _prepare(db, path)
    except sqlite3.OperationalError as error:
        db.close()
        msg = (
            f"{path}: cannot use the state file: {error}; "
            "check its permissions, free disk space, and that no other agent uses it"
        )
        raise StorageError(msg) from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise StorageError(_damaged(path, str(error))) from error
    except StorageError:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    (check,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if check != "ok":
        raise StorageError(_damaged(path, check))
    with transaction(db):
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < SCHEMA:
            for statements in _VERSIONS[version:]:
                for statement in statements.strip().rstrip(";").split(";\n"):
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
    if version > SCHEMA:
        msg = (
            f"{path}: a newer Backflow wrote this state (schema {version}, this version knows {SCHEMA}); "
            "run that version again or start with another state directory"
        )
        raise StorageError(msg)


def _damaged(path: Path, why: str) -> str:
    return (
        f"{path}: the state file is damaged or not an SQLite file ({why}); move it away with its -wal and -shm files: "
        "the agent rebuilds its state from the journal and posts open incidents once more"
    )


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything that happens inside, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
