"""The state file: its schema, and how it is opened, checked, upgraded and written to.

One SQLite file, `state.sqlite3`, in WAL mode with synchronous=FULL: a transaction that has returned is on the disk.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog

FILE = "state.sqlite3"

log = structlog.get_logger(__name__)

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

# journal.rebuilt_at: since when a new file stands for one that was lost (ms): incidents that opened before may have
# been delivered, so each is looked up first. set_aside: rows that could not be read.
_SET_ASIDE = """
ALTER TABLE journal ADD COLUMN rebuilt_at INTEGER;
CREATE TABLE set_aside (origin TEXT NOT NULL, id TEXT NOT NULL, body BLOB, reason TEXT NOT NULL);
"""

# handling: what operators decided about an incident. deliveries.announced_at: when the receiver's people were last
# notified of it (ms): by its message, or by a repetition. deliveries.quiet_until: end of the quiet hours that hold it
# back (ms). digests: what is delivered after quiet hours, as an incident without findings; outbox.lines are its lines.
_DECISIONS = """
CREATE TABLE silences (id TEXT PRIMARY KEY, ends_at INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE handling (incident TEXT PRIMARY KEY, body TEXT NOT NULL);
ALTER TABLE deliveries ADD COLUMN announced_at INTEGER;
ALTER TABLE deliveries ADD COLUMN quiet_until INTEGER;
CREATE TABLE digests (id TEXT PRIMARY KEY, made_at INTEGER NOT NULL, body TEXT NOT NULL);
"""

# journal.pruned_before: closed incidents last updated before then were deleted (ms).
_PRUNED = """
ALTER TABLE journal ADD COLUMN pruned_before INTEGER;
"""

_VERSIONS = (_TABLES, _CHECKS, _RENDERED_ON_DELIVERY, _SET_ASIDE, _DECISIONS, _PRUNED)
"""What leads from each schema to the next, beginning with an empty file."""

SCHEMA = len(_VERSIONS)


_TIMEOUT_S = 10
"""How long to wait for another connection's transaction, seconds."""

_ENVIRONMENT = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_AUTH,
}
"""Primary error codes for which the disk, its permissions or another process are the reason, not the content."""


class StorageError(Exception):
    """The state cannot be used; the message says which file, why and what to do."""


class UnusableError(StorageError):
    """The state file cannot be read or written at present; its content may be whole."""


class DamagedError(StorageError):
    """The content is not that of a state file."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, creating and upgrading it as necessary. Raises StorageError."""
    try:
        db = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        msg = f"{path}: cannot open the state file: {error}; check that its directory exists and is writable"
        raise UnusableError(msg) from error
    try:
        _prepare(db, path)
    except sqlite3.Error as error:
        db.close()
        raise storage_error(path, error) from error
    except StorageError:
        db.close()
        raise
    return db


def read_incidents_since(path: Path) -> int:
    """Return since when (ms) the file has all incidents; 0: always, as far as it says. Raises StorageError.

    Closed incidents before then were deleted, or the file replaces one that was lost.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            row = dict(db.execute("SELECT * FROM journal").fetchone() or {})
    except sqlite3.Error as error:
        msg = f"{path}: cannot read the agent's state: {error}"
        raise StorageError(msg) from error
    # An older version wrote neither.
    return max(int(row.get(name) or 0) for name in ("pruned_before", "rebuilt_at"))


def storage_error(path: Path, error: sqlite3.Error) -> StorageError:
    """Return what an error of SQLite means for the state file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code not in _ENVIRONMENT:
        return _damaged(path, str(error))
    return UnusableError(
        f"{path}: cannot use the state file: {error}; "
        "check its permissions, free disk space, and that no other process locks it"
    )


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    # Text that is not UTF-8 is damage in one row: it must not prevent the others from being read.
    db.text_factory = _decode_text
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    (check,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if check != "ok":
        raise _damaged(path, check)
    with transaction(db):
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < SCHEMA:
            _upgrade(db, version)
    if version > SCHEMA:
        msg = (
            f"{path}: a newer Backflow wrote this state (schema {version}, this version knows {SCHEMA}); "
            "run that version again or start with another state directory"
        )
        raise StorageError(msg)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        _upgrade(empty, 0)
        missing = _columns(empty) - _columns(db)
    if missing:
        raise _damaged(path, f"without {' and '.join(sorted(missing))}")
    if len(db.execute("SELECT position FROM journal WHERE typeof(position) = 'integer'").fetchall()) != 1:
        raise _damaged(path, "without a journal position")


def _upgrade(db: sqlite3.Connection, version: int) -> None:
    for statements in _VERSIONS[version:]:
        for statement in statements.strip().rstrip(";").split(";\n"):
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA}")


def _columns(db: sqlite3.Connection) -> set[str]:
    rows = db.execute(
        "SELECT tables.name || '.' || columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name)"
        " AS columns WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'"
    )
    return {name for (name,) in rows}


def _decode_text(content: bytes) -> str:
    return content.decode(errors="replace")


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path}: the state file is damaged or not a state file ({why})")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything that happens inside, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends it by itself on a full disk
            db.execute("ROLLBACK")
        raise


def keep_aside(db: sqlite3.Connection, table: str, row_id: str, body: Any, reason: str) -> None:
    """Keep what is in a row that cannot be read or written; the caller deletes the row."""
    db.execute("INSERT INTO set_aside VALUES (?, ?, ?, ?)", (table, row_id, body, reason))


def warn_of_row(row: str, reason: str) -> None:
    """Log which row was set aside."""
    log.warning("row_set_aside", row=row, reason=reason)
