"""Slack by the Web API, against the strict stand-in: posts, edits, threads, look-ups, and what each refusal means."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Incident, Severity
from agent.notify.base import Declined, Gone, Handle, Message, NotDelivered, RateLimited, Refused, Unanswered
from agent.notify.slack import Slack, blocks, clipped
from agent.render.report import report, timeline
from testbed import blockkit
from testbed.slack import Slack as Workspace
from tests import samples

CHANNEL = "C0000000001"
SINCE = 0


@pytest.fixture
def receiver(slack: Workspace) -> Slack:
    """The receiver for its first channel."""
    return Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=1)


def test_an_incident_is_one_message_that_is_edited(receiver: Slack, slack: Workspace) -> None:
    """Posted once, then changed in place, with the id in its metadata all along."""
    handle = receiver.deliver(Message(samples.incident()), None)
    assert receiver.deliver(Message(samples.recovered()), handle) == handle
    (message,) = slack.messages()
    assert handle == {"channel": CHANNEL, "ts": message.ts}
    assert message.words.startswith(":large_green_circle: *CRITICAL (RECOVERED)  flink-job went back 12,223 records")
    assert message.edits[0].text.startswith("CRITICAL  flink-job")
    assert message.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C"}}


def test_the_timeline_goes_into_its_thread(receiver: Slack, slack: Workspace) -> None:
    """Each entry a reply that can be told from the others."""
    handle = receiver.deliver(Message(samples.incident()), None)
    receiver.deliver(Message(samples.incident(), 1, ("broker 2005 lost it", "a & b <!channel>")), handle)
    (reply,) = slack.threads[handle["ts"]]
    assert reply.text == "broker 2005 lost it\na &amp; b &lt;!channel&gt;"
    assert reply.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C", "entry": 1}}


def test_what_becomes_critical_is_heard_in_the_channel(receiver: Slack, slack: Workspace) -> None:
    """Slack rings for no edit: the entry of the timeline that says so is broadcast, the others are not."""
    critical = samples.incident()
    warned = replace(critical, severity=Severity.WARNING)
    message = receiver.deliver(Message(warned), None)
    receiver.deliver(Message(warned, 1, timeline(None, warned)), message)
    receiver.deliver(Message(critical, 2, timeline(warned, critical)), message)
    first, second = slack.threads[message["ts"]]
    assert second.text == "now critical, was warning"
    assert (first.broadcast, second.broadcast) == (False, True)
    assert receiver.find(Message(warned), None, SINCE) == message


def test_a_channel_may_be_given_by_name(slack: Workspace) -> None:
    """Its id is known from the first answer on, and looked up where an answer was lost before that."""
    message = Message(samples.incident())
    first = Slack(slack.token, lambda _: "#payments", base_url=slack.url)
    assert first.find(message, None, SINCE) is None
    handle = first.deliver(message, None)
    assert first.channel(message, None) == first.channel(message, handle) == "C0000000002"
    restarted = Slack(slack.token, lambda _: "#payments", base_url=slack.url)
    assert restarted.channel(message, None) == "#payments"
    assert restarted.find(message, None, SINCE) == handle


def test_where_channels_may_not_be_listed_a_name_cannot_be_looked_up(slack: Workspace) -> None:
    """The token lacks the scope: then telling twice is better than never, and the outbox is told so."""
    slack.refuse("missing_scope", method="conversations.list")
    with pytest.raises(Refused, match="channel_not_found"):
        Slack(slack.token, lambda _: "#payments", base_url=slack.url).find(Message(samples.incident()), None, SINCE)


def test_each_incident_goes_to_the_channel_chosen_for_it(slack: Workspace) -> None:
    """And is edited where it stands, even if another would be chosen by now."""
    chosen = {"INC-7F3A9C": "C0000000001", "INC-B00257": "C0000000002"}
    receiver = Slack(slack.token, lambda incident: chosen[incident.id], base_url=slack.url)
    handle = receiver.deliver(Message(samples.incident()), None)
    receiver.deliver(Message(samples.burst()), None)
    chosen["INC-7F3A9C"] = "C0000000002"
    receiver.deliver(Message(samples.recovered()), handle)
    assert [len(slack.messages(name)) for name in ("alerts", "payments")] == [1, 1]


def test_a_message_is_found_again_by_its_metadata_over_many_pages(receiver: Slack, slack: Workspace) -> None:
    """Among more messages than a page holds; another incident's is not taken for it."""
    handle = receiver.deliver(Message(samples.incident()), None)
    for _ in range(250):
        slack.workspace.call("chat.postMessage", {"channel": CHANNEL, "text": "chatter"})
    assert receiver.find(Message(samples.recovered()), None, SINCE) == handle
    assert receiver.find(Message(samples.burst()), None, SINCE) is None
    assert len(slack.received("conversations.history")) == 4


