"""The state file: incidents and check requests are saved all or nothing, and pruned when old."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.findings import Incident, Status
from agent.storage.database import SCHEMA, DamagedError, StorageError, read_incidents_since
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.storage.conftest import deliver_all, read_rows

DAY_MS = 86_400_000
TABLES = ("incidents", "deliveries", "outbox", "check_reports", "check_requests")


def test_incidents_survive_a_restart_unchanged(state_file: Path) -> None:
    saved = samples.incident(findings=(samples.rewind(known_at=17, since=3),), sighted=False)
    with IncidentStore(state_file) as store:
        store.save(42, [saved, samples.burst()])
    with IncidentStore(state_file) as store:
        assert store.incident(saved.id) == saved
        assert store.incidents() == [saved, samples.burst()]
        assert store.position == 42
        assert store.incident("INC-NONE") is None


def test_closed_incidents_can_be_left_out(store: IncidentStore) -> None:
    closed = samples.incident(id="INC-0", status=Status.CLOSED)
    store.save(1, [closed, samples.incident()])
    assert [incident.id for incident in store.incidents(closed_since=closed.updated_at + 1)] == ["INC-7F3A9C"]
    assert len(store.incidents(closed_since=closed.updated_at)) == 2


def test_a_batch_is_saved_whole_or_not_at_all(store: IncidentStore) -> None:

    def halfway() -> Iterator[Incident]:
        yield samples.incident()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(7, halfway())
    assert (store.position, store.incidents(), store.pending()) == (0, [], 0)


def test_a_newer_state_file_is_refused(state_file: Path) -> None:
    IncidentStore(state_file).close()
    with sqlite3.connect(state_file) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(
        StorageError, match=rf"newer Backflow wrote this state \(schema {SCHEMA + 1}, this version knows {SCHEMA}\)"
    ):
        IncidentStore(state_file)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_state_file_is_refused(state_file: Path, content: bytes) -> None:
    state_file.write_bytes(content)
    with pytest.raises(DamagedError, match=rf"{state_file}: the state file is damaged or not a state file"):
        IncidentStore(state_file)


def test_damage_inside_the_file_is_found_when_it_is_opened(state_file: Path) -> None:
    with IncidentStore(state_file, ["slack"]) as store:
        store.save(1, [replace(samples.burst(), id=f"INC-{number}") for number in range(20)])
    content = bytearray(state_file.read_bytes())
    content[4096 * 5 : 4096 * 9] = b"\xff" * 4096 * 4
    state_file.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        IncidentStore(state_file)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open the state file: .*check that its directory exists"):
        IncidentStore(tmp_path / "nowhere" / "state.sqlite3")


def test_a_check_request_is_pending_until_its_result_is_saved(state_file: Path) -> None:
    with IncidentStore(state_file) as store:
        store.save(1, [], [samples.check_request(), samples.check_request(id="second")])
        store.save(2, [], [samples.check_request(groups=("billing",))])
    with IncidentStore(state_file) as store:
        assert store.check_requests() == [
            samples.check_request(groups=("billing",)),
            samples.check_request(id="second"),
        ]
        store.save(3, [], [], [CheckReport(None, samples.check_request(), ())])
        assert [request.id for request in store.check_requests()] == ["second"]


def test_a_completed_check_request_is_not_saved_again(store: IncidentStore) -> None:
    store.save(1, [], [samples.check_request()])
    store.save(2, [], [], [CheckReport(None, samples.check_request(), ())])
    store.save(3, [], [samples.check_request()])
    assert store.check_requests() == []


def test_reports_are_saved_with_their_incident_or_not_at_all(store: IncidentStore) -> None:

    def halfway() -> Iterator[CheckReport]:
        yield CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",))
        raise KeyboardInterrupt

    store.save(1, [], [samples.check_request()])
    with pytest.raises(KeyboardInterrupt):
        store.save(2, [samples.incident()], [], halfway())
    assert (store.position, store.incidents(), store.check_requests()) == (1, [], [samples.check_request()])


def test_a_state_file_of_schema_1_is_migrated(state_file: Path) -> None:
    db = sqlite3.connect(state_file)
    db.executescript(FIRST_SCHEMA)
    db.execute("INSERT INTO incidents VALUES (?, 'open', 1, 1, ?)", ("INC-7F3A9C", encode(samples.incident())))
    db.execute("INSERT INTO deliveries VALUES ('slack', 'INC-7F3A9C', 1, NULL)")
    db.execute("INSERT INTO outbox (receiver, incident, number) VALUES ('slack', 'INC-7F3A9C', 0)")
    db.execute(
        """INSERT INTO outbox (receiver, incident, number, lines) VALUES ('slack', 'INC-7F3A9C', 1, '["first"]')"""
    )
    db.commit()
    db.close()
    with IncidentStore(state_file, ["slack"]) as store:
        assert (store.position, store.incidents(), store.check_requests()) == (41, [samples.incident()], [])
        store.save(42, [], [samples.check_request()], [CheckReport("INC-7F3A9C", None, ("second",), samples.PLOT)])
        outbox = Outbox(state_file, "slack")
        assert deliver_all(outbox) == [(0, ()), (1, ("first",)), (2, ("second",)), (3, ())]
        outbox.close()
        assert store.check_requests() == [samples.check_request()]


def encode(incident: Incident) -> str:
    return msgspec.json.encode(incident).decode()


FIRST_SCHEMA = """
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
INSERT INTO journal VALUES (41);
PRAGMA user_version = 1;
"""


def closed_incident(id_: str, **more: Any) -> Incident:
    return samples.incident(id=id_, status=Status.CLOSED, **more)


def count_rows(state_file: Path, table: str) -> int:
    with closing(sqlite3.connect(state_file)) as db:
        (number,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  # a name from this file
    return int(number)


def test_old_delivered_incidents_are_pruned_with_their_reports(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()], [samples.check_request()])
    store.save(
        2,
        [closed_incident("INC-7F3A9C")],
        [],
        [CheckReport("INC-7F3A9C", samples.check_request(), ("once",), samples.PLOT)],
    )
    deliver_all(outbox)
    last = samples.incident().updated_at
    assert store.prune(last) == 0
    assert store.prune(max(last, samples.check_request().until) + 1) == 1
    assert (store.incidents(), store.prune(last + DAY_MS)) == ([], 0)


def test_file_says_since_when_it_has_all_incidents(store: IncidentStore, state_file: Path) -> None:
    assert read_incidents_since(state_file) == 0
    store.prune(1_000)
    store.prune(700)
    assert read_incidents_since(state_file) == 1_000
    store.mark_rebuilt(3_000)
    assert read_incidents_since(state_file) == 3_000


def test_nothing_of_a_pruned_incident_remains(store: IncidentStore, outbox: Outbox, state_file: Path) -> None:
    store.save(1, [closed_incident("INC-7F3A9C")], [samples.check_request()])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.check_request(), ("once",), samples.PLOT)])
    deliver_all(outbox)
    assert [count_rows(state_file, table) for table in TABLES] == [1, 1, 0, 1, 1]
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [count_rows(state_file, table) for table in TABLES] == [0, 0, 0, 0, 0]


def test_undelivered_open_and_late_incidents_are_kept(store: IncidentStore, outbox: Outbox) -> None:
    later = samples.at("00:00:00") + 2 * DAY_MS
    late_finding = closed_incident("INC-LATE", findings=(samples.rewind(known_at=later),))
    store.save(1, [closed_incident("INC-7F3A9C"), late_finding, samples.incident(id="INC-OPEN")])
    assert store.prune(later) == 0
    assert len(read_rows(outbox)) == 3
    deliver_all(outbox)
    assert store.prune(later) == 1
    assert {incident.id for incident in store.incidents()} == {"INC-LATE", "INC-OPEN"}


def test_a_removed_receivers_outbox_does_not_prevent_pruning(state_file: Path) -> None:
    with IncidentStore(state_file, ["console"]) as store:
        store.save(1, [closed_incident("INC-7F3A9C")])
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.prune(samples.at("00:00:00") + 2 * DAY_MS) == 1
    assert count_rows(state_file, "outbox") == 0


def test_a_check_request_of_an_open_incident_stays_completed(store: IncidentStore) -> None:
    store.save(1, [samples.incident()], [], [CheckReport(None, samples.check_request(), ())])
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    store.save(2, [], [samples.check_request()])
    assert store.check_requests() == []


def test_pruning_is_all_or_nothing(store: IncidentStore, outbox: Outbox, state_file: Path) -> None:
    store.save(1, [closed_incident("INC-7F3A9C")])
    deliver_all(outbox)
    with closing(sqlite3.connect(state_file)) as db:
        db.execute("CREATE TRIGGER full BEFORE DELETE ON incidents BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
        store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [count_rows(state_file, table) for table in ("incidents", "deliveries")] == [1, 1]


@pytest.mark.parametrize("body", ["{", "null", '{"id": 1}', b"\xff\xfe", 7])
def test_row_that_cannot_be_read_is_set_aside(state_file: Path, body: object) -> None:
    with IncidentStore(state_file, ["slack"]) as store:
        store.save(1, [samples.incident(), samples.burst()], [samples.check_request()])
    with closing(sqlite3.connect(state_file, isolation_level=None)) as db:
        db.execute("UPDATE incidents SET body = ? WHERE id = 'INC-7F3A9C'", (body,))
        db.execute("UPDATE check_requests SET body = ?", (body,))
    reported: list[str] = []
    with IncidentStore(state_file, ["slack"], lambda row, _: reported.append(row)) as store:
        outbox = Outbox(state_file, "slack")
        outbox.heads()
        assert (store.incidents(), store.check_requests()) == ([samples.burst()], [])
        assert {row.incident.id for row in read_rows(outbox)} == {samples.burst().id}
        store.save(2, [samples.incident()])
        assert len(store.incidents()) == 2
        outbox.close()
    assert reported == ["incidents INC-7F3A9C", f"check_requests {samples.check_request().id}"]


def test_outbox_row_that_cannot_be_read_is_set_aside(store: IncidentStore, outbox: Outbox, state_file: Path) -> None:
    store.save(1, [samples.incident(), samples.burst()])
    with closing(sqlite3.connect(state_file, isolation_level=None)) as db:
        db.execute("UPDATE deliveries SET handle = '[' WHERE incident = 'INC-7F3A9C'")
    assert {row.incident.id for row in read_rows(outbox)} == {samples.burst().id}
    assert {incident for incident, _ in outbox.heads()} == {samples.burst().id}


def test_incident_that_cannot_be_written_does_not_hold_back_others(store: IncidentStore) -> None:
    reported: list[str] = []
    store.unusable = lambda row, _: reported.append(row)
    store.save(1, [samples.incident(title="a\udce9"), samples.incident(id="INC-2", opened_at=1 << 70), samples.burst()])
    assert [incident.id for incident in store.incidents()] == [samples.burst().id]
    assert reported == ["incidents INC-7F3A9C", "incidents INC-2"]


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE outbox RENAME TO other", "ALTER TABLE deliveries DROP COLUMN handle", "DELETE FROM journal"],
)
def test_file_with_another_schema_is_damaged(state_file: Path, statement: str) -> None:
    IncidentStore(state_file).close()
    with closing(sqlite3.connect(state_file, isolation_level=None)) as db:
        db.execute(statement)
    with pytest.raises(DamagedError, match="damaged or not a state file"):
        IncidentStore(state_file)
