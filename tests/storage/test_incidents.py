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
TABLES = ("incidents", "deliveries", "outbox", "evidence", "asks")


@pytest.fixture
def queue(store: IncidentStore, state_file: Path) -> Iterator[Outbox]:
    """The receiver's side of it."""
    assert store.position == 0
    opened = Outbox(state_file, "slack")
    yield opened
    opened.close()


def rows(queue: Outbox) -> list[Row]:
    """The next row of each incident."""
    return [row for _, seq in queue.heads() if (row := queue.read(seq)) is not None]


def deliver(queue: Outbox) -> list[tuple[int, tuple[str, ...]]]:
    """Confirm all that waits; returns (number, lines) in the order of delivery."""
    told = []
    while waiting := rows(queue):
        for row in waiting:
            assert queue.attempt(row, 1)
            queue.confirmed(row, {"ts": "1"})
            told.append((row.message.number, row.message.lines))
    return told


def test_incidents_come_back_whole(state_file: Path) -> None:
    """Every field, known_at of the findings too, and the position, after a restart."""
    kept = samples.incident(findings=(samples.rewind(known_at=17, since=3),), sighted=False)
    with IncidentStore(state_file) as store:
        store.save(42, [kept, samples.burst()])
    with IncidentStore(state_file) as store:
        assert store.incident(kept.id) == kept
        assert store.incidents() == [kept, samples.burst()]
        assert store.position == 42
        assert store.incident("INC-NONE") is None


def test_closed_incidents_can_be_left_out(store: IncidentStore) -> None:
    """The pipeline starts from the others, and from those closed a moment ago."""
    closed = samples.incident(id="INC-0", status=Status.CLOSED)
    store.save(1, [closed, samples.incident()])
    assert [one.id for one in store.incidents(closed_since=closed.updated_at + 1)] == ["INC-7F3A9C"]
    assert len(store.incidents(closed_since=closed.updated_at)) == 2


def test_a_batch_is_kept_whole_or_not_at_all(store: IncidentStore) -> None:
    """What fails halfway leaves incidents, position and queue as they were."""

    def halfway() -> Iterator[Incident]:
        yield samples.incident()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(7, halfway())
    assert (store.position, store.incidents(), store.pending()) == (0, [], 0)


def test_a_first_message_is_queued_with_its_timeline(store: IncidentStore, queue: Outbox) -> None:
    """The message, then one entry with a line per cause and effect."""
    assert store.save(1, [samples.incident()]) == {"slack"}
    (first, (number, lines)) = deliver(queue)
    assert first == (0, ())
    assert number == 1
    assert len(lines) == 5
    assert store.pending() == 0


def test_an_informative_incident_is_not_posted_until_it_grows_worse(store: IncidentStore, queue: Outbox) -> None:
    """Info alone says nothing; as a warning it tells everything from its beginning."""
    quiet = samples.incident(severity=Severity.INFO)
    assert store.save(1, [quiet]) == frozenset()
    assert store.save(2, [replace(quiet, severity=Severity.WARNING)]) == {"slack"}
    assert [number for number, _ in deliver(queue)] == [0, 1]


def test_what_nobody_can_see_is_no_edit(store: IncidentStore, queue: Outbox) -> None:
    """Saved again, with another updated_at: nothing is queued."""
    store.save(1, [samples.incident()])
    deliver(queue)
    assert store.save(2, [samples.incident(updated_at=samples.at("23:30:00"))]) == frozenset()


def test_many_changes_before_the_first_attempt_are_one_message_and_one_entry(
    store: IncidentStore, queue: Outbox
) -> None:
    """The latest state is sent, and the thread begins with it."""
    for partitions in range(1, 60):
        store.save(partitions, [samples.burst(partitions)])
    assert store.pending() == 2
    (row,) = rows(queue)
    assert len(row.message.incident.findings) == 59
    deliver(queue)


def test_edits_that_wait_are_one_edit_and_their_entries_join(store: IncidentStore, queue: Outbox) -> None:
    """After the first message, too: one row for the message, one for the thread."""
    store.save(1, [samples.burst(1)])
    deliver(queue)
    for partitions in range(2, 9):
        store.save(partitions, [samples.burst(partitions)])
    ((message, _), (entry, lines)) = deliver(queue)
    assert (message, entry) == (0, 2)
    assert len(lines) == 14  # a rewind and a leader move for each


