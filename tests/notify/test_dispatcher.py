"""Dispatching with scripted errors and a clock set by hand: retries, backoff, and what is not sent."""

import threading
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.notify.base import Gone, Handle, Message, NotDelivered, RateLimited, Refused, Unanswered
from agent.notify.dispatcher import PLOT_PATIENCE_MS, Dispatcher, close_all
from agent.notify.retries import LAST_RETRY_MS, REFUSED_RETRY_MS
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from testbed.waiting import wait_until
from tests import samples
from tests.notify.dispatching import CHECK_REPORT, POLL_MS, run_dispatcher, wait_until_delivered


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class ScriptedReceiver:
    """A receiver that raises the scripted errors first, then accepts every message and records it."""

    name = "slack"
    edits = True

    def __init__(self, *script: Exception) -> None:
        self.script = list(script)
        self.accepted: list[tuple[str, int]] = []

    def accepts(self, incident: Incident) -> bool:
        return incident.cluster != "elsewhere"

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        del incident, handle
        return False

    def channel(self, message: Message, handle: Handle | None) -> str:
        del message, handle
        return "alerts"

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        if self.script:
            raise self.script.pop(0)
        self.accepted.append((message.incident.id, message.number))
        return handle or {"ts": "1"}

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        del message, handle, since
        reason = "search not permitted"
        raise Refused(reason)


def measure_waits(state_file: Path, failures: int, error: NotDelivered) -> list[int]:
    """Return the wait (ms) after each of a number of failures, without jitter (drawn at its upper end)."""
    clock = Clock()
    dispatcher = Dispatcher(state_file, ScriptedReceiver(*[error] * failures), clock=clock, jitter=lambda: 1.0)
    outbox = Outbox(state_file, "slack")
    intervals = []
    for _ in range(failures):
        due = dispatcher.deliver_due(outbox)
        assert due is not None
        intervals.append(due - clock.now)
        clock.now = due
    dispatcher.deliver_due(outbox)
    outbox.close()
    return intervals


