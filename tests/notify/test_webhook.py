"""An incoming webhook, against the stand-in: a message at each turn of an incident, none at each edit."""

import logging

import pytest

from agent.model.findings import Severity, Status
from agent.notify.base import Message, RateLimited, Refused, Unanswered
from agent.notify.webhook import Webhook
from testbed.slack import Slack as Workspace
from tests import samples


@pytest.fixture
def webhook(slack: Workspace) -> Webhook:
    """The receiver behind its webhook."""
    return Webhook(slack.webhook_url(), timeout=1)


def test_a_message_is_sent_at_each_turn_and_at_no_other_change(webhook: Webhook, slack: Workspace) -> None:
    """Opened, grown worse, cause found, recovered, open again; neither an edit, nor closed, nor the thread."""
    story = [
        samples.incident(severity=Severity.WARNING, causes=()),
        samples.incident(severity=Severity.WARNING, causes=(), title="another title"),
        samples.incident(causes=()),
        samples.incident(),
        samples.recovered(),
        samples.incident(status=Status.CLOSED),
        samples.incident(),
    ]
    handle = None
    sent = []
    for incident in story:
        handle = webhook.deliver(Message(incident), handle)
        handle = webhook.deliver(Message(incident, 1, ("a line",)), handle)
        sent.append(len(slack.messages()))
    assert sent == [1, 1, 2, 3, 4, 4, 5]


def test_what_a_check_found_is_a_message_without_its_plot(webhook: Webhook, slack: Workspace) -> None:
    """Its incident stands before it, for there are no threads."""
    handle = webhook.deliver(Message(samples.incident()), None)
    found = Message(samples.incident(), 2, ("Spark, offset_history:", "a & b fell once"), evidence=1)
    assert webhook.deliver(found, handle) == handle
    assert webhook.deliver(found._replace(lines=(), plot=samples.PLOT), handle) == handle
    assert [one.text for one in slack.messages()][1:] == ["INC-7F3A9C  Spark, offset_history:\na &amp; b fell once"]


def test_a_merged_incident_is_told_once(webhook: Webhook, slack: Workspace) -> None:
    """So that nobody goes on with the wrong one."""
    handle = webhook.deliver(Message(samples.incident()), None)
    merged = Message(samples.incident(merged_into="INC-B00257"))
    webhook.deliver(merged, webhook.deliver(merged, handle))
    assert [one.words.count("INC-B00257") for one in slack.messages()] == [0, 1]


def test_each_failure_says_what_it_means(webhook: Webhook, slack: Workspace) -> None:
    """As with the Web API."""
    message = Message(samples.incident())
    slack.answer(429, retry_after=3)
    with pytest.raises(RateLimited) as limited:
        webhook.deliver(message, None)
    assert limited.value.retry_after == 3_000
    slack.answer(503)
    with pytest.raises(Unanswered, match="503"):
        webhook.deliver(message, None)
    slack.close_connection()
    with pytest.raises(Unanswered, match="RemoteDisconnected"):
        webhook.deliver(message, None)
    slack.kick()
    with pytest.raises(Refused, match="400 not_in_channel"):
        webhook.deliver(message, None)


def test_the_address_is_never_logged(webhook: Webhook, slack: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    """It is all that one needs to post."""
    caplog.set_level(logging.DEBUG)
    webhook.deliver(Message(samples.incident()), None)
    slack.close_connection()
    with pytest.raises(Unanswered) as raised:
        webhook.deliver(Message(samples.incident()), None)
    for text in (caplog.text, str(raised.value)):
        assert "secret" not in text


def test_nothing_can_be_looked_up(webhook: Webhook) -> None:
    """A lost answer is a second message."""
    assert webhook.find(Message(samples.incident()), None, 0) is None
