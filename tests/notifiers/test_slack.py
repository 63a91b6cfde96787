"""Slack by the Web API, against the strict stand-in: posts, edits, threads, look-ups, and what each refusal means."""

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.findings import Incident
from agent.notifiers import Gone, Handle, Message, NotDelivered, RateLimited, Refused, Unanswered
from agent.notifiers.slack import Slack, blocks, clipped
from agent.report import report
from testbed import blockkit
from testbed import slack as stand_in
from tests import samples

CHANNEL = "C0000000001"
SINCE = 0


@pytest.fixture
def workspace() -> Iterator[stand_in.Slack]:
    """A workspace with two channels."""
    with stand_in.Slack("alerts", "other") as workspace:
        yield workspace


@pytest.fixture
def slack(workspace: stand_in.Slack) -> Slack:
    """The receiver for its first channel."""
    return Slack(workspace.token, lambda _: CHANNEL, base_url=workspace.url, timeout=1)


def test_an_incident_is_one_message_that_is_edited(slack: Slack, workspace: stand_in.Slack) -> None:
    """Posted once, then changed in place, with the id in its metadata all along."""
    handle = slack.deliver(Message(samples.incident()), None)
    assert slack.deliver(Message(samples.recovered()), handle) == handle
    (message,) = workspace.messages()
    assert handle == {"channel": CHANNEL, "ts": message.ts}
    assert message.words.startswith(":large_green_circle: *CRITICAL (RECOVERED)  flink-job went back 12,223 records")
    assert message.edits[0].text.startswith("CRITICAL  flink-job")
    assert message.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C"}}


def test_the_timeline_goes_into_its_thread(slack: Slack, workspace: stand_in.Slack) -> None:
    """Each entry a reply that can be told from the others."""
    handle = slack.deliver(Message(samples.incident()), None)
    slack.deliver(Message(samples.incident(), 1, ("broker 2005 lost it", "a & b <!channel>")), handle)
    (reply,) = workspace.threads[handle["ts"]]
    assert reply.text == "broker 2005 lost it\na &amp; b &lt;!channel&gt;"
    assert reply.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C", "entry": 1}}


def test_a_channel_may_be_given_by_name(workspace: stand_in.Slack) -> None:
    """Its id is known from the first answer on."""
    slack = Slack(workspace.token, lambda _: "#other", base_url=workspace.url)
    message = Message(samples.incident())
    assert slack.channel(message, None) == "#other"
    with pytest.raises(Refused, match="give the channel's id"):
        slack.find(message, None, SINCE)
    handle = slack.deliver(message, None)
    assert slack.channel(message, None) == slack.channel(message, handle) == "C0000000002"
    assert slack.find(message, None, SINCE) == handle


def test_each_incident_goes_to_the_channel_chosen_for_it(workspace: stand_in.Slack) -> None:
    """And is edited where it stands, even if another would be chosen by now."""
    chosen = {"INC-7F3A9C": "C0000000001", "INC-B00257": "C0000000002"}
    slack = Slack(workspace.token, lambda incident: chosen[incident.id], base_url=workspace.url)
    handle = slack.deliver(Message(samples.incident()), None)
    slack.deliver(Message(samples.burst()), None)
    chosen["INC-7F3A9C"] = "C0000000002"
    slack.deliver(Message(samples.recovered()), handle)
    assert [len(workspace.messages(name)) for name in ("alerts", "other")] == [1, 1]


def test_a_message_is_found_again_by_its_metadata_over_many_pages(slack: Slack, workspace: stand_in.Slack) -> None:
    """Among more messages than a page holds; another incident's is not taken for it."""
    handle = slack.deliver(Message(samples.incident()), None)
    for _ in range(250):
        workspace.workspace.call("chat.postMessage", {"channel": CHANNEL, "text": "chatter"})
    assert slack.find(Message(samples.recovered()), None, SINCE) == handle
    assert slack.find(Message(samples.burst()), None, SINCE) is None
    assert len(workspace.received("conversations.history")) == 4


