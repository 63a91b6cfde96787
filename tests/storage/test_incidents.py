"""The state file: what goes in comes out, all or nothing, and the queue holds what must be said, once."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.storage.database import SCHEMA, StorageError
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.outbox import Outbox, Row
from tests import samples

DAY_MS = 86_400_000
TABLES = ("incidents", "deliveries", "outbox", "check_reports", "check_requests")


@pytest.fixture
def outbox(store: IncidentStore, state_file: Path) -> Iterator[Outbox]:
    """The receiver's side of the store."""
    assert store.position == 0
    opened = Outbox(state_file, "slack")
    yield opened
    opened.close()


def rows(outbox: Outbox) -> list[Row]:
    """The next row of each incident."""
    return [row for _, seq in outbox.heads() if (row := outbox.read(seq)) is not None]


def composed(row: Row) -> Row:
    """The row as a dispatcher attempts it: a log entry has lines by then."""
    return row._replace(lines=(f"log of {len(row.incident.findings)}",)) if row.is_log_entry and not row.lines else row


def deliver(outbox: Outbox) -> list[tuple[int, tuple[str, ...]]]:
    """Confirm all that is pending; returns (number, lines) in the order of delivery."""
    delivered = []
    while waiting := rows(outbox):
        for row in map(composed, waiting):
            assert outbox.attempt(row, 1, "{}" if row.is_log_entry else None)
            outbox.confirmed(row, {"ts": "1"}, "digest" if row.number == 0 else None)
            delivered.append((row.number, row.lines))
    return delivered


def test_incidents_come_back_whole(state_file: Path) -> None:
    kept = samples.incident(findings=(samples.rewind(known_at=17, since=3),), sighted=False)
    with IncidentStore(state_file) as store:
        store.save(42, [kept, samples.burst()])
    with IncidentStore(state_file) as store:
        assert store.incident(kept.id) == kept
        assert store.incidents() == [kept, samples.burst()]
        assert store.position == 42
        assert store.incident("INC-NONE") is None


def test_closed_incidents_can_be_left_out(store: IncidentStore) -> None:
    closed = samples.incident(id="INC-0", status=Status.CLOSED)
    store.save(1, [closed, samples.incident()])
    assert [one.id for one in store.incidents(closed_since=closed.updated_at + 1)] == ["INC-7F3A9C"]
    assert len(store.incidents(closed_since=closed.updated_at)) == 2


def test_a_batch_is_kept_whole_or_not_at_all(store: IncidentStore) -> None:

    def halfway() -> Iterator[Incident]:
        yield samples.incident()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(7, halfway())
    assert (store.position, store.incidents(), store.pending()) == (0, [], 0)


def test_a_new_incident_queues_a_message_and_a_log_entry(store: IncidentStore, outbox: Outbox) -> None:
    assert store.save(1, [samples.incident()]) == {"slack"}
    assert deliver(outbox) == [(0, ()), (1, ("log of 1",))]
    assert store.pending() == 0


def test_a_discarded_incident_is_queued_again_when_it_changes(store: IncidentStore, outbox: Outbox) -> None:
    quiet = samples.incident(severity=Severity.INFO)
    store.save(1, [quiet])
    (row,) = rows(outbox)
    assert outbox.discard(row)
    assert store.pending() == 0
    assert store.save(2, [replace(quiet, severity=Severity.WARNING)]) == {"slack"}
    assert [number for number, _ in deliver(outbox)] == [0, 1]


def test_a_row_that_changed_since_it_was_read_is_not_dropped(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(severity=Severity.INFO)])
    (row,) = rows(outbox)
    store.save(2, [samples.incident()])
    assert not outbox.discard(row)
    assert not outbox.skip(row)
    assert store.pending() == 2