def test_only_what_may_hold_the_message_is_looked_through(receiver: Slack, slack: Workspace) -> None:
    """From ten minutes before the attempt, for clocks differ."""
    receiver.deliver(Message(samples.incident()), None)
    (message,) = slack.messages()
    at = int(float(message.ts) * 1000)
    assert receiver.find(Message(samples.incident()), None, at + 590_000) is not None
    assert receiver.find(Message(samples.incident()), None, at + 610_000) is None


def test_an_entry_is_found_in_its_thread(receiver: Slack) -> None:
    """The first is not taken for the second; without a message there is nowhere to look."""
    message = Message(samples.incident())
    handle = receiver.deliver(message, None)
    receiver.deliver(message._replace(number=1, lines=("one",)), handle)
    assert receiver.find(message._replace(number=1), handle, SINCE) == handle
    assert receiver.find(message._replace(number=2), handle, SINCE) is None
    assert receiver.find(message._replace(number=1), None, SINCE) is None


def test_a_deleted_message_is_gone(receiver: Slack, slack: Workspace) -> None:
    """For edits, replies and look-ups."""
    message = Message(samples.incident())
    handle = receiver.deliver(message, None)
    slack.delete_message(handle["ts"])
    entry = message._replace(number=1, lines=("one",))
    for told, known in ((message, handle), (entry, handle), (entry, None)):
        with pytest.raises(Gone):
            receiver.deliver(told, known)
    with pytest.raises(Gone):
        receiver.find(entry, handle, SINCE)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (lambda it: it.answer(500), Unanswered, "fault of its own: chat.postMessage: internal_error"),
        (lambda it: it.refuse("fatal_error"), Unanswered, "fault of its own: chat.postMessage: fatal_error"),
        (lambda it: it.hang(), Unanswered, "did not answer: TimeoutError: timed out"),
        (lambda it: it.close_connection(), Unanswered, "did not answer: RemoteDisconnected"),
        (lambda it: it.refuse("invalid_auth"), Refused, "chat.postMessage: invalid_auth: the token is not valid"),
        (lambda it: it.kick(), Refused, "not_in_channel: the app is not in the channel: invite it"),
        (lambda it: it.refuse("something_new"), Refused, "chat.postMessage: something_new$"),
    ],
)
def test_each_failure_says_what_it_means(
    receiver: Slack,
    slack: Workspace,
    fault: Callable[[Workspace], None],
    kind: type[NotDelivered],
    words: str,
) -> None:
    """Whether it may have arrived, and what an operator can do."""
    fault(slack)
    with pytest.raises(kind, match=words) as raised:
        receiver.deliver(Message(samples.incident()), None)
    assert slack.token not in str(raised.value)


@pytest.mark.parametrize(("retry_after", "wait"), [(7, 7_000), (None, 60_000)])
def test_a_rate_limit_names_the_wait(receiver: Slack, slack: Workspace, retry_after: int | None, wait: int) -> None:
    """Retry-After in seconds; a minute where there is none."""
    slack.answer(429, retry_after=retry_after)
    with pytest.raises(RateLimited) as raised:
        receiver.deliver(Message(samples.incident()), None)
    assert raised.value.retry_after == wait


PLOT = Message(samples.incident(), 2, evidence=1, plot=samples.PLOT)


