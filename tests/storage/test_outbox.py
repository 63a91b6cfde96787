"""Pending notifications: many changes are few rows, and each row is delivered once and in order."""

from pathlib import Path

from msgspec.structs import replace

from agent.model.findings import Severity, Status
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.storage.conftest import add_lines, deliver_all, read_rows


def test_a_new_incident_queues_a_message_and_a_log_entry(store: IncidentStore, outbox: Outbox) -> None:
    assert store.save(1, [samples.incident()]) == {"slack"}
    assert deliver_all(outbox) == [(0, ()), (1, ("log of 1",))]
    assert store.pending() == 0


def test_a_discarded_incident_is_queued_again_when_it_changes(store: IncidentStore, outbox: Outbox) -> None:
    quiet = samples.incident(severity=Severity.INFO)
    store.save(1, [quiet])
    (row,) = read_rows(outbox)
    assert outbox.discard(row)
    assert store.pending() == 0
    assert store.save(2, [replace(quiet, severity=Severity.WARNING)]) == {"slack"}
    assert [number for number, _ in deliver_all(outbox)] == [0, 1]


def test_a_row_that_changed_since_it_was_read_is_not_dropped(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(severity=Severity.INFO)])
    (row,) = read_rows(outbox)
    store.save(2, [samples.incident()])
    assert not outbox.discard(row)
    assert not outbox.skip(row)
    assert store.pending() == 2


def test_a_skipped_row_is_not_delivered(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    (message,) = read_rows(outbox)
    outbox.confirmed(message, {"ts": "1"}, "fingerprint")
    (entry,) = read_rows(outbox)
    assert (entry.fingerprint, entry.covered) == ("fingerprint", None)
    assert outbox.skip(entry, '{"seen":1}')
    store.save(2, [samples.recovered()])
    (message,) = read_rows(outbox)
    assert (message.fingerprint, message.covered) == ("fingerprint", '{"seen":1}')


def test_another_update_time_alone_queues_nothing(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver_all(outbox)
    assert store.save(2, [samples.incident(updated_at=samples.at("23:30:00"))]) == frozenset()


def test_many_changes_before_the_first_attempt_are_two_rows(store: IncidentStore, outbox: Outbox) -> None:
    for partitions in range(1, 60):
        store.save(partitions, [samples.burst(partitions)])
    assert store.pending() == 2
    (row,) = read_rows(outbox)
    assert len(row.incident.findings) == 59
    deliver_all(outbox)


def test_pending_edits_are_one_edit_and_one_entry(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    deliver_all(outbox)
    for partitions in range(2, 9):
        store.save(partitions, [samples.burst(partitions)])
    assert deliver_all(outbox) == [(0, ()), (2, ("log of 8",))]


def test_an_attempted_entry_never_changes(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    (message,) = read_rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = map(add_lines, read_rows(outbox))
    assert outbox.attempt(entry, 5, '{"covers":1}')
    store.save(2, [samples.burst(2)])
    again = next(row for row in read_rows(outbox) if row.number == 1)
    assert (again.lines, again.attempted_at, again.covered) == (("log of 1",), 5, '{"covers":1}')
    assert deliver_all(outbox) == [(1, ("log of 1",)), (0, ()), (2, ("log of 2",))]


def test_an_entry_is_not_attempted_if_the_incident_changed(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.burst(1)])
    (message,) = read_rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = map(add_lines, read_rows(outbox))
    store.save(2, [samples.burst(2)])
    assert not outbox.attempt(entry, 5, '{"covers":1}')
    assert not outbox.skip(entry, '{"covers":1}')
    assert deliver_all(outbox) == [(1, ("log of 2",)), (0, ())]


def test_a_change_while_a_message_is_being_sent_is_sent_too(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    (row,) = read_rows(outbox)
    assert outbox.attempt(row, 5)
    store.save(2, [samples.incident()])
    outbox.confirmed(row, {"ts": "1"})
    assert [number for number, _ in deliver_all(outbox)] == [1, 0]


def test_a_row_that_changed_since_it_was_read_is_not_attempted(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    (row,) = read_rows(outbox)
    store.save(2, [samples.incident()])
    assert not outbox.attempt(row, 5)
    again = outbox.read(row.seq)
    assert again is not None
    assert again.incident == samples.incident()


def test_a_merged_incident_is_delivered(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver_all(outbox)
    store.save(2, [samples.incident(merged_into="INC-B00257", status=Status.CLOSED)])
    assert [number for number, _ in deliver_all(outbox)] == [0, 2]


def test_a_deleted_message_is_posted_before_its_log_entries(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    (message,) = read_rows(outbox)
    outbox.confirmed(message, {"ts": "1"})
    (entry,) = read_rows(outbox)
    assert outbox.attempt(entry, 5)
    outbox.gone(entry)
    (row,) = read_rows(outbox)
    assert (row.number, row.handle, row.attempted_at) == (0, None, None)
    assert [number for number, _ in deliver_all(outbox)] == [0, 1]


def test_first_messages_are_delivered_before_edits(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver_all(outbox)
    store.save(2, [samples.recovered()])
    store.save(3, [samples.burst()])
    assert [incident_id for incident_id, _ in outbox.heads()] == ["INC-B00257", "INC-7F3A9C"]


def test_receivers_have_separate_outboxes(state_file: Path) -> None:
    with IncidentStore(state_file, ["slack", "console"]) as store:
        assert store.save(1, [samples.incident()]) == {"slack", "console"}
        slack = Outbox(state_file, "slack")
        deliver_all(slack)
        slack.close()
        assert store.pending() == 2
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.pending() == 0


def test_a_check_report_is_two_log_entries_lines_then_plot(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver_all(outbox)
    report = CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",), samples.PLOT)
    assert store.save(2, [], [], [report]) == {"slack"}
    store.save(3, [samples.recovered()])
    delivered = []
    while waiting := read_rows(outbox):
        for row in map(add_lines, waiting):
            delivered.append((row.number, row.lines, row.check_report, row.plot))
            outbox.confirmed(row, {"ts": "1"})
    assert delivered == [
        (2, ("it fell once",), 1, None),
        (3, (), 1, samples.PLOT),
        (0, (), 0, None),
        (4, ("log of 1",), 0, None),
    ]


def test_a_check_request_is_reported_once(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident()])
    deliver_all(outbox)
    report = CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",))
    store.save(2, [], [], [report])
    assert store.save(3, [], [], [report]) == frozenset()
    assert deliver_all(outbox) == [(2, ("it fell once",))]
    store.save(4, [], [], [report._replace(request=None), report._replace(request=None)])
    assert [number for number, _ in deliver_all(outbox)] == [3, 4]


def test_a_report_on_a_discarded_incident_follows_its_message(store: IncidentStore, outbox: Outbox) -> None:
    quiet = samples.incident(severity=Severity.INFO)
    store.save(1, [quiet])
    outbox.discard(*read_rows(outbox))
    assert store.save(2, [], [], [CheckReport(quiet.id, samples.check_request(), ("it fell once",))]) == frozenset()
    store.save(3, [samples.incident()])
    assert [lines for _, lines in deliver_all(outbox)] == [(), ("log of 1",), ("it fell once",)]


def test_a_check_report_follows_an_unsent_first_message(store: IncidentStore, outbox: Outbox) -> None:
    store.save(1, [samples.incident(causes=())])
    store.save(2, [], [], [CheckReport("INC-7F3A9C", samples.check_request(), ("it fell once",), samples.PLOT)])
    store.save(3, [samples.incident()])
    assert deliver_all(outbox) == [(0, ()), (1, ("log of 1",)), (2, ("it fell once",)), (3, ())]