def test_a_skipped_row_is_not_delivered(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    (message,) = rows(outbox)
    outbox.confirmed(message, {"ts": "1"}, "digest")
    (entry,) = rows(outbox)
    assert (entry.digest, entry.covered) == ("digest", None)
    assert outbox.skip(entry, '{"seen":1}')
    store.save(2, [samples.recovered()])
    (message,) = rows(outbox)
    assert (message.digest, message.covered) == ("digest", '{"seen":1}')


def test_another_update_time_alone_queues_nothing(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver(outbox)
    assert store.save(2, [samples.incident(updated_at=samples.at("23:30:00"))]) == frozenset()


def test_many_changes_before_the_first_attempt_are_two_rows(store: IncidentStore, outbox: Outbox) -> None:
    for partitions in range(1, 60):
        store.save(partitions, [samples.burst(partitions)])
    assert store.pending() == 2
    (row,) = rows(outbox)
    assert len(row.incident.findings) == 59
    deliver(outbox)


def test_pending_edits_are_one_edit_and_one_entry(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    deliver(outbox)
    for partitions in range(2, 9):
        store.save(partitions, [samples.burst(partitions)])
    assert deliver(outbox) == [(0, ()), (2, ("log of 8",))]


def test_an_attempted_entry_never_changes(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    (message,) = rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = map(composed, rows(outbox))
    assert outbox.attempt(entry, 5, '{"covers":1}')
    store.save(2, [samples.burst(2)])
    again = next(row for row in rows(outbox) if row.number == 1)
    assert (again.lines, again.attempted_at, again.covered) == (("log of 1",), 5, '{"covers":1}')
    assert deliver(outbox) == [(1, ("log of 1",)), (0, ()), (2, ("log of 2",))]


def test_an_entry_is_not_attempted_if_the_incident_changed(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    (message,) = rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = map(composed, rows(outbox))
    store.save(2, [samples.burst(2)])
    assert not outbox.attempt(entry, 5, '{"covers":1}')
    assert not outbox.skip(entry, '{"covers":1}')
    assert deliver(outbox) == [(1, ("log of 2",)), (0, ())]


def test_a_change_while_a_message_is_being_sent_is_sent_too(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    (row,) = rows(outbox)
    assert outbox.attempt(row, 5)
    store.save(2, [samples.incident()])
    outbox.confirmed(row, {"ts": "1"})
    assert [number for number, _ in deliver(outbox)] == [1, 0]


def test_a_row_that_changed_since_it_was_read_is_not_attempted(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    (row,) = rows(outbox)
    store.save(2, [samples.incident()])
    assert not outbox.attempt(row, 5)
    again = outbox.read(row.seq)
    assert again is not None
    assert again.incident == samples.incident()


def test_a_merged_incident_is_delivered(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver(outbox)
    store.save(2, [samples.incident(merged_into="INC-B00257", status=Status.CLOSED)])
    assert [number for number, _ in deliver(outbox)] == [0, 2]


def test_a_message_that_is_gone_is_made_anew_before_its_thread_goes_on(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    (message,) = rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = rows(outbox)
    assert outbox.attempt(entry, 5)
    outbox.gone(entry)
    (row,) = rows(outbox)
    assert (row.number, row.handle, row.attempted_at) == (0, None, None)
    assert [number for number, _ in deliver(outbox)] == [0, 1]


def test_incidents_never_told_come_before_edits(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver(outbox)
    store.save(2, [samples.recovered()])
    store.save(3, [samples.burst()])
    assert [incident_id for incident_id, _ in outbox.heads()] == ["INC-B00257", "INC-7F3A9C"]


def test_each_receiver_has_a_queue_of_its_own(state_file: Path) -> None:
    with IncidentStore(state_file, ["slack", "console"]) as store:
        assert store.save(1, [samples.incident()]) == {"slack", "console"}
        slack = Outbox(state_file, "slack")
        deliver(slack)
        slack.close()
        assert store.pending() == 2
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.pending() == 0


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
def test_a_damaged_state_file_is_refused_with_a_sentence(state_file: Path, content: bytes) -> None:
    state_file.write_bytes(content)
    with pytest.raises(
        StorageError, match=rf"{state_file}: the state file is damaged or not an SQLite file .*move it away"
    ):
        IncidentStore(state_file)


def test_damage_inside_the_file_is_found_at_the_start(state_file: Path) -> None:
    with IncidentStore(state_file, ["slack"]) as store:
        store.save(1, [replace(samples.burst(), id=f"INC-{number}") for number in range(20)])
    content = bytearray(state_file.read_bytes())
    content[4096 * 5 : 4096 * 9] = b"\xff" * 4096 * 4
    state_file.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        IncidentStore(state_file)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open the state file: .*check that its directory exists"):
        IncidentStore(tmp_path / "nowhere" / "state.sqlite3")


def test_what_is_asked_stays_until_it_is_answered(state_file: Path) -> None:
    with IncidentStore(state_file) as store:
        store.save(1, [], [samples.check_request(), samples.check_request(id="second")])
        store.save(2, [], [samples.check_request(groups=("billing",))])
    with IncidentStore(state_file) as store:
        assert store.check_requests() == [
            samples.check_request(groups=("billing",)),
            samples.check_request(id="second"),
        ]
        store.save(3, [], [], [CheckReport(None, samples.check_request(), ())])
        assert [one.id for one in store.check_requests()] == ["second"]


def test_what_was_answered_is_not_asked_again(store: IncidentStore) -> None:
    store.save(1, [], [samples.check_request()])
    store.save(2, [], [], [CheckReport(None, samples.check_request(), ())])
    store.save(3, [], [samples.check_request()])
    assert store.check_requests() == []


def test_a_check_report_is_two_entries_lines_then_plot(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver(outbox)
    report = CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",), samples.PLOT)
    assert store.save(2, [], [], [report]) == {"slack"}
    store.save(3, [samples.recovered()])
    delivered = []
    while waiting := rows(outbox):
        for row in map(composed, waiting):
            delivered.append((row.number, row.lines, row.report, row.plot))
            outbox.confirmed(row, {"ts": "1"})
    assert delivered == [
        (2, ("it fell once",), 1, None),
        (3, (), 1, samples.PLOT),
        (0, (), 0, None),
        (4, ("log of 1",), 0, None),
    ]


def test_an_ask_is_answered_once(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver(outbox)
    answer = CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",))
    store.save(2, [], [], [answer])
    assert store.save(3, [], [], [answer]) == frozenset()
    assert deliver(outbox) == [(2, ("it fell once",))]
    store.save(4, [], [], [answer._replace(request=None), answer._replace(request=None)])
    assert [number for number, _ in deliver(outbox)] == [3, 4]


def test_a_report_on_a_discarded_incident_comes_with_its_message(store: IncidentStore, outbox: Outbox) -> None:
    quiet = samples.incident(severity=Severity.INFO)
    store.save(1, [quiet])
    outbox.discard(*rows(outbox))
    assert store.save(2, [], [], [CheckReport(quiet.id, samples.check_request(), ("it fell once",))]) == frozenset()
    store.save(3, [samples.incident()])
    assert [lines for _, lines in deliver(outbox)] == [(), ("log of 1",), ("it fell once",)]


def test_a_report_stays_behind_an_unsent_first_message(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",), samples.PLOT)])
    store.save(3, [samples.incident()])
    assert deliver(outbox) == [(0, ()), (1, ("log of 1",)), (2, ("it fell once",)), (3, ())]


def test_evidence_and_its_ask_are_kept_together_with_the_incident_or_not_at_all(store: IncidentStore) -> None:

    def halfway() -> Iterator[CheckReport]:
        yield CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",))
        raise KeyboardInterrupt

    store.save(1, [], [samples.check_request()])
    with pytest.raises(KeyboardInterrupt):
        store.save(2, [samples.incident()], [], halfway())
    assert (store.position, store.incidents(), store.check_requests()) == (1, [], [samples.check_request()])


def test_a_state_file_of_the_version_before_is_taken_over(state_file: Path) -> None:
    db = sqlite3.connect(state_file)
    db.executescript(FIRST_SCHEMA)
    db.execute("INSERT INTO incidents VALUES (?, 'open', 1, 1, ?)", ("INC-7F3A9C", encoded(samples.incident())))
    db.execute("INSERT INTO deliveries VALUES ('slack', 'INC-7F3A9C', 1, NULL)")
    db.execute("INSERT INTO outbox (receiver, incident, number) VALUES ('slack', 'INC-7F3A9C', 0)")
    db.execute(
        """INSERT INTO outbox (receiver, incident, number, lines) VALUES ('slack', 'INC-7F3A9C', 1, '["one"]')"""
    )
    db.commit()
    db.close()
    with IncidentStore(state_file, ["slack"]) as store:
        assert (store.position, store.incidents(), store.check_requests()) == (41, [samples.incident()], [])
        store.save(42, [], [samples.check_request()], [CheckReport("INC-7F3A9C", None, ("two",), samples.PLOT)])
        outbox = Outbox(state_file, "slack")
        assert deliver(outbox) == [(0, ()), (1, ("one",)), (2, ("two",)), (3, ())]
        outbox.close()
        assert store.check_requests() == [samples.check_request()]


def encoded(incident: Incident) -> str:
    """As it stands in the file."""
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


def over(id_: str, **more: Any) -> Incident:
    """An incident that is closed."""
    return samples.incident(id=id_, status=Status.CLOSED, **more)


def held(state_file: Path, table: str) -> int:
    """How many rows a table has."""
    with closing(sqlite3.connect(state_file)) as db:
        (number,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  # a name from this file
    return int(number)


def test_what_is_long_over_and_was_told_is_forgotten_with_its_evidence(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()], [samples.check_request()])
    store.save(
        2, [over("INC-7F3A9C")], [], [CheckReport("INC-7F3A9C", samples.check_request(), ("once",), samples.PLOT)]
    )
    deliver(outbox)
    last = samples.incident().updated_at
    assert store.prune(last) == 0
    assert store.prune(max(last, samples.check_request().until) + 1) == 1
    assert (store.incidents(), store.prune(last + DAY_MS)) == ([], 0)


def test_nothing_of_a_forgotten_incident_is_left(store: IncidentStore, outbox: Outbox, state_file: Path) -> None:
    store.save(1, [over("INC-7F3A9C")], [samples.check_request()])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.check_request(), ("once",), samples.PLOT)])
    deliver(outbox)
    assert [held(state_file, table) for table in TABLES] == [1, 1, 0, 1, 1]
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [held(state_file, table) for table in TABLES] == [0, 0, 0, 0, 0]


def test_what_is_undelivered_open_or_known_of_late_is_kept(store: IncidentStore, outbox: Outbox) -> None:
    later = samples.at("00:00:00") + 2 * DAY_MS
    found_late = over("INC-LATE", findings=(samples.rewind(known_at=later),))
    store.save(1, [over("INC-7F3A9C"), found_late, samples.incident(id="INC-OPEN")])
    assert store.prune(later) == 0
    assert len(rows(outbox)) == 3
    deliver(outbox)
    assert store.prune(later) == 1
    assert {one.id for one in store.incidents()} == {"INC-LATE", "INC-OPEN"}


def test_a_receiver_that_is_no_more_keeps_nothing(state_file: Path) -> None:
    with IncidentStore(state_file, ["console"]) as store:
        store.save(1, [over("INC-7F3A9C")])
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.prune(samples.at("00:00:00") + 2 * DAY_MS) == 1
    assert held(state_file, "outbox") == 0


def test_what_an_open_incident_can_ask_again_stays_answered(store: IncidentStore) -> None:
    store.save(1, [samples.incident()], [], [CheckReport(None, samples.check_request(), ())])
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    store.save(2, [], [samples.check_request()])
    assert store.check_requests() == []


def test_forgetting_is_all_or_nothing(store: IncidentStore, outbox: Outbox, state_file: Path) -> None:
    store.save(1, [over("INC-7F3A9C")])
    deliver(outbox)
    with closing(sqlite3.connect(state_file)) as db:
        db.execute("CREATE TRIGGER full BEFORE DELETE ON incidents BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
        store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [held(state_file, table) for table in ("incidents", "deliveries")] == [1, 1]