def test_an_entry_once_attempted_is_never_changed(store: IncidentStore, queue: Outbox) -> None:
    """It may have arrived: what comes later is an entry of its own, and in order."""
    store.save(1, [samples.burst(1)])
    (message,) = rows(queue)
    queue.confirmed(message, {"ts": "1"})
    (entry,) = rows(queue)
    assert queue.attempt(entry, 5)
    store.save(2, [samples.burst(2)])
    again = next(row for row in rows(queue) if row.message.number == 1)
    assert (again.message.lines, again.attempted_at) == (entry.message.lines, 5)
    assert [number for number, _ in deliver(queue)] == [1, 0, 2]


def test_a_change_while_a_message_is_being_sent_is_sent_too(store: IncidentStore, queue: Outbox) -> None:
    """The row stays when what was confirmed is no longer the latest."""
    store.save(1, [samples.incident(causes=())])
    (row,) = rows(queue)
    assert queue.attempt(row, 5)
    store.save(2, [samples.incident()])
    queue.confirmed(row, {"ts": "1"})
    assert [number for number, _ in deliver(queue)] == [1, 0]


def test_a_row_that_changed_since_it_was_read_is_not_attempted(store: IncidentStore, queue: Outbox) -> None:
    """It is read again first."""
    store.save(1, [samples.incident(causes=())])
    (row,) = rows(queue)
    store.save(2, [samples.incident()])
    assert not queue.attempt(row, 5)
    assert queue.read(row.seq) is None


def test_what_was_never_told_is_not_told_when_it_is_over(store: IncidentStore, queue: Outbox) -> None:
    """Merged or withdrawn before the first attempt: nothing is left to say."""
    for end in ({"merged_into": "INC-B00257"}, {"status": Status.CLOSED, "findings": (), "causes": ()}):
        store.save(1, [samples.incident()])
        store.save(2, [samples.incident(**end)])
        assert queue.heads() == []


def test_what_was_told_is_edited_when_it_is_over(store: IncidentStore, queue: Outbox) -> None:
    """Merged: the message points there, the thread says so."""
    store.save(1, [samples.incident()])
    deliver(queue)
    store.save(2, [samples.incident(merged_into="INC-B00257", status=Status.CLOSED)])
    assert deliver(queue) == [(0, ()), (2, ("merged into INC-B00257",))]


def test_a_message_that_is_gone_is_made_anew_before_its_thread_goes_on(store: IncidentStore, queue: Outbox) -> None:
    """The entry waits for the new message."""
    store.save(1, [samples.incident()])
    (message,) = rows(queue)
    queue.confirmed(message, {"ts": "1"})
    (entry,) = rows(queue)
    assert queue.attempt(entry, 5)
    queue.gone(entry)
    (row,) = rows(queue)
    assert (row.message.number, row.handle, row.attempted_at) == (0, None, None)
    assert [number for number, _ in deliver(queue)] == [0, 1]


def test_incidents_never_told_come_before_edits(store: IncidentStore, queue: Outbox) -> None:
    """News first."""
    store.save(1, [samples.incident()])
    deliver(queue)
    store.save(2, [samples.recovered()])
    store.save(3, [samples.burst()])
    assert [incident_id for incident_id, _ in queue.heads()] == ["INC-B00257", "INC-7F3A9C"]


def test_each_receiver_has_a_queue_of_its_own(state_file: Path) -> None:
    """What one has confirmed the other still waits for; a receiver that is no more counts no longer."""
    with IncidentStore(state_file, ["slack", "console"]) as store:
        assert store.save(1, [samples.incident()]) == {"slack", "console"}
        slack = Outbox(state_file, "slack")
        deliver(slack)
        slack.close()
        assert store.pending() == 2
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.pending() == 0


def test_a_newer_state_file_is_refused(state_file: Path) -> None:
    """With its schema and what to do."""
    IncidentStore(state_file).close()
    with sqlite3.connect(state_file) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(StorageError, match=r"newer Backflow wrote this state \(schema 3, this one knows 2\)"):
        IncidentStore(state_file)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_state_file_is_refused_with_a_sentence(state_file: Path, content: bytes) -> None:
    """It names the file and what to do."""
    state_file.write_bytes(content)
    with pytest.raises(
        StorageError, match=rf"{state_file}: the state file is damaged or no SQLite file .*move it away"
    ):
        IncidentStore(state_file)