def test_failures_are_retried_with_backoff_up_to_a_minute(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    intervals = measure_waits(state_file, 10, Unanswered("no response"))
    assert intervals[:4] == [500, 1_000, 2_000, 4_000]
    assert intervals[-1] == LAST_RETRY_MS
    assert store.pending() == 1  # sent again, although the search failed


def test_jitter_shortens_a_retry_interval_by_at_most_half(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    dispatcher = Dispatcher(state_file, ScriptedReceiver(Unanswered("no response")), clock=Clock(), jitter=lambda: 0.0)
    outbox = Outbox(state_file, "slack")
    assert dispatcher.deliver_due(outbox) == 1_000_250
    outbox.close()


def test_a_refused_message_is_kept_and_logged_once(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    with structlog.testing.capture_logs() as logs:
        assert measure_waits(state_file, 4, Refused("invalid_auth: the token is not valid")) == [REFUSED_RETRY_MS] * 4
    events = [(event["log_level"], event["event"]) for event in logs]
    assert events == [("error", "delivery_failed"), ("info", "delivery_resumed")]
    assert store.pending() == 1


def test_a_refusal_is_no_problem_once_nothing_waits(state_file: Path, store: IncidentStore) -> None:
    clock = Clock()
    dispatcher = Dispatcher(state_file, ScriptedReceiver(Refused("channel_not_found")), clock=clock)
    outbox = Outbox(state_file, "slack")
    store.save(1, [samples.incident()])
    dispatcher.deliver_due(outbox)
    assert dispatcher.problem == "channel_not_found"
    store.save(2, [samples.incident(status=Status.CLOSED, merged_into="INC-1")])
    clock.now += REFUSED_RETRY_MS
    for _ in range(3):
        dispatcher.deliver_due(outbox)
    outbox.close()
    assert (store.pending(), dispatcher.problem) == (0, "")


def test_a_rate_limit_holds_for_the_whole_channel(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful(), samples.burst()])
    clock = Clock()
    receiver = ScriptedReceiver(RateLimited("429", 9_000))
    dispatcher, outbox = Dispatcher(state_file, receiver, clock=clock), Outbox(state_file, "slack")
    assert dispatcher.deliver_due(outbox) == clock.now + 9_000
    clock.now += 8_999
    dispatcher.deliver_due(outbox)
    assert receiver.accepted == []
    clock.now += 1
    dispatcher.deliver_due(outbox)
    assert sorted(receiver.accepted) == [("INC-7F3A9C", 0), ("INC-B00257", 0)]
    outbox.close()


def test_a_rate_limit_of_no_time_is_retried_with_backoff(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    assert measure_waits(state_file, 4, RateLimited("429", 0)) == [500, 1_000, 2_000, 4_000]


def test_all_dispatchers_are_stopped_at_once(state_file: Path, store: IncidentStore) -> None:
    """The call of the first lasts until the second has ended."""
    idle = ScriptedReceiver()
    idle.name = "idle"
    second = Dispatcher(state_file, idle)
    is_called = threading.Event()

    class Waiting(ScriptedReceiver):
        def deliver(self, message: Message, handle: Handle | None) -> Handle:
            is_called.set()
            second._thread.join(20)
            return super().deliver(message, handle)

    store.save(1, [samples.incident()])
    first = Dispatcher(state_file, Waiting())
    second.start()
    first.start()
    assert is_called.wait(10)
    assert close_all([first, second], timeout=5)


def test_a_plot_without_a_response_is_dropped_after_minutes(
    state_file: Path, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, [samples.eventful()], [], [CHECK_REPORT])
    clock, receiver = Clock(), ScriptedReceiver()
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    dispatcher, outbox = Dispatcher(state_file, receiver, clock=clock), Outbox(state_file, "slack")
    dispatcher.deliver_due(outbox)
    dispatcher.deliver_due(outbox)
    dispatcher.deliver_due(outbox)
    begin = clock.now
    while store.pending():
        receiver.script.append(Unanswered("no response"))
        clock.now = dispatcher.deliver_due(outbox) or clock.now
    outbox.close()
    assert [number for _, number in receiver.accepted] == [0, 1, 2]
    assert PLOT_PATIENCE_MS < clock.now - begin < PLOT_PATIENCE_MS + LAST_RETRY_MS


def test_a_message_that_is_always_deleted_is_posted_with_backoff(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    clock = Clock()

    class Vanishing(ScriptedReceiver):
        def deliver(self, message: Message, handle: Handle | None) -> Handle:
            if message.number:
                reason = "message_not_found"
                raise Gone(reason)
            return super().deliver(message, handle)

    receiver = Vanishing()
    dispatcher, outbox = Dispatcher(state_file, receiver, clock=clock, jitter=lambda: 1.0), Outbox(state_file, "slack")
    end = clock.now + 3_600_000
    while clock.now < end:
        clock.now = max(clock.now + 1, dispatcher.deliver_due(outbox) or 0)
    outbox.close()
    assert len(receiver.accepted) < 75


def test_a_receivers_defect_does_not_stop_the_dispatcher(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful(), samples.burst()])
    receiver = ScriptedReceiver(ZeroDivisionError("a defect"))
    with structlog.testing.capture_logs() as logs, run_dispatcher(state_file, receiver):
        wait_until_delivered(store)
    assert sorted(receiver.accepted) == [("INC-7F3A9C", 0), ("INC-7F3A9C", 1), ("INC-B00257", 0), ("INC-B00257", 1)]
    assert any("ZeroDivisionError" in event.get("reason", "") for event in logs)


def test_a_defect_outside_of_messages_is_tried_again(state_file: Path, store: IncidentStore) -> None:
    receiver, calls = ScriptedReceiver(), iter([ZeroDivisionError("7 / 0")])

    def fail_once(now: int) -> None:
        del now
        for error in calls:
            raise error

    store.save(1, [samples.incident()])
    dispatcher = Dispatcher(state_file, receiver, quiet_until=fail_once)
    dispatcher.start()
    wait_until(lambda: dispatcher.problem == "internal error: ZeroDivisionError: 7 / 0", "the defect", 10, 0.01)
    dispatcher.wake()
    wait_until_delivered(store)
    assert dispatcher.close(5)
    assert dispatcher.problem == ""


def test_an_idle_dispatcher_keeps_turning_and_stops_at_once(state_file: Path, store: IncidentStore) -> None:
    assert store.position == 0
    with run_dispatcher(state_file, ScriptedReceiver()) as dispatcher:
        turns = wait_until(lambda: dispatcher.turns, "a first turn", 10, POLL_MS / 1000)
        dispatcher.wake()
        wait_until(lambda: dispatcher.turns > turns, "another turn", 10, POLL_MS / 1000)


def test_an_edit_that_changes_no_text_is_dropped(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    receiver, outbox = ScriptedReceiver(), Outbox(state_file, "slack")
    dispatcher = Dispatcher(state_file, receiver, clock=Clock())
    while store.pending():
        dispatcher.deliver_due(outbox)
    known_later = replace(samples.eventful(), findings=(samples.rewind(known_at=5),))
    assert store.save(2, [known_later]) == {"slack"}
    while store.pending():
        dispatcher.deliver_due(outbox)
    outbox.close()
    assert [number for _, number in receiver.accepted] == [0, 1]


def test_an_edit_after_an_unanswered_edit_is_always_sent(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.incident()])
    receiver, outbox, clock = ScriptedReceiver(), Outbox(state_file, "slack"), Clock()
    dispatcher = Dispatcher(state_file, receiver, clock=clock)
    while store.pending():
        dispatcher.deliver_due(outbox)
    receiver.script.append(Unanswered("no response"))
    store.save(2, [samples.recovered()])
    dispatcher.deliver_due(outbox)
    store.save(3, [samples.incident()])
    while store.pending():
        clock.now = max(clock.now, dispatcher.deliver_due(outbox) or 0)
    outbox.close()
    assert [number for _, number in receiver.accepted].count(0) == 2


@pytest.mark.parametrize(
    "change", [{"severity": Severity.INFO}, {"merged_into": "INC-1"}, {"findings": (), "status": Status.CLOSED}]
)
def test_info_merged_and_withdrawn_incidents_are_not_posted(
    state_file: Path, store: IncidentStore, change: dict[str, object]
) -> None:
    store.save(1, [samples.incident(**change)])
    receiver, outbox = ScriptedReceiver(), Outbox(state_file, "slack")
    Dispatcher(state_file, receiver, clock=Clock()).deliver_due(outbox)
    outbox.close()
    assert (receiver.accepted, store.pending()) == ([], 0)


def test_an_info_incident_that_escalates_is_posted_in_full(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful(severity=Severity.INFO)])
    receiver, outbox = ScriptedReceiver(), Outbox(state_file, "slack")
    dispatcher = Dispatcher(state_file, receiver, clock=Clock())
    dispatcher.deliver_due(outbox)
    store.save(2, [samples.eventful()])
    while store.pending():
        dispatcher.deliver_due(outbox)
    outbox.close()
    assert [number for _, number in receiver.accepted] == [0, 1]


def test_what_becomes_critical_while_it_is_posted_is_announced(state_file: Path, store: IncidentStore) -> None:
    entries: list[tuple[str, ...]] = []

    class Escalating(ScriptedReceiver):
        def deliver(self, message: Message, handle: Handle | None) -> Handle:
            if handle is None:
                store.save(2, [samples.incident()])
            entries.append(message.lines)
            return super().deliver(message, handle)

    store.save(1, [samples.incident(severity=Severity.WARNING)])
    receiver = Escalating()
    with run_dispatcher(state_file, receiver):
        wait_until_delivered(store)
    assert [number for _, number in receiver.accepted] == [0, 1, 0]
    assert entries[1] == ("Severity raised to critical, was warning.",)


def test_new_incidents_overtake_the_edits_that_are_waiting(state_file: Path, store: IncidentStore) -> None:
    """Of the new ones the critical come first, however many edits a storm has left."""
    posted = [replace(samples.eventful(), id=f"INC-{number:08}") for number in range(5)]
    store.save(1, posted)
    receiver, outbox = ScriptedReceiver(), Outbox(state_file, "slack")
    dispatcher = Dispatcher(state_file, receiver, clock=Clock())
    dispatcher.deliver_due(outbox)
    while store.pending():
        dispatcher.deliver_due(outbox)
    receiver.accepted.clear()
    store.save(2, [replace(incident, title="changed") for incident in posted])
    warning = replace(samples.eventful(), id="INC-00000008", severity=Severity.WARNING)
    store.save(3, [warning])
    store.save(4, [replace(warning, id="INC-00000009", severity=Severity.CRITICAL)])
    dispatcher.deliver_due(outbox)
    assert [incident_id for incident_id, _ in receiver.accepted][:3] == ["INC-00000009", "INC-00000008", posted[0].id]


def test_what_is_queued_during_a_round_is_delivered_before_the_rest(state_file: Path, store: IncidentStore) -> None:
    waiting = [replace(samples.eventful(), id=f"INC-{number:08}", severity=Severity.WARNING) for number in range(5)]
    store.save(1, waiting)

    class Interrupted(ScriptedReceiver):
        def deliver(self, message: Message, handle: Handle | None) -> Handle:
            if not self.accepted:
                with IncidentStore(state_file, ["slack"]) as other:
                    other.save(2, [replace(samples.eventful(), id="INC-00000009", severity=Severity.CRITICAL)])
                dispatcher.wake()
            return super().deliver(message, handle)

    receiver = Interrupted()
    dispatcher = Dispatcher(state_file, receiver)
    dispatcher.start()
    wait_until_delivered(store)
    assert dispatcher.close(2)
    assert [incident_id for incident_id, _ in receiver.accepted[:3]] == [waiting[0].id, "INC-00000009", waiting[1].id]


def test_backlog_and_failures_are_counted(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    clock = Clock()
    receiver = ScriptedReceiver(Unanswered("no response"), Refused("invalid_auth"), RateLimited("slowly", 1_000))
    dispatcher = Dispatcher(state_file, receiver, clock=clock, jitter=lambda: 1.0)
    outbox = Outbox(state_file, "slack")
    assert (dispatcher.backlog, dispatcher.problem) == ((0, 0), "")
    begun = clock.now
    for number, reason in enumerate(("no response", "invalid_auth", "slowly"), 1):
        clock.now = dispatcher.deliver_due(outbox) or 0
        assert dispatcher.backlog == (1, clock.now - begun)
        assert (dispatcher.problem, dispatcher.failed.total()) == (reason, number)
    while dispatcher.deliver_due(outbox) is not None:
        clock.now += 1
    outbox.close()
    assert dispatcher.failed == {"unanswered": 1, "refused": 1, "rate_limited": 1}
    assert dispatcher.delivered == len(receiver.accepted) > 0
    assert (dispatcher.backlog, dispatcher.problem) == ((0, 0), "")
