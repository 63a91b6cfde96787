"""The Slack Web API receiver against the strict stand-in: posts, edits, threads, searches and errors."""

import logging
from collections.abc import Callable

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.notify.base import Declined, Gone, Handle, NotDelivered, RateLimited, Refused, Unanswered
from agent.notify.slack import Slack
from agent.notify.slack_blocks import FALLBACK_LIMIT, clipped, content_of
from agent.render.report import report
from agent.render.thread import ThreadLog, thread_entry
from testbed import blockkit
from testbed.slack import Slack as Workspace
from testbed.slack_http import Response
from tests import samples

CHANNEL = "C0000000001"
SINCE = 0


@pytest.fixture
def receiver(slack: Workspace) -> Slack:
    return Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=1)


def test_an_incident_is_one_message_that_is_edited(receiver: Slack, slack: Workspace) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    assert receiver.deliver(samples.message(samples.recovered()), handle) == handle
    (message,) = slack.messages()
    assert handle == {"channel": CHANNEL, "ts": message.ts}
    assert message.words.startswith("🟢 CRITICAL (RECOVERED) · flink-job rewound 12,223 records")
    assert message.edits[0].text.startswith("CRITICAL · flink-job")
    assert message.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C"}}


def test_log_entries_go_into_the_thread_escaped(receiver: Slack, slack: Workspace) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    receiver.deliver(samples.message(samples.incident(), 1, ("broker 2005 lost it", "a & b <!channel>")), handle)
    (reply,) = slack.threads[handle["ts"]]
    assert reply.text == "broker 2005 lost it\na &amp; b &lt;!channel&gt;"
    assert reply.metadata == {"event_type": "backflow_incident", "event_payload": {"id": "INC-7F3A9C", "entry": 1}}


def test_what_addresses_in_names_lead_to_is_not_shown(receiver: Slack, slack: Workspace) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    receiver.deliver(samples.message(samples.incident(), 1, ("group https://example.org/a.png",)), handle)
    shown = [(sent.arguments["unfurl_links"], sent.arguments["unfurl_media"]) for sent in slack.requests]
    assert shown == [(False, False)] * 2


def test_an_escalation_to_critical_is_broadcast_to_the_channel(receiver: Slack, slack: Workspace) -> None:
    critical = samples.incident()
    warned = replace(critical, severity=Severity.WARNING)
    message = receiver.deliver(samples.message(warned), None)
    receiver.deliver(samples.message(warned, 1, ("a line",)), message)
    lines, _ = thread_entry(ThreadLog(incident=warned), critical)
    receiver.deliver(samples.message(critical, 2, lines), message)
    first, second = slack.threads[message["ts"]]
    assert second.text == "Severity raised to critical, was warning."
    assert (first.broadcast, second.broadcast) == (False, True)
    assert receiver.find(samples.message(warned), None, SINCE) == message


def test_a_channel_may_be_given_by_name(slack: Workspace) -> None:
    message = samples.message(samples.incident())
    first = Slack(slack.token, lambda _: "#payments", base_url=slack.url)
    assert first.find(message, None, SINCE) is None
    handle = first.deliver(message, None)
    assert first.channel(message, None) == first.channel(message, handle) == "C0000000002"
    restarted = Slack(slack.token, lambda _: "#payments", base_url=slack.url)
    assert restarted.channel(message, None) == "#payments"
    assert restarted.find(message, None, SINCE) == handle


def test_a_public_name_needs_no_scope_for_private_channels(slack: Workspace) -> None:
    message = samples.message(samples.incident())
    handle = Slack(slack.token, lambda _: "#alerts", base_url=slack.url).deliver(message, None)
    restarted = Slack(slack.token, lambda _: "#alerts", base_url=slack.url)
    with structlog.testing.capture_logs() as logs:
        assert restarted.find(message, None, SINCE) == handle
    assert logs == []


def test_without_permission_to_list_channels_a_name_is_unknown(slack: Workspace) -> None:
    slack.refuse("missing_scope", method="conversations.list")
    with pytest.raises(Refused, match="channel_not_found"):
        Slack(slack.token, lambda _: "#payments", base_url=slack.url).find(
            samples.message(samples.incident()), None, SINCE
        )


def identify(slack: Workspace, *channels: str) -> str:
    return Slack(slack.token, lambda _: "", base_url=slack.url, timeout=1, channels=channels).identify()


def test_channels_are_looked_at_by_id_and_by_name(slack: Workspace) -> None:
    assert identify(slack, CHANNEL, "#payments", "U0ANNA") == (
        "posts as U0BACKFLOW in stand-in to C0000000001, #payments and U0ANNA"
    )
    assert slack.messages() == []


