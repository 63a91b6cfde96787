"""Delivery to the strict Slack stand-in: order, rate limits, lost responses and kills; in the end all is there once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from agent.model.findings import Incident
from agent.notify.base import message_of
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from testbed.slack import Slack as Workspace
from tests import samples
from tests.notify.dispatching import CHECK_REPORT, run_dispatcher, wait_until_delivered

CHANNEL = "C0000000001"

CHILD = """
import sys, threading
from pathlib import Path
from agent.notify.slack import Slack
from agent.notify.dispatcher import Dispatcher
from agent.storage.incidents import CheckReport, IncidentStore
from tests import samples
state_file, url, token = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
report = CheckReport("INC-7F3A9C", None, ("it fell once",), samples.PLOT)
IncidentStore(state_file, ["slack"]).save(1, [samples.eventful()], [], [report] * (len(sys.argv) > 4))
Dispatcher(state_file, Slack(token, lambda _: "C0000000001", base_url=url)).start()
threading.Event().wait()
"""


def slack_receiver(slack: Workspace, channel_of: Callable[[Incident], str] = lambda _: CHANNEL) -> Slack:
    return Slack(slack.token, channel_of, base_url=slack.url, timeout=1)


@pytest.mark.parametrize("named", [False, True], ids=["by-id", "by-name"])
def test_incident_is_posted_anew_when_its_channel_is_archived(
    state_file: Path, store: IncidentStore, slack: Workspace, *, named: bool
) -> None:
    old, new = ("alerts", "payments") if named else (CHANNEL, "C0000000002")
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack, lambda _: old)):
        wait_until_delivered(store)
    slack.archive()
    store.save(2, [samples.recovered(samples.eventful())])
    with run_dispatcher(state_file, slack_receiver(slack, lambda _: old)):
        slack.wait_for(lambda: len(slack.received("chat.update")) == 1)
    assert len(slack.messages("alerts")) == store.pending() - 1 == 1
    with run_dispatcher(state_file, slack_receiver(slack, lambda _: new)):
        wait_until_delivered(store)
    (message,) = slack.messages("payments")
    assert "RECOVERED" in message.words
    assert [reply.text.splitlines()[-1] for reply in slack.threads[message.ts]] == ["23:25:26.0  recovered"]
    assert "RECOVERED" not in slack.messages("alerts")[0].words


def test_incident_that_cannot_be_described_is_posted_plainly(
    state_file: Path, store: IncidentStore, slack: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Incident) -> None:
        raise KeyError("topic")  # noqa: EM101 - as a template does

    monkeypatch.setattr("agent.notify.base.report", broken)
    store.save(1, [samples.eventful()])
    with structlog.testing.capture_logs() as logged, run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert samples.eventful().title in message.words.replace("&gt;", ">")
    assert "cannot describe this incident" in message.words
    assert [entry["event"] for entry in logged].count("delivery_failed") == 1


def test_pending_notifications_are_delivered_and_removed(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        wait_until_delivered(store)
        store.save(2, [samples.recovered(samples.eventful())])
        dispatcher.wake()
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert "RECOVERED" in message.words
    assert [reply.text.splitlines()[-1] for reply in slack.threads[message.ts]] == [
        "23:25:16.0  topic-124[4]: leader 2011 → 2024",
        "23:25:26.0  recovered",
    ]


def test_a_rate_limited_channel_delays_no_other_channel(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    channels = {"INC-7F3A9C": "C0000000001", "INC-SAME": "C0000000001", "INC-OTHER": "C0000000002"}
    slack.answer(429, retry_after=3600, method="chat.postMessage")
    store.save(1, [replace(samples.eventful(), id=incident_id) for incident_id in channels])
    with run_dispatcher(state_file, slack_receiver(slack, lambda incident: channels[incident.id])):
        slack.wait_for(lambda: len(slack.threads) == 1)
    assert [len(slack.messages(name)) for name in ("alerts", "payments")] == [0, 1]
    assert [request.status for request in slack.received("chat.postMessage")] == [429, 200, 200]


def test_retry_after_is_honoured_without_a_search(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    slack.answer(429, retry_after=1)
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    first, second, *_ = slack.requests
    assert second.at - first.at >= 1_000
    assert len(slack.messages()) == 1
    assert slack.received("conversations.history") == []


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
@pytest.mark.parametrize(
    "fault",
    [
        lambda slack, arrived: slack.close_connection(after=arrived),
        lambda slack, arrived: slack.hang(after=arrived),
        lambda slack, arrived: slack.answer(500, after=arrived),
    ],
    ids=["closed", "hangs", "500"],
)
def test_a_message_whose_response_was_lost_is_posted_once(
    state_file: Path, store: IncidentStore, slack: Workspace, fault: Callable[[Workspace, bool], None], *, arrived: bool
) -> None:
    fault(slack, arrived)
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert len(slack.threads[message.ts]) == 1
    assert len(slack.received("conversations.history")) == 1


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
def test_a_failed_search_is_repeated_before_posting_again(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    slack.close_connection(method="chat.postMessage", after=arrived)
    slack.answer(429, retry_after=1, method="conversations.history")
    slack.close_connection(method="conversations.history")
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    assert len(slack.messages()) == 1
    assert len(slack.received("conversations.history")) == 3


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
def test_a_log_entry_whose_response_was_lost_is_posted_once(
    state_file: Path, store: IncidentStore, slack: Workspace, *, arrived: bool
) -> None:
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        wait_until_delivered(store)
        slack.close_connection(method="chat.postMessage", after=arrived)
        store.save(2, [samples.recovered(samples.eventful())])
        dispatcher.wake()
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert [reply.text.count("  recovered") for reply in slack.threads[message.ts]] == [0, 1]
    assert len(slack.received("conversations.replies")) == 1


def test_an_edit_whose_response_was_lost_is_repeated(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        wait_until_delivered(store)
        slack.close_connection(method="chat.update", after=True)
        store.save(2, [samples.recovered(samples.eventful())])
        dispatcher.wake()
        wait_until_delivered(store)
    assert len(slack.messages()) == 1
    assert len(slack.received("chat.update")) == 2
    assert slack.received("conversations.history") == []


def test_a_message_found_by_a_search_is_updated(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    slack.hang(method="chat.postMessage", after=True)
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)):
        slack.wait_for(lambda: slack.requests)
        store.save(2, [samples.recovered(samples.eventful())])
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert "RECOVERED" in message.words


def test_a_lost_message_of_a_merged_incident_is_not_repeated(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.hang(method="chat.postMessage")
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)):
        slack.wait_for(lambda: slack.requests)
        store.save(2, [samples.eventful(merged_into="INC-B00257")])
        wait_until_delivered(store)
    assert slack.messages() == []


def test_a_message_deleted_before_an_edit_is_posted_again(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    store.save(1, [samples.eventful()])
    with run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        wait_until_delivered(store)
        (old,) = slack.messages()
        slack.delete_message(old.ts)
        store.save(2, [samples.recovered(samples.eventful())])
        dispatcher.wake()
        wait_until_delivered(store)
    (new,) = slack.messages()
    assert new.ts != old.ts
    assert "23:25:26.0  recovered" in slack.threads[new.ts][-1].text


def test_a_message_deleted_before_a_log_entry_is_posted_again(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    store.save(1, [samples.eventful()])
    outbox = Outbox(state_file, "slack")
    sender = slack_receiver(slack)
    ((_, seq),) = outbox.heads()
    row = outbox.read(seq)
    assert row is not None
    handle = sender.deliver(message_of(row), None)
    outbox.confirmed(row, handle)
    outbox.close()
    slack.delete_message(handle["ts"])
    with run_dispatcher(state_file, sender):
        wait_until_delivered(store)
    (new,) = slack.messages()
    assert len(slack.threads[new.ts]) == 1


@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
def test_a_kill_before_the_response_leaves_one_message(
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
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert len(slack.threads[message.ts]) == 1
    assert len(slack.received("conversations.history")) == 1


def test_a_burst_is_one_message_and_a_thread_in_order(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    with run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        for partitions in range(1, 201):
            store.save(partitions, [samples.burst(partitions)])
            dispatcher.wake()
            if partitions == 1:
                slack.wait_for(slack.messages)
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert "(and 199 more partitions)" in message.words
    assert len(message.edits) < 200
    log = "\n".join(reply.text for reply in slack.threads[message.ts])
    assert len(log.splitlines()) < 200
    numbers = [reply.metadata["event_payload"]["entry"] for reply in slack.threads[message.ts] if reply.metadata]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("arrived", [False, True], ids=["lost", "arrived"])
@pytest.mark.parametrize(
    "method", ["files.getUploadURLExternal", "upload", "files.completeUploadExternal", "conversations.replies"]
)
def test_a_plot_whose_response_was_lost_is_in_the_thread_once(
    state_file: Path, store: IncidentStore, slack: Workspace, method: str, *, arrived: bool
) -> None:
    slack.close_connection(method=method, after=arrived)
    if method == "conversations.replies":
        slack.close_connection(method="files.completeUploadExternal", after=arrived)
    store.save(1, [samples.eventful()], [], [CHECK_REPORT])
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    (message,) = slack.messages()
    timeline, lines, plot = slack.threads[message.ts]
    assert (lines.text, bool(timeline.files or lines.files)) == ("Spark, offset_history:\nit fell once", False)
    (file,) = plot.files
    shared = {upload.id: upload for upload in slack.uploads}[file]
    assert (shared.filename, shared.content) == ("INC-7F3A9C-plot-1.png", samples.PLOT)


def test_a_plot_that_slack_declines_does_not_block_the_thread(
    state_file: Path, store: IncidentStore, slack: Workspace
) -> None:
    slack.withhold("files:write")
    store.save(1, [samples.eventful()], [], [CHECK_REPORT])
    with structlog.testing.capture_logs() as logs, run_dispatcher(state_file, slack_receiver(slack)) as dispatcher:
        wait_until_delivered(store)
        store.save(2, [samples.recovered(samples.eventful())])
        dispatcher.wake()
        wait_until_delivered(store)
    (message,) = slack.messages()
    texts = [reply.text.splitlines()[-1] for reply in slack.threads[message.ts]]
    assert texts[1:] == ["it fell once", "23:25:26.0  recovered"]
    (warning,) = [event for event in logs if event["log_level"] == "warning"]
    assert warning["event"] == "plot_not_delivered"
    assert warning["reason"].endswith("missing_scope: the token lacks a scope: files:write")


@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
def test_a_kill_during_a_plots_upload_leaves_one_plot(
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
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    (message,) = slack.messages()
    assert [len(reply.files) for reply in slack.threads[message.ts]] == [0, 0, 1]


def test_close_does_not_wait_for_a_hanging_request(state_file: Path, store: IncidentStore, slack: Workspace) -> None:
    slack.hang(after=True)
    store.save(1, [samples.eventful()])
    dispatcher = Dispatcher(state_file, Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=5))
    dispatcher.start()
    slack.wait_for(lambda: slack.requests)
    assert not dispatcher.close(0.2)
    slack.clear()
    assert dispatcher.close(10)
    with run_dispatcher(state_file, slack_receiver(slack)):
        wait_until_delivered(store)
    assert len(slack.messages()) == 1
