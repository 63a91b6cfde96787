"""An incoming webhook against the Slack stand-in: a message when an incident changes status, none for an edit."""

import logging

import pytest

from agent.model.findings import Severity, Status
from agent.notify.base import RateLimited, Refused, Unanswered
from agent.notify.slack_webhook import Webhook
from agent.render.thread import ThreadLog, thread_entry
from testbed.slack import Slack as Workspace
from testbed.slack_http import Response
from tests import samples


@pytest.fixture
def webhook(slack: Workspace) -> Webhook:
    return Webhook(slack.webhook_url(), timeout=1)


def test_only_status_severity_and_cause_changes_are_posted(webhook: Webhook, slack: Workspace) -> None:
    versions = [
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
    for incident in versions:
        handle = webhook.deliver(samples.message(incident), handle)
        handle = webhook.deliver(samples.message(incident, 1, ("a line",)), handle)
        sent.append(len(slack.messages()))
    assert sent == [1, 1, 2, 3, 4, 4, 5]


def test_what_addresses_in_names_lead_to_is_not_shown(webhook: Webhook, slack: Workspace) -> None:
    webhook.deliver(samples.message(samples.incident(title="group https://example.org/a.png")), None)
    (sent,) = slack.requests
    assert (sent.arguments["unfurl_links"], sent.arguments["unfurl_media"]) == (False, False)


def test_a_check_report_is_posted_without_its_plot(webhook: Webhook, slack: Workspace) -> None:
    handle = webhook.deliver(samples.message(samples.incident()), None)
    found = samples.message(samples.incident(), 2, ("Spark, offset_history:", "a & b fell once"), check_report=1)
    assert webhook.deliver(found, handle) == handle
    assert webhook.deliver(found._replace(lines=(), plot=samples.PLOT), handle) == handle
    assert [message.text for message in slack.messages()][1:] == [
        "INC-7F3A9C  Spark, offset_history:\na &amp; b fell once"
    ]


def test_a_merged_incident_is_posted_once(webhook: Webhook, slack: Workspace) -> None:
    handle = webhook.deliver(samples.message(samples.incident()), None)
    merged = samples.message(samples.incident(merged_into="INC-B00257"))
    webhook.deliver(merged, webhook.deliver(merged, handle))
    assert [message.words.count("INC-B00257") for message in slack.messages()] == [0, 1]


def test_what_slack_does_not_lay_out_arrives_as_text(webhook: Webhook, slack: Workspace) -> None:
    message = samples.message(samples.incident())
    slack.respond(Response(400, "invalid_blocks"))
    webhook.deliver(message, None)
    (plain,) = slack.messages()
    assert plain.text.splitlines() == message.report.lines()


def test_failures_are_classified(webhook: Webhook, slack: Workspace) -> None:
    message = samples.message(samples.incident())
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


@pytest.mark.parametrize(
    "response",
    [
        Response(200, "<html>Please log in to the network</html>"),
        Response(200, ""),
        Response(200, {"ok": False, "error": "no_service"}),
        Response(200, "[" * 5_000 + "]" * 5_000),
        Response(302, "", (("Location", "http://127.0.0.1:9/elsewhere"),)),
    ],
)
def test_only_a_confirmation_counts_as_delivered(webhook: Webhook, slack: Workspace, response: Response) -> None:
    slack.respond(response)
    with pytest.raises(Refused):
        webhook.deliver(samples.message(samples.incident()), None)


def test_the_webhook_url_is_never_logged(webhook: Webhook, slack: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    webhook.deliver(samples.message(samples.incident()), None)
    slack.close_connection()
    with pytest.raises(Unanswered) as raised:
        webhook.deliver(samples.message(samples.incident()), None)
    for text in (caplog.text, str(raised.value)):
        assert "secret" not in text


def test_a_webhook_cannot_find_messages(webhook: Webhook) -> None:
    assert webhook.find(samples.message(samples.incident()), None, 0) is None


def test_an_incident_that_becomes_critical_is_posted_once(webhook: Webhook, slack: Workspace) -> None:
    warned = samples.incident(severity=Severity.WARNING)
    handle = webhook.deliver(samples.message(warned), None)
    handle = webhook.deliver(samples.message(samples.incident()), handle)
    lines, _ = thread_entry(ThreadLog(incident=warned), samples.incident())
    assert lines == ("Severity raised to critical, was warning.",)
    webhook.deliver(samples.message(samples.incident(), 1, lines), handle)
    assert len(slack.messages()) == 2


def test_what_may_have_been_posted_is_followed_by_how_it_is_now(webhook: Webhook, slack: Workspace) -> None:
    handle = webhook.deliver(samples.message(), None)
    webhook.deliver(samples.message(samples.recovered()), handle)  # its answer is lost
    webhook.deliver(samples.message(samples.incident(), in_doubt=True), handle)
    assert ["(RECOVERED)" in message.words for message in slack.messages()] == [False, True, False]
