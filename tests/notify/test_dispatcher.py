"""Delivery against the strict Slack stand-in: order, patience, lost answers, crashes; all is there in the end, once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.notify.base import (
    Gone,
    Handle,
    Message,
    NotDelivered,
    RateLimited,
    Receiver,
    Refused,
    Unanswered,
    message_of,
)
from agent.notify.dispatcher import LAST_RETRY_MS, PLOT_PATIENCE_MS, REFUSED_RETRY_MS, Dispatcher
from agent.notify.slack import Slack
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.outbox import Outbox
from testbed.slack import Slack as Workspace
from testbed.waiting import wait_until
from tests import samples

CHANNEL = "C0000000001"
SHORT_MS = 20

CHILD = """
import sys, threading
from pathlib import Path
from agent.notify.slack import Slack
from agent.notify.dispatcher import Dispatcher
from agent.storage.incidents import CheckReport, IncidentStore
from tests import samples
state_file, url, token = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
found = CheckReport("INC-7F3A9C", None, ("it fell once",), samples.PLOT)
IncidentStore(state_file, ["slack"]).save(1, [samples.eventful()], [], [found] * (len(sys.argv) > 4))
Dispatcher(state_file, Slack(token, lambda _: "C0000000001", base_url=url)).start()
threading.Event().wait()
"""


def to_slack(slack: Workspace, channel_of: Callable[[Incident], str] = lambda _: CHANNEL) -> Slack:
    """The receiver, with little patience for hanging connections."""
    return Slack(slack.token, channel_of, base_url=slack.url, timeout=1)


@contextmanager
def running(state_file: Path, receiver: Receiver) -> Iterator[Dispatcher]:
    """An outbox at work; it stops within two seconds."""
    outbox = Dispatcher(state_file, receiver)
    outbox.start()
    try:
        yield outbox
    finally:
        assert outbox.close(2)


def delivered(store: IncidentStore) -> None:
    """Wait until nothing is left to say."""
    wait_until(lambda: store.pending() == 0, "the outbox to be empty", 60, SHORT_MS / 1000)


def test_what_is_queued_is_delivered_and_struck_off(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)) as outbox:
        delivered(store)
        store.save(2, [samples.recovered(samples.eventful())])
        outbox.wake()
        delivered(store)
    (message,) = slack.messages()
    assert "RECOVERED" in message.words
    assert [reply.text.splitlines()[-1] for reply in slack.threads[message.ts]] == [
        "23:25:16.0  topic-124[4]: leader 2011 → 2024",
        "23:25:26.0  recovered",
    ]


def test_a_rate_limited_channel_waits_and_others_do_not(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    channels = {"INC-7F3A9C": "C0000000001", "INC-SAME": "C0000000001", "INC-OTHER": "C0000000002"}
    slack.answer(429, retry_after=3600, method="chat.postMessage")
    store.save(1, [replace(samples.eventful(), id=one) for one in channels])
    with running(state_file, to_slack(slack, lambda incident: channels[incident.id])):
        slack.wait_for(lambda: len(slack.threads) == 1)
    assert [len(slack.messages(name)) for name in ("alerts", "payments")] == [0, 1]
    assert [one.status for one in slack.received("chat.postMessage")] == [429, 200, 200]


def test_retry_after_is_honoured_and_nothing_is_looked_up(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.answer(429, retry_after=1)
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)):
        delivered(store)
    first, second, *_ = slack.requests
    assert second.at - first.at >= 1_000
    assert len(slack.messages()) == 1
    assert slack.received("conversations.history") == []


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
@pytest.mark.parametrize(
    "fault",
    [
        lambda it, arrived: it.close_connection(after=arrived),
        lambda it, arrived: it.hang(after=arrived),
        lambda it, arrived: it.answer(500, after=arrived),
    ],
    ids=["closed", "hangs", "500"],
)
def test_a_message_whose_answer_was_lost_is_there_once(
    state_file: Path, store: IncidentStore, slack: Workspace, fault: Callable[[Workspace, bool], None], *, arrived: bool
) -> None:
    fault(slack, arrived)
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)):
        delivered(store)
    (message,) = slack.messages()
    assert len(slack.threads[message.ts]) == 1
    assert len(slack.received("conversations.history")) == 1


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
def test_a_look_up_that_fails_leaves_the_doubt(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    slack.close_connection(method="chat.postMessage", after=arrived)
    slack.answer(429, retry_after=1, method="conversations.history")
    slack.close_connection(method="conversations.history")
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)):
        delivered(store)
    assert len(slack.messages()) == 1
    assert len(slack.received("conversations.history")) == 3


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
def test_an_entry_whose_answer_was_lost_is_there_once(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)) as outbox:
        delivered(store)
        slack.close_connection(method="chat.postMessage", after=arrived)
        store.save(2, [samples.recovered(samples.eventful())])
        outbox.wake()
        delivered(store)
    (message,) = slack.messages()
    assert [one.text.count("  recovered") for one in slack.threads[message.ts]] == [0, 1]
    assert len(slack.received("conversations.replies")) == 1


def test_an_edit_whose_answer_was_lost_is_made_again(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)) as outbox:
        delivered(store)
        slack.close_connection(method="chat.update", after=True)
        store.save(2, [samples.recovered(samples.eventful())])
        outbox.wake()
        delivered(store)
    assert len(slack.messages()) == 1
    assert len(slack.received("chat.update")) == 2
    assert slack.received("conversations.history") == []


def test_what_was_found_is_brought_up_to_date(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    slack.hang(method="chat.postMessage", after=True)
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)):
        slack.wait_for(lambda: slack.requests)
        store.save(2, [samples.recovered(samples.eventful())])
        delivered(store)
    (message,) = slack.messages()
    assert "RECOVERED" in message.words


def test_what_never_arrived_and_is_over_is_not_sent_again(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.hang(method="chat.postMessage")
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)):
        slack.wait_for(lambda: slack.requests)
        store.save(2, [samples.eventful(merged_into="INC-B00257")])
        delivered(store)
    assert slack.messages() == []


def test_a_deleted_message_is_posted_anew(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    store.save(1, [samples.eventful()])
    with running(state_file, to_slack(slack)) as outbox:
        delivered(store)
        (old,) = slack.messages()
        slack.delete_message(old.ts)
        store.save(2, [samples.recovered(samples.eventful())])
        outbox.wake()
        delivered(store)
    (new,) = slack.messages()
    assert new.ts != old.ts
    assert "23:25:26.0  recovered" in slack.threads[new.ts][-1].text


def test_a_message_deleted_under_an_entry_is_posted_anew(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    store.save(1, [samples.eventful()])
    queue = Outbox(state_file, "slack")
    sender = to_slack(slack)
    ((_, seq),) = queue.heads()
    row = queue.read(seq)
    assert row is not None
    handle = sender.deliver(message_of(row), None)
    queue.confirmed(row, handle)
    queue.close()
    slack.delete_message(handle["ts"])
    with running(state_file, sender):
        delivered(store)
    (new,) = slack.messages()
    assert len(slack.threads[new.ts]) == 1


@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
def test_a_kill_before_the_answer_leaves_one_message(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    root = Path(__file__).parents[2]
    slack.hang(after=arrived)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(state_file), slack.url, slack.token],
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    try:
        slack.wait_for(lambda: slack.requests, 30)
    finally:
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    slack.clear()
    assert store.position == 1
    assert store.pending() == 2
    with running(state_file, to_slack(slack)):
        delivered(store)
    (message,) = slack.messages()
    assert len(slack.threads[message.ts]) == 1
    assert len(slack.received("conversations.history")) == 1


def test_a_burst_is_one_message_and_a_thread_in_order(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    with running(state_file, to_slack(slack)) as outbox:
        for partitions in range(1, 201):
            store.save(partitions, [samples.burst(partitions)])
            outbox.wake()
            if partitions == 1:
                slack.wait_for(slack.messages)
        delivered(store)
    (message,) = slack.messages()
    assert "(and 199 more partitions)" in message.words
    assert len(message.edits) < 200
    told = "\n".join(one.text for one in slack.threads[message.ts])
    assert len(told.splitlines()) < 200
    numbers = [one.metadata["event_payload"]["entry"] for one in slack.threads[message.ts] if one.metadata]
    assert numbers == list(range(1, len(numbers) + 1))


FOUND = CheckReport("INC-7F3A9C", samples.check_request(), ("Spark, offset_history:", "it fell once"), samples.PLOT)


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
@pytest.mark.parametrize(
    "method", ["files.getUploadURLExternal", "upload", "files.completeUploadExternal", "conversations.replies"]
)
def test_a_plot_whose_answer_was_lost_is_in_the_thread_once(
    state_file: Path, store: IncidentStore, slack: Workspace, method: str, *, arrived: bool
) -> None:
    slack.close_connection(method=method, after=arrived)
    if method == "conversations.replies":
        slack.close_connection(method="files.completeUploadExternal", after=arrived)
    store.save(1, [samples.eventful()], [], [FOUND])
    with running(state_file, to_slack(slack)):
        delivered(store)
    (message,) = slack.messages()
    timeline, lines, plot = slack.threads[message.ts]
    assert (lines.text, bool(timeline.files or lines.files)) == ("Spark, offset_history:\nit fell once", False)
    (file,) = plot.files
    shared = {one.id: one for one in slack.uploads}[file]
    assert (shared.filename, shared.content) == ("INC-7F3A9C-plot-1.png", samples.PLOT)


def test_where_plots_may_not_be_uploaded_the_lines_stay_and_the_thread_goes_on(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.withhold("files:write")
    store.save(1, [samples.eventful()], [], [FOUND])
    with structlog.testing.capture_logs() as logs, running(state_file, to_slack(slack)) as outbox:
        delivered(store)
        store.save(2, [samples.recovered(samples.eventful())])
        outbox.wake()
        delivered(store)
    (message,) = slack.messages()
    texts = [one.text.splitlines()[-1] for one in slack.threads[message.ts]]
    assert texts[1:] == ["it fell once", "23:25:26.0  recovered"]
    (told,) = [one for one in logs if one["log_level"] == "warning"]
    assert told["event"] == "plot_not_delivered"
    assert told["reason"].endswith("missing_scope: the token lacks a scope: files:write")


@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
def test_a_kill_while_a_plot_is_uploaded_leaves_it_there_once(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    slack.hang(method="files.completeUploadExternal", after=arrived)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(state_file), slack.url, slack.token, "with a check report"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        slack.wait_for(lambda: slack.received("files.completeUploadExternal"), 30)
    finally:
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    slack.clear()
    assert store.pending() == 1
    with running(state_file, to_slack(slack)):
        delivered(store)
    (message,) = slack.messages()
    assert [len(one.files) for one in slack.threads[message.ts]] == [0, 0, 1]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        """The time, ms."""
        return self.now


class Script:
    """A receiver that does what its script says, then takes everything; it keeps what it was given."""

    name = "slack"

    def __init__(self, *script: Exception) -> None:
        self.script = list(script)
        self.taken: list[tuple[str, int]] = []

    def channel(self, message: Message, handle: Handle | None) -> str:
        """One channel."""
        del message, handle
        return "one"

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Do what is next in the script."""
        if self.script:
            raise self.script.pop(0)
        self.taken.append((message.incident.id, message.number))
        return handle or {"ts": "1"}

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Refuse to look."""
        del message, handle, since
        reason = "may not look"
        raise Refused(reason)


def waits(state_file: Path, failures: int, error: NotDelivered) -> list[int]:
    """How long the outbox waits after each of so many failures, ms; without jitter (drawn at its upper end)."""
    clock = Clock()
    outbox = Dispatcher(state_file, Script(*[error] * failures), clock=clock, jitter=lambda: 1.0)
    queue = Outbox(state_file, "slack")
    found = []
    for _ in range(failures):
        due = outbox.deliver_due(queue)
        assert due is not None
        found.append(due - clock.now)
        clock.now = due
    outbox.deliver_due(queue)
    queue.close()
    return found


def test_failures_are_retried_ever_more_slowly_up_to_a_minute(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    found = waits(state_file, 10, Unanswered("no answer"))
    assert found[:4] == [500, 1_000, 2_000, 4_000]
    assert found[-1] == LAST_RETRY_MS
    assert store.pending() == 1  # sent again, though it could not be looked up


def test_jitter_spreads_retries_over_the_upper_half_of_their_wait(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    outbox = Dispatcher(state_file, Script(Unanswered("no answer")), clock=Clock(), jitter=lambda: 0.0)
    queue = Outbox(state_file, "slack")
    assert outbox.deliver_due(queue) == 1_000_250
    queue.close()


def test_a_refusal_is_kept_retried_slowly_and_told_once(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    with structlog.testing.capture_logs() as logs:
        assert waits(state_file, 4, Refused("invalid_auth: the token is not valid")) == [REFUSED_RETRY_MS] * 4
    told = [(one["log_level"], one["event"]) for one in logs]
    assert told == [("error", "delivery_failed"), ("info", "delivery_resumed")]
    assert store.pending() == 1


def test_a_rate_limit_holds_for_the_whole_channel(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful(), samples.burst()])
    clock = Clock()
    receiver = Script(RateLimited("429", 9_000))
    outbox, queue = Dispatcher(state_file, receiver, clock=clock), Outbox(state_file, "slack")
    assert outbox.deliver_due(queue) == clock.now + 9_000
    clock.now += 8_999
    outbox.deliver_due(queue)
    assert receiver.taken == []
    clock.now += 1
    outbox.deliver_due(queue)
    assert sorted(receiver.taken) == [("INC-7F3A9C", 0), ("INC-B00257", 0)]
    queue.close()


def test_a_plot_without_an_answer_keeps_the_thread_waiting_for_minutes_only(
    state_file: Path, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, [samples.eventful()], [], [FOUND])
    clock, receiver = Clock(), Script()
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    outbox, queue = Dispatcher(state_file, receiver, clock=clock), Outbox(state_file, "slack")
    outbox.deliver_due(queue)
    outbox.deliver_due(queue)
    outbox.deliver_due(queue)
    begin = clock.now
    while store.pending():
        receiver.script.append(Unanswered("no answer"))
        clock.now = outbox.deliver_due(queue) or clock.now
    queue.close()
    assert [number for _, number in receiver.taken] == [0, 1, 2]
    assert PLOT_PATIENCE_MS < clock.now - begin < PLOT_PATIENCE_MS + LAST_RETRY_MS


def test_messages_that_vanish_again_and_again_are_made_ever_more_slowly(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    clock = Clock()

    class Vanishing(Script):
        def deliver(self, message: Message, handle: Handle | None) -> Handle:
            """Lose each message as soon as it is there."""
            if message.number:
                reason = "message_not_found"
                raise Gone(reason)
            return super().deliver(message, handle)

    receiver = Vanishing()
    outbox, queue = Dispatcher(state_file, receiver, clock=clock, jitter=lambda: 1.0), Outbox(state_file, "slack")
    end = clock.now + 3_600_000
    while clock.now < end:
        clock.now = max(clock.now + 1, outbox.deliver_due(queue) or 0)
    queue.close()
    assert len(receiver.taken) < 75


def test_a_defect_in_a_receiver_stops_neither_the_thread_nor_other_incidents(
    state_file: Path, store: IncidentStore
) -> None:
    store.save(1, [samples.eventful(), samples.burst()])
    receiver = Script(ZeroDivisionError("a defect"))
    with structlog.testing.capture_logs() as logs, running(state_file, receiver):
        delivered(store)
    assert sorted(receiver.taken) == [("INC-7F3A9C", 0), ("INC-7F3A9C", 1), ("INC-B00257", 0), ("INC-B00257", 1)]
    assert any("ZeroDivisionError" in one.get("reason", "") for one in logs)


def test_the_loop_turns_while_there_is_nothing_to_do_and_stops_at_once(state_file: Path, store: IncidentStore) -> None:
    assert store.position == 0
    with running(state_file, Script()) as outbox:
        turns = wait_until(lambda: outbox.turns, "a first turn", 10, SHORT_MS / 1000)
        outbox.wake()
        wait_until(lambda: outbox.turns > turns, "another turn", 10, SHORT_MS / 1000)


def test_an_outbox_that_hangs_in_a_call_is_left_behind(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.hang(after=True)
    store.save(1, [samples.eventful()])
    outbox = Dispatcher(state_file, Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=5))
    outbox.start()
    slack.wait_for(lambda: slack.requests)
    assert not outbox.close(0.2)
    slack.clear()
    assert outbox.close(10)
    with running(state_file, to_slack(slack)):
        delivered(store)
    assert len(slack.messages()) == 1


def test_an_edit_that_reads_the_same_is_dropped(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful()])
    receiver, outbox = Script(), Outbox(state_file, "slack")
    dispatcher = Dispatcher(state_file, receiver, clock=Clock())
    while store.pending():
        dispatcher.deliver_due(outbox)
    known_later = replace(samples.eventful(), findings=(samples.rewind(known_at=5),))
    assert store.save(2, [known_later]) == {"slack"}
    while store.pending():
        dispatcher.deliver_due(outbox)
    outbox.close()
    assert [number for _, number in receiver.taken] == [0, 1]


def test_an_edit_in_doubt_is_sent_even_if_it_reads_as_before(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.incident()])
    receiver, outbox, clock = Script(), Outbox(state_file, "slack"), Clock()
    dispatcher = Dispatcher(state_file, receiver, clock=clock)
    while store.pending():
        dispatcher.deliver_due(outbox)
    receiver.script.append(Unanswered("no answer"))
    store.save(2, [samples.recovered()])
    dispatcher.deliver_due(outbox)
    store.save(3, [samples.incident()])
    while store.pending():
        clock.now = max(clock.now, dispatcher.deliver_due(outbox) or 0)
    outbox.close()
    assert [number for _, number in receiver.taken].count(0) == 2


@pytest.mark.parametrize(
    "change", [{"severity": Severity.INFO}, {"merged_into": "INC-1"}, {"findings": (), "status": Status.CLOSED}]
)
def test_what_is_not_worth_a_first_message_is_dropped(
    state_file: Path, store: IncidentStore, change: dict[str, object]
) -> None:
    store.save(1, [samples.incident(**change)])
    receiver, outbox = Script(), Outbox(state_file, "slack")
    Dispatcher(state_file, receiver, clock=Clock()).deliver_due(outbox)
    outbox.close()
    assert (receiver.taken, store.pending()) == ([], 0)


def test_what_became_worse_is_delivered_from_its_beginning(state_file: Path, store: IncidentStore) -> None:
    store.save(1, [samples.eventful(severity=Severity.INFO)])
    receiver, outbox = Script(), Outbox(state_file, "slack")
    dispatcher = Dispatcher(state_file, receiver, clock=Clock())
    dispatcher.deliver_due(outbox)
    store.save(2, [samples.eventful()])
    while store.pending():
        dispatcher.deliver_due(outbox)
    outbox.close()
    assert [number for _, number in receiver.taken] == [0, 1]