@pytest.mark.parametrize("channel", [CHANNEL, "#alerts", "alerts"])
def test_a_channel_without_the_bot_or_archived_is_refused(slack: Workspace, channel: str) -> None:
    slack.archive("alerts")
    with pytest.raises(Refused, match=rf"^channel {channel}: is_archived: the channel is archived"):
        identify(slack, "#payments", channel)
    slack.workspace.archived.clear()
    slack.kick("alerts")
    with pytest.raises(Refused, match=rf"^channel {channel}: not_in_channel: the app is not in the channel: invite it"):
        identify(slack, "#payments", channel)


@pytest.mark.parametrize("channel", ["C0999999999", "#typo"])
def test_a_channel_that_does_not_exist_is_refused(slack: Workspace, channel: str) -> None:
    with pytest.raises(Refused, match=f"^channel {channel}: .*channel_not_found: no such channel"):
        identify(slack, channel)


def test_a_token_that_may_not_post_is_refused(slack: Workspace) -> None:
    slack.withhold("chat:write")
    with pytest.raises(Refused, match=r"^the token lacks the scope chat:write: add it to the app"):
        identify(slack, CHANNEL)


def test_scopes_that_only_some_messages_need_are_named(slack: Workspace) -> None:
    slack.withhold("files:write")
    slack.withhold("channels:history")
    assert identify(slack, CHANNEL) == (
        "posts as U0BACKFLOW in stand-in to C0000000001; without the scope files:write it posts no plots; "
        "without the scope channels:history or groups:history a message whose answer is lost may be sent twice"
    )


def test_a_channel_that_may_not_be_looked_at_is_no_problem(slack: Workspace) -> None:
    slack.withhold("channels:read")
    for channel in (CHANNEL, "#alerts"):
        found = identify(slack, channel)
        assert found.startswith(f"posts as U0BACKFLOW in stand-in to {channel} (not looked at: ")
        assert "missing_scope: the token lacks a scope: channels:read" in found


def test_a_look_at_a_channel_that_fails_is_no_problem(slack: Workspace) -> None:
    slack.answer(429, retry_after=30, method="conversations.info")
    assert "(not looked at: Slack limits the rate (429))" in identify(slack, CHANNEL)


def test_an_incident_stays_in_the_channel_first_chosen_for_it(slack: Workspace) -> None:
    channels = {"INC-7F3A9C": "C0000000001", "INC-B00257": "C0000000002"}
    receiver = Slack(slack.token, lambda incident: channels[incident.id], base_url=slack.url)
    handle = receiver.deliver(samples.message(samples.incident()), None)
    receiver.deliver(samples.message(samples.burst()), None)
    channels["INC-7F3A9C"] = "C0000000002"
    receiver.deliver(samples.message(samples.recovered()), handle)
    assert [len(slack.messages(name)) for name in ("alerts", "payments")] == [1, 1]


def test_a_message_is_found_by_its_metadata_across_pages(receiver: Slack, slack: Workspace) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    for _ in range(250):
        slack.workspace.call("chat.postMessage", {"channel": CHANNEL, "text": "chatter"})
    assert receiver.find(samples.message(samples.recovered()), None, SINCE) == handle
    assert receiver.find(samples.message(samples.burst()), None, SINCE) is None
    assert len(slack.received("conversations.history")) == 4


def test_history_is_searched_from_ten_minutes_before_the_attempt(receiver: Slack, slack: Workspace) -> None:
    receiver.deliver(samples.message(samples.incident()), None)
    (message,) = slack.messages()
    at = int(float(message.ts) * 1000)
    assert receiver.find(samples.message(samples.incident()), None, at + 590_000) is not None
    assert receiver.find(samples.message(samples.incident()), None, at + 610_000) is None


def test_an_entry_is_found_in_its_thread(receiver: Slack) -> None:
    message = samples.message(samples.incident())
    handle = receiver.deliver(message, None)
    receiver.deliver(message._replace(number=1, lines=("a line",)), handle)
    assert receiver.find(message._replace(number=1), handle, SINCE) == handle
    assert receiver.find(message._replace(number=2), handle, SINCE) is None
    assert receiver.find(message._replace(number=1), None, SINCE) is None