def test_damage_inside_the_file_is_found_at_the_start(state_file: Path) -> None:
    """Not by the first incident that cannot be written."""
    with IncidentStore(state_file, ["slack"]) as store:
        store.save(1, [replace(samples.burst(), id=f"INC-{number}") for number in range(20)])
    content = bytearray(state_file.read_bytes())
    content[4096 * 5 : 4096 * 9] = b"\xff" * 4096 * 4
    state_file.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        IncidentStore(state_file)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    """As a sentence."""
    with pytest.raises(StorageError, match=r"cannot open the state file: .*check that its directory exists"):
        IncidentStore(tmp_path / "nowhere" / "state.sqlite3")


def test_what_is_asked_stays_until_it_is_answered(state_file: Path) -> None:
    """As it grew, across restarts, in the order in which it was asked; an answer without words strikes it off too."""
    with IncidentStore(state_file) as store:
        store.save(1, [], [samples.ask(), samples.ask(id="second")])
        store.save(2, [], [samples.ask(groups=("billing",))])
    with IncidentStore(state_file) as store:
        assert store.asks() == [samples.ask(groups=("billing",)), samples.ask(id="second")]
        store.save(3, [], [], [CheckReport(None, samples.ask(), ())])
        assert [one.id for one in store.asks()] == ["second"]


def test_what_was_answered_is_not_asked_again(store: IncidentStore) -> None:
    """Whoever asks later, after a restart perhaps, asks the same."""
    store.save(1, [], [samples.ask()])
    store.save(2, [], [], [CheckReport(None, samples.ask(), ())])
    store.save(3, [], [samples.ask()])
    assert store.asks() == []


def test_evidence_comes_behind_the_timeline_lines_first_then_the_plot(store: IncidentStore, queue: Outbox) -> None:
    """Two entries of the thread, of one number in the plot's name; further lines of the timeline stay apart."""
    store.save(1, [samples.incident()])
    deliver(queue)
    assert store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.ask(), ("it fell once",), samples.PLOT)]) == {
        "slack"
    }
    store.save(3, [samples.recovered()])
    told = []
    while waiting := rows(queue):
        for row in waiting:
            told.append((row.message.number, row.message.lines, row.message.evidence, row.message.plot))
            queue.confirmed(row, {"ts": "1"})
    assert told == [
        (2, ("it fell once",), 1, None),
        (3, (), 1, samples.PLOT),
        (0, (), 0, None),
        (4, ("recovered at 23:25:26.0",), 0, None),
    ]


def test_an_ask_is_answered_once(store: IncidentStore, queue: Outbox) -> None:
    """A second answer, of a run that a kill had doubled, says nothing; what nothing had asked for always speaks."""
    store.save(1, [samples.incident()])
    deliver(queue)
    answer = CheckReport("INC-7F3A9C", samples.ask(), ("it fell once",))
    store.save(2, [], [], [answer])
    assert store.save(3, [], [], [answer]) == frozenset()
    assert deliver(queue) == [(2, ("it fell once",))]
    store.save(4, [], [], [answer._replace(ask=None), answer._replace(ask=None)])
    assert [number for number, _ in deliver(queue)] == [3, 4]


def test_evidence_of_what_is_not_told_yet_waits_until_it_is(store: IncidentStore, queue: Outbox) -> None:
    """It came while the incident was mere info, and is told behind the first message."""
    quiet = samples.incident(severity=Severity.INFO)
    store.save(1, [quiet])
    assert store.save(2, [], [], [CheckReport(quiet.id, samples.ask(), ("it fell once",))]) == frozenset()
    store.save(3, [samples.incident()])
    assert [lines[-1:] for _, lines in deliver(queue)][-1] == ("it fell once",)


def test_evidence_outlives_that_a_first_message_is_said_afresh(store: IncidentStore, queue: Outbox) -> None:
    """As long as nothing was tried, message and timeline are made anew; the evidence stays behind them, once."""
    store.save(1, [samples.incident(causes=())])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.ask(), ("it fell once",), samples.PLOT)])
    store.save(3, [samples.incident()])
    assert [(number, lines[-1:]) for number, lines in deliver(queue)] == [
        (0, ()), (1, ("leader of topic-124[8] 2011 -> 2005 at 23:25:26 UTC",)), (2, ("it fell once",)), (3, ()),
    ]  # fmt: skip