def test_only_what_may_hold_the_message_is_looked_through(slack: Slack, workspace: stand_in.Slack) -> None:
    """From ten minutes before the attempt, for clocks differ."""
    slack.deliver(Message(samples.incident()), None)
    (message,) = workspace.messages()
    at = int(float(message.ts) * 1000)
    assert slack.find(Message(samples.incident()), None, at + 590_000) is not None
    assert slack.find(Message(samples.incident()), None, at + 610_000) is None


def test_an_entry_is_found_in_its_thread(slack: Slack) -> None:
    """The first is not taken for the second; without a message there is nowhere to look."""
    message = Message(samples.incident())
    handle = slack.deliver(message, None)
    slack.deliver(message._replace(number=1, lines=("one",)), handle)
    assert slack.find(message._replace(number=1), handle, SINCE) == handle
    assert slack.find(message._replace(number=2), handle, SINCE) is None
    assert slack.find(message._replace(number=1), None, SINCE) is None


def test_a_deleted_message_is_gone(slack: Slack, workspace: stand_in.Slack) -> None:
    """For edits, replies and look-ups."""
    message = Message(samples.incident())
    handle = slack.deliver(message, None)
    workspace.delete_message(handle["ts"])
    entry = message._replace(number=1, lines=("one",))
    for told, known in ((message, handle), (entry, handle), (entry, None)):
        with pytest.raises(Gone):
            slack.deliver(told, known)
    with pytest.raises(Gone):
        slack.find(entry, handle, SINCE)


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
    slack: Slack,
    workspace: stand_in.Slack,
    fault: Callable[[stand_in.Slack], None],
    kind: type[NotDelivered],
    words: str,
) -> None:
    """Whether it may have arrived, and what an operator can do."""
    fault(workspace)
    with pytest.raises(kind, match=words) as raised:
        slack.deliver(Message(samples.incident()), None)
    assert workspace.token not in str(raised.value)


@pytest.mark.parametrize(("retry_after", "wait"), [(7, 7_000), (None, 60_000)])
def test_a_rate_limit_names_the_wait(
    slack: Slack, workspace: stand_in.Slack, retry_after: int | None, wait: int
) -> None:
    """Retry-After in seconds; a minute where there is none."""
    workspace.answer(429, retry_after=retry_after)
    with pytest.raises(RateLimited) as raised:
        slack.deliver(Message(samples.incident()), None)
    assert raised.value.retry_after == wait


def test_nobody_listening_is_no_answer(workspace: stand_in.Slack) -> None:
    """A refused connection."""
    workspace.close()
    slack = Slack("xoxb-secret", lambda _: CHANNEL, base_url=workspace.url, timeout=1)
    with pytest.raises(Unanswered, match="ConnectionRefusedError"):
        slack.deliver(Message(samples.incident()), None)


def test_neither_token_nor_text_is_logged(
    slack: Slack, workspace: stand_in.Slack, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even with all loggers at DEBUG."""
    caplog.set_level(logging.DEBUG)
    handle = slack.deliver(Message(samples.incident()), None)
    workspace.close_connection()
    with pytest.raises(Unanswered):
        slack.deliver(Message(samples.incident()), handle)
    assert workspace.token not in caplog.text
    assert "flink-job" not in caplog.text


@pytest.mark.parametrize("incident", [samples.incident(), samples.burst(), samples.incident(title="x" * 9_000)])
def test_what_is_sent_is_within_slacks_limits(slack: Slack, workspace: stand_in.Slack, incident: Incident) -> None:
    """Posted and edited: the stand-in refuses all else."""
    handle: Handle = slack.deliver(Message(incident), None)
    slack.deliver(Message(incident), handle)
    slack.deliver(Message(incident, 1, tuple("<&>" * 99 for _ in range(99))), handle)
    assert len(workspace.requests) == 3


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