def test_a_deleted_message_raises_gone(receiver: Slack, slack: Workspace) -> None:
    message = samples.message(samples.incident())
    handle = receiver.deliver(message, None)
    slack.delete_message(handle["ts"])
    entry = message._replace(number=1, lines=("a line",))
    for notification, known in ((message, handle), (entry, handle), (entry, None)):
        with pytest.raises(Gone):
            receiver.deliver(notification, known)
    with pytest.raises(Gone):
        receiver.find(entry, handle, SINCE)


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (lambda slack: slack.answer(500), Unanswered, "internal error: chat.postMessage: internal_error"),
        (lambda slack: slack.refuse("fatal_error"), Unanswered, "internal error: chat.postMessage: fatal_error"),
        (lambda slack: slack.respond(Response(502, "a\033[31m\nb")), Unanswered, r"internal error: .*\\x1b\[31mb"),
        (lambda slack: slack.hang(), Unanswered, "did not answer: TimeoutError: timed out"),
        (lambda slack: slack.close_connection(), Unanswered, "did not answer: RemoteDisconnected"),
        (lambda slack: slack.refuse("invalid_auth"), Refused, "chat.postMessage: invalid_auth: the token is not valid"),
        (lambda slack: slack.kick(), Refused, "not_in_channel: the app is not in the channel: invite it"),
        (lambda slack: slack.refuse("something_new"), Refused, "chat.postMessage: something_new$"),
    ],
)
def test_failures_are_classified(
    receiver: Slack,
    slack: Workspace,
    fault: Callable[[Workspace], None],
    kind: type[NotDelivered],
    reason: str,
) -> None:
    fault(slack)
    with pytest.raises(kind, match=reason) as raised:
        receiver.deliver(samples.message(samples.incident()), None)
    assert slack.token not in str(raised.value)


@pytest.mark.parametrize("code", ["invalid_blocks", "msg_blocks_too_long"])
def test_what_slack_does_not_lay_out_arrives_as_text(receiver: Slack, slack: Workspace, code: str) -> None:
    message = samples.message(samples.incident())
    slack.refuse(code, method="chat.postMessage")
    handle = receiver.deliver(message, None)
    (plain,) = slack.messages()
    assert plain.text.splitlines() == message.report.lines()
    assert (plain.blocks, plain.attachments) == ([], [])
    assert receiver.find(message, None, SINCE) == handle
    slack.refuse(code, method="chat.update")
    recovered = samples.message(samples.recovered())
    receiver.deliver(recovered, handle)
    (plain,) = slack.messages()
    assert plain.text.splitlines() == recovered.report.lines()


def test_text_that_slack_refuses_too_is_not_delivered(receiver: Slack, slack: Workspace) -> None:
    slack.refuse("invalid_blocks", times=2)
    with pytest.raises(Refused, match=r"chat\.postMessage: invalid_blocks"):
        receiver.deliver(samples.message(samples.incident()), None)
    assert slack.messages() == []


@pytest.mark.parametrize(("retry_after", "wait"), [(7, 7_000), (None, 60_000)])
def test_a_rate_limit_carries_its_retry_after(
    receiver: Slack, slack: Workspace, retry_after: int | None, wait: int
) -> None:
    slack.answer(429, retry_after=retry_after)
    with pytest.raises(RateLimited) as raised:
        receiver.deliver(samples.message(samples.incident()), None)
    assert raised.value.retry_after == wait


PLOT = samples.message(samples.incident(), 2, check_report=1, plot=samples.PLOT)


def test_a_plot_is_uploaded_into_the_thread(receiver: Slack, slack: Workspace) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    assert receiver.find(PLOT, handle, SINCE) is None
    assert receiver.deliver(PLOT, handle) == handle
    (upload,) = slack.uploads
    assert (upload.filename, upload.content) == ("INC-7F3A9C-plot-1.png", samples.PLOT)
    assert [reply.files for reply in slack.threads[handle["ts"]]] == [[upload.id]]
    assert receiver.find(PLOT, handle, SINCE) == handle
    assert receiver.find(PLOT._replace(check_report=2), handle, SINCE) is None


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (lambda slack: slack.withhold("files:write"), Declined, "missing_scope: the token lacks a scope: files:write$"),
        (lambda slack: slack.refuse("file_uploads_disabled"), Declined, "getUploadURLExternal: file_uploads_disabled$"),
        (lambda slack: slack.refuse("invalid_auth"), Refused, "invalid_auth: the token is not valid"),
        (lambda slack: slack.kick(), Refused, "not_in_channel: the app is not in the channel"),
        (lambda slack: slack.refuse("fatal_error"), Unanswered, "getUploadURLExternal: fatal_error"),
        (lambda slack: slack.answer(500, method="upload"), Unanswered, "HTTPError: HTTP Error 500"),
        (lambda slack: slack.close_connection(method="upload"), Unanswered, "RemoteDisconnected"),
        (lambda slack: slack.hang(method="files.completeUploadExternal"), Unanswered, "timed out"),
        (lambda slack: slack.delete_message(slack.messages()[0].ts), Gone, "completeUploadExternal: thread_not_found"),
        (lambda slack: slack.answer(429, retry_after=7), RateLimited, "429"),
        (lambda slack: slack.answer(429, retry_after=7, method="upload"), Unanswered, "Too Many Requests"),
    ],
)
def test_upload_failures_are_classified(
    receiver: Slack, slack: Workspace, fault: Callable[[Workspace], None], kind: type[NotDelivered], reason: str
) -> None:
    handle = receiver.deliver(samples.message(samples.incident()), None)
    fault(slack)
    with pytest.raises(kind, match=reason) as raised:
        receiver.deliver(PLOT, handle)
    assert slack.token not in str(raised.value)