def test_evidence_and_its_ask_are_kept_together_with_the_incident_or_not_at_all(store: IncidentStore) -> None:
    """What fails halfway leaves the ask where it was."""

    def halfway() -> Iterator[CheckReport]:
        yield CheckReport("INC-7F3A9C", samples.ask(), ("it fell once",))
        raise KeyboardInterrupt

    store.save(1, [], [samples.ask()])
    with pytest.raises(KeyboardInterrupt):
        store.save(2, [samples.incident()], [], halfway())
    assert (store.position, store.incidents(), store.asks()) == (1, [], [samples.ask()])


def test_a_state_file_of_the_version_before_is_taken_over(state_file: Path) -> None:
    """Its incidents and what waits to be told are there; asks and evidence find room."""
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
        assert (store.position, store.incidents(), store.asks()) == (41, [samples.incident()], [])
        store.save(42, [], [samples.ask()], [CheckReport("INC-7F3A9C", None, ("two",), samples.PLOT)])
        queue = Outbox(state_file, "slack")
        assert deliver(queue) == [(0, ()), (1, ("one",)), (2, ("two",)), (3, ())]
        queue.close()
        assert store.asks() == [samples.ask()]


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


def test_what_is_long_over_and_was_told_is_forgotten_with_its_evidence(store: IncidentStore, queue: Outbox) -> None:
    """And what had asked for it; nothing is done twice."""
    store.save(1, [samples.incident()], [samples.ask()])
    store.save(2, [over("INC-7F3A9C")], [], [CheckReport("INC-7F3A9C", samples.ask(), ("once",), samples.PLOT)])
    deliver(queue)
    last = samples.incident().updated_at
    assert store.prune(last) == 0
    assert store.prune(max(last, samples.ask().until) + 1) == 1
    assert (store.incidents(), store.prune(last + DAY_MS)) == ([], 0)


def test_nothing_of_a_forgotten_incident_is_left(store: IncidentStore, queue: Outbox, state_file: Path) -> None:
    """Not in any table."""
    store.save(1, [over("INC-7F3A9C")], [samples.ask()])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.ask(), ("once",), samples.PLOT)])
    deliver(queue)
    assert [held(state_file, table) for table in TABLES] == [1, 1, 0, 1, 1]
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [held(state_file, table) for table in TABLES] == [0, 0, 0, 0, 0]


def test_what_is_undelivered_open_or_known_of_late_is_kept(store: IncidentStore, queue: Outbox) -> None:
    """However old it is; once it was delivered it goes like the others."""
    later = samples.at("00:00:00") + 2 * DAY_MS
    found_late = over("INC-LATE", findings=(samples.rewind(known_at=later),))
    store.save(1, [over("INC-7F3A9C"), found_late, samples.incident(id="INC-OPEN")])
    assert store.prune(later) == 0
    assert len(rows(queue)) == 3
    deliver(queue)
    assert store.prune(later) == 1
    assert {one.id for one in store.incidents()} == {"INC-LATE", "INC-OPEN"}


def test_a_receiver_that_is_no_more_keeps_nothing(state_file: Path) -> None:
    """Nobody will ever take what waits for it."""
    with IncidentStore(state_file, ["console"]) as store:
        store.save(1, [over("INC-7F3A9C")])
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.prune(samples.at("00:00:00") + 2 * DAY_MS) == 1
    assert held(state_file, "outbox") == 0


def test_what_an_open_incident_can_ask_again_stays_answered(store: IncidentStore) -> None:
    """Its root cause is followed anew after a restart."""
    store.save(1, [samples.incident()], [], [CheckReport(None, samples.ask(), ())])
    store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    store.save(2, [], [samples.ask()])
    assert store.asks() == []


def test_forgetting_is_all_or_nothing(store: IncidentStore, queue: Outbox, state_file: Path) -> None:
    """Where a row cannot be removed, all that belongs together stays."""
    store.save(1, [over("INC-7F3A9C")])
    deliver(queue)
    with closing(sqlite3.connect(state_file)) as db:
        db.execute("CREATE TRIGGER full BEFORE DELETE ON incidents BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
        store.prune(samples.at("00:00:00") + 2 * DAY_MS)
    assert [held(state_file, table) for table in ("incidents", "deliveries")] == [1, 1]