def test_a_plot_goes_into_the_thread_as_a_file(receiver: Slack, slack: Workspace) -> None:
    """Under a name that says which incident's which evidence it is, by which it is found again."""
    handle = receiver.deliver(Message(samples.incident()), None)
    assert receiver.find(PLOT, handle, SINCE) is None
    assert receiver.deliver(PLOT, handle) == handle
    (upload,) = slack.uploads
    assert (upload.filename, upload.content) == ("INC-7F3A9C-evidence-1.png", samples.PLOT)
    assert [one.files for one in slack.threads[handle["ts"]]] == [[upload.id]]
    assert receiver.find(PLOT, handle, SINCE) == handle
    assert receiver.find(PLOT._replace(evidence=2), handle, SINCE) is None


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (lambda it: it.withhold("files:write"), Declined, "missing_scope: the token lacks a scope: files:write$"),
        (lambda it: it.refuse("file_uploads_disabled"), Declined, "getUploadURLExternal: file_uploads_disabled$"),
        (lambda it: it.refuse("invalid_auth"), Refused, "invalid_auth: the token is not valid"),
        (lambda it: it.kick(), Refused, "not_in_channel: the app is not in the channel"),
        (lambda it: it.refuse("fatal_error"), Unanswered, "getUploadURLExternal: fatal_error"),
        (lambda it: it.answer(500, method="upload"), Unanswered, "HTTPError: HTTP Error 500"),
        (lambda it: it.close_connection(method="upload"), Unanswered, "RemoteDisconnected"),
        (lambda it: it.hang(method="files.completeUploadExternal"), Unanswered, "timed out"),
        (lambda it: it.delete_message(it.messages()[0].ts), Gone, "completeUploadExternal: thread_not_found"),
        (lambda it: it.answer(429, retry_after=7), RateLimited, "429"),
        (lambda it: it.answer(429, retry_after=7, method="upload"), Unanswered, "Too Many Requests"),
    ],
)
def test_each_failure_of_an_upload_says_what_it_means(
    receiver: Slack, slack: Workspace, fault: Callable[[Workspace], None], kind: type[NotDelivered], words: str
) -> None:
    """What keeps only files out is not waited for; the rest is as with messages."""
    handle = receiver.deliver(Message(samples.incident()), None)
    fault(slack)
    with pytest.raises(kind, match=words) as raised:
        receiver.deliver(PLOT, handle)
    assert slack.token not in str(raised.value)


def test_nobody_listening_is_no_answer(slack: Workspace) -> None:
    """A refused connection."""
    slack.close()
    receiver = Slack("xoxb-secret", lambda _: CHANNEL, base_url=slack.url, timeout=1)
    with pytest.raises(Unanswered, match="ConnectionRefusedError"):
        receiver.deliver(Message(samples.incident()), None)


def test_neither_token_nor_text_is_logged(receiver: Slack, slack: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    """Not even with all loggers at DEBUG."""
    caplog.set_level(logging.DEBUG)
    handle = receiver.deliver(Message(samples.incident()), None)
    slack.close_connection()
    with pytest.raises(Unanswered):
        receiver.deliver(Message(samples.incident()), handle)
    assert slack.token not in caplog.text
    assert "flink-job" not in caplog.text


@pytest.mark.parametrize("incident", [samples.incident(), samples.burst(), samples.incident(title="x" * 9_000)])
def test_what_is_sent_is_within_slacks_limits(receiver: Slack, slack: Workspace, incident: Incident) -> None:
    """Posted and edited: the stand-in refuses all else."""
    handle: Handle = receiver.deliver(Message(incident), None)
    receiver.deliver(Message(incident), handle)
    receiver.deliver(Message(incident, 1, tuple("<&>" * 99 for _ in range(99))), handle)
    assert len(slack.requests) == 3


def test_the_longest_names_still_fit() -> None:
    """249 characters a topic, all of which must be escaped; eleven findings, many causes."""
    topic = "&" * 249
    found = tuple(samples.rewind(number, group="<" * 255, topic=topic) for number in range(11))
    shown = blocks(report(samples.incident(findings=found, causes=found, title=topic * 5)))
    assert blockkit.block_problems(shown) == []
    assert blockkit.characters(shown) < blockkit.BLOCK_CHARACTERS


@given(st.text(alphabet=st.sampled_from("a&<>;é😀\n")), st.integers(1, 60))
def test_clipped_text_is_escaped_and_never_longer_than_its_limit(text: str, limit: int) -> None:
    """Whatever is cut, no half escape is left."""
    shown = clipped(text, limit)
    assert len(shown) <= limit
    assert blockkit.text_problem(shown) is None