def test_a_refused_connection_is_unanswered(slack: Workspace) -> None:
    slack.close()
    receiver = Slack("xoxb-secret", lambda _: CHANNEL, base_url=slack.url, timeout=1)
    with pytest.raises(Unanswered, match="ConnectionRefusedError"):
        receiver.deliver(samples.message(samples.incident()), None)


@pytest.mark.parametrize("body", ["<html>Please log in to the network</html>", '{"ok": true, "chan', ""])
def test_an_answer_that_is_not_slacks_leaves_delivery_in_doubt(receiver: Slack, slack: Workspace, body: str) -> None:
    slack.respond(Response(200, body))
    with pytest.raises(Unanswered, match="the answer is not Slack's"):
        receiver.deliver(samples.message(samples.incident()), None)


@pytest.mark.parametrize(
    "response",
    [
        Response(200, '["ok"]'),
        Response(200, {"ok": True}),
        Response(200, {"ok": True, "channel": CHANNEL, "ts": 7}),
        Response(200, '{"ok": true}', (("Content-Encoding", "gzip"), ("Content-Type", "application/gzip"))),
        Response(200, "{", (("Content-Type", "application/json; charset=utf-7f"),)),
        Response(500, {"ok": False, "error": {"a": 1}}),
        Response(200, "[" * 5_000 + "]" * 5_000),
    ],
)
def test_an_answer_of_another_form_leaves_delivery_in_doubt(
    receiver: Slack, slack: Workspace, response: Response
) -> None:
    slack.respond(response)
    with pytest.raises(Unanswered):
        receiver.deliver(samples.message(samples.incident()), None)


@pytest.mark.parametrize("hints", ["no object", {"messages": 7}, {"messages": [None, ["x"]]}, None])
def test_a_refusal_with_hints_of_another_form_is_a_refusal(receiver: Slack, slack: Workspace, hints: object) -> None:
    slack.respond(
        Response(200, {"ok": False, "error": "invalid_auth", "response_metadata": hints, "needed": "\x1b[1m"})
    )
    with pytest.raises(Refused, match=r"invalid_auth: .*: \\x1b\[1m"):
        receiver.deliver(samples.message(samples.incident()), None)


@pytest.mark.parametrize(
    "found",
    [7, {}, None, ["x", 7], [{"metadata": "x", "files": "x"}], [{"files": [None, "x"]}]],
)
@pytest.mark.parametrize("plot", [None, b"png"])
def test_a_history_of_another_form_is_in_doubt_or_without_it(
    receiver: Slack, slack: Workspace, found: object, plot: bytes | None
) -> None:
    slack.respond(Response(200, {"ok": True, "messages": found}))
    message = samples.message(samples.incident())._replace(plot=plot)
    if isinstance(found, list):
        assert receiver.find(message, None, SINCE) is None
    else:
        with pytest.raises(Unanswered, match="lacks messages"):
            receiver.find(message, None, SINCE)


def test_a_history_without_end_is_not_read_for_ever(receiver: Slack, slack: Workspace) -> None:
    endless = {"ok": True, "messages": [], "response_metadata": {"next_cursor": "bmV4dA=="}}
    slack.respond(Response(200, endless), times=None)
    assert receiver.find(samples.message(samples.incident()), None, SINCE) is None
    assert 10 <= len(slack.received("conversations.history")) <= 1_000


def test_a_redirect_does_not_carry_the_token_elsewhere(receiver: Slack, slack: Workspace) -> None:
    with Workspace() as elsewhere:
        slack.respond(Response(302, "", (("Location", f"{elsewhere.url}chat.postMessage"),)))
        with pytest.raises(Unanswered, match="status 302"):
            receiver.deliver(samples.message(samples.incident()), None)
        assert not elsewhere.requests


def test_neither_token_nor_text_is_logged(receiver: Slack, slack: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handle = receiver.deliver(samples.message(samples.incident()), None)
    slack.close_connection()
    with pytest.raises(Unanswered):
        receiver.deliver(samples.message(samples.incident()), handle)
    assert slack.token not in caplog.text
    assert "flink-job" not in caplog.text


@pytest.mark.parametrize("incident", [samples.incident(), samples.burst(), samples.incident(title="x" * 9_000)])
def test_messages_are_within_slacks_limits(receiver: Slack, slack: Workspace, incident: Incident) -> None:
    handle: Handle = receiver.deliver(samples.message(incident), None)
    receiver.deliver(samples.message(incident), handle)
    receiver.deliver(samples.message(incident, 1, tuple("<&>" * 99 for _ in range(99))), handle)
    assert len(slack.requests) == 3


def test_the_longest_names_fit() -> None:
    topic = "&" * 249
    rewinds = tuple(samples.rewind(number, group="<" * 255, topic=topic) for number in range(11))
    content = content_of(report(samples.incident(findings=rewinds, causes=rewinds, title=topic * 5)))
    assert blockkit.block_problems(content["blocks"]) == []
    assert blockkit.attachment_problems(content["attachments"]) == []
    assert blockkit.characters([*content["blocks"], *content["attachments"]]) < blockkit.BLOCK_CHARACTERS


def test_a_message_has_headline_timeline_advice_and_context() -> None:
    content = content_of(report(samples.incident()))
    (header,) = content["blocks"]
    (attachment,) = content["attachments"]
    assert header["text"]["text"] == "🔴 CRITICAL · flink-job rewound 12,223 records on topic-124[8] · INC-7F3A9C"
    texts = [block["text"]["text"].partition("\n")[0] for block in attachment["blocks"] if block["type"] == "section"]
    assert texts[1:] == ["*Timeline (UTC)*", "*Ruled out*", "*Do now*", "*Prevent*"]
    assert attachment["blocks"][-1]["type"] == "context"
    assert attachment["color"] == "#d92d20"


def test_a_title_too_long_for_the_header_is_in_the_attachment() -> None:
    title = "a very long title " * 20
    content = content_of(report(samples.incident(title=title)))
    header = content["blocks"][0]["text"]["text"]
    assert len(header) <= 150
    assert header.endswith("… · INC-7F3A9C")
    assert title.strip() in blockkit.words(content["attachments"])


def test_the_fallback_text_fits_a_lock_screen() -> None:
    assert len(content_of(report(samples.incident(title="x" * 999)))["text"]) <= FALLBACK_LIMIT


@pytest.mark.parametrize(
    ("incident", "colour", "emoji"),
    [
        (samples.incident(severity=Severity.WARNING), "#f79009", "🟠"),
        (samples.recovered(), "#12b76a", "🟢"),
        (samples.incident(merged_into="INC-B00257"), "#98a2b3", "⚪"),
        (samples.incident(status=Status.CLOSED, findings=(), causes=()), "#98a2b3", "⚪"),
    ],
)
def test_colour_and_emoji_show_severity_and_status(incident: Incident, colour: str, emoji: str) -> None:
    content = content_of(report(incident))
    assert content["attachments"][0]["color"] == colour
    assert content["blocks"][0]["text"]["text"].startswith(emoji)


@given(st.text(alphabet=st.sampled_from("a&<>;é😀\n")), st.integers(1, 60))
def test_clipped_text_is_escaped_and_within_its_limit(text: str, limit: int) -> None:
    shown = clipped(text, limit)
    assert len(shown) <= limit
    assert blockkit.text_problem(shown) is None


def test_a_first_message_is_found_in_the_channel_of_another_route(slack: Workspace) -> None:
    """The incident became critical while the answer was lost."""

    def route(incident: Incident) -> str:
        return "#payments" if incident.severity is Severity.CRITICAL else "#alerts"

    receiver = Slack(slack.token, route, own_channels=["#alerts", "#payments", "#nowhere"], base_url=slack.url)
    handle = receiver.deliver(samples.message(samples.incident(severity=Severity.WARNING)), None)
    raised = samples.message(samples.incident())
    assert receiver.find(raised, None, SINCE) == handle
    assert receiver.find(samples.message(samples.burst()), None, SINCE) is None
