"""The Slack stand-in, called by the real slack-sdk."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.web.slack_response import SlackResponse
from slack_sdk.webhook import WebhookClient

from testbed.slack import Slack

METADATA = {"event_type": "incident", "event_payload": {"id": "INC-7F3A9C", "revision": 2}}


def section(text: str) -> dict[str, Any]:
    """Return a section of mrkdwn."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def button(**more: Any) -> dict[str, Any]:
    """Return a valid button."""
    return {"type": "button", "text": {"type": "plain_text", "text": "Silence"}, **more}


@pytest.fixture
def client(slack: Slack) -> WebClient:
    """The real client, without retries."""
    return WebClient(slack.token, base_url=slack.url, timeout=5, retry_handlers=[])


@pytest.fixture
def channel(slack: Slack) -> str:
    """The id of the channel `alerts`."""
    return slack.workspace.channel("alerts")


def error_of(refused: pytest.ExceptionInfo[SlackApiError]) -> str:
    """Return the error code of Slack's answer."""
    return str(refused.value.response["error"])


def post(client: WebClient, **arguments: Any) -> SlackResponse:
    """Post a message to `alerts`."""
    return client.chat_postMessage(channel="alerts", **{"text": "rewound"} | arguments)


def test_a_message_is_posted_to_its_channel(slack: Slack, client: WebClient, channel: str) -> None:
    answer = post(client, blocks=[section("*flink-job* rewound")], metadata=METADATA)
    assert (answer["ok"], answer["channel"]) == (True, channel)
    (message,) = slack.messages("alerts")
    assert (message.ts, message.text, message.metadata) == (answer["ts"], "rewound", METADATA)
    assert message.words == "*flink-job* rewound"
    assert slack.messages("payments") == []


def test_timestamps_are_unique(client: WebClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        stamps = list(pool.map(lambda _: post(client)["ts"], range(40)))
    assert len(set(stamps)) == 40


def test_an_update_keeps_the_earlier_text(slack: Slack, client: WebClient, channel: str) -> None:
    ts = post(client, blocks=[section("first")])["ts"]
    client.chat_update(channel=channel, ts=ts, text="rewound further")
    (message,) = slack.messages()
    assert (message.ts, message.text, message.words) == (ts, "rewound further", "first")
    assert [edit.text for edit in message.edits] == ["rewound"]


def test_replies_are_in_their_thread_and_not_in_the_channel(slack: Slack, client: WebClient, channel: str) -> None:
    """`conversations.replies` gives the parent first; history counts them."""
    ts = post(client)["ts"]
    for text in ("first", "second"):
        post(client, text=text, thread_ts=ts)
    assert [message.text for message in slack.messages()] == ["rewound"]
    assert [message.text for message in slack.threads[ts]] == ["first", "second"]
    replies = client.conversations_replies(channel=channel, ts=ts)["messages"]
    assert [message["text"] for message in replies] == ["rewound", "first", "second"]
    assert client.conversations_history(channel=channel)["messages"][0]["reply_count"] == 2


def test_history_is_paged_newest_first(client: WebClient, channel: str) -> None:
    """A cursor is returned while there is more; oldest and latest are exclusive unless `inclusive` is set."""
    stamps = [post(client, text=str(number))["ts"] for number in range(5)]
    pages = [
        [message["text"] for message in page["messages"]]
        for page in client.conversations_history(channel=channel, limit=2, oldest=stamps[0])
    ]
    assert pages == [["4", "3"], ["2", "1"]]
    inclusive = client.conversations_history(channel=channel, oldest=stamps[3], latest=stamps[4], inclusive=True)
    assert [message["text"] for message in inclusive["messages"]] == ["4", "3"]


def test_history_has_metadata_only_on_request(client: WebClient, channel: str) -> None:
    post(client, metadata=METADATA)
    assert "metadata" not in client.conversations_history(channel=channel)["messages"][0]
    (message,) = client.conversations_history(channel=channel, include_all_metadata=True)["messages"]
    assert message["metadata"] == METADATA


def test_a_file_goes_through_its_upload_url_into_the_thread(slack: Slack, client: WebClient, channel: str) -> None:
    """The SDK's three steps: announce, send, share."""
    ts = post(client)["ts"]
    client.files_upload_v2(channel=channel, thread_ts=ts, filename="plot.png", content=b"\x89PNG", title="Offsets")
    (upload,) = slack.uploads
    assert (upload.filename, upload.content, upload.title) == ("plot.png", b"\x89PNG", "Offsets")
    assert [message.files for message in slack.threads[ts]] == [[upload.id]]


def test_a_file_in_a_thread_is_shown_there_by_its_name(client: WebClient, channel: str) -> None:
    ts = post(client)["ts"]
    client.files_upload_v2(channel=channel, thread_ts=ts, filename="plot.png", content=b"\x89PNG")
    _, reply = client.conversations_replies(channel=channel, ts=ts)["messages"]
    assert [file["name"] for file in reply["files"]] == ["plot.png"]
    with pytest.raises(SlackApiError) as refused:
        client.files_upload_v2(thread_ts=ts, filename="plot.png", content=b"\x89PNG")
    assert error_of(refused) == "invalid_arguments"


def test_a_missing_scope_is_named(slack: Slack, client: WebClient) -> None:
    slack.withhold("files:write")
    with pytest.raises(SlackApiError) as refused:
        client.files_getUploadURLExternal(filename="plot.png", length=3)
    assert (error_of(refused), refused.value.response["needed"]) == ("missing_scope", "files:write")
    assert post(client)["ok"]


def test_a_file_that_was_never_sent_cannot_be_shared(client: WebClient, channel: str) -> None:
    announced = client.files_getUploadURLExternal(filename="plot.png", length=4)
    with pytest.raises(SlackApiError) as refused:
        client.files_completeUploadExternal(files=[{"id": announced["file_id"]}], channel_id=channel)
    assert error_of(refused) == "file_not_found"


def test_a_file_of_another_length_is_refused(client: WebClient) -> None:
    url = client.files_getUploadURLExternal(filename="plot.png", length=3)["upload_url"]
    with pytest.raises(HTTPError, match="400"):
        client._upload_file(url=url, data=b"four", logger=client.logger, timeout=5, proxy=None, ssl=None)


def test_a_wrong_token_is_refused_and_never_stored(slack: Slack) -> None:
    for token, error in (("xoxb-wrong", "invalid_auth"), (None, "not_authed")):
        with pytest.raises(SlackApiError) as refused:
            post(WebClient(token, base_url=slack.url, retry_handlers=[]))
        assert error_of(refused) == error
    assert slack.messages() == []
    assert "xoxb" not in repr(slack.requests)


def test_auth_test_names_the_bot_and_messages_have_permalinks(client: WebClient, channel: str) -> None:
    assert client.auth_test()["bot_id"]
    link = client.chat_getPermalink(channel=channel, message_ts=post(client)["ts"])["permalink"]
    assert f"/archives/{channel}/p" in link


def test_a_bot_that_is_not_a_member_must_join(slack: Slack, client: WebClient, channel: str) -> None:
    slack.kick("alerts")
    with pytest.raises(SlackApiError) as refused:
        post(client)
    assert error_of(refused) == "not_in_channel"
    client.conversations_join(channel=channel)
    assert post(client)["ok"]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("chat.postMessage", {"channel": "nowhere", "text": "x"}, "channel_not_found"),
        ("chat.postMessage", {"text": "x"}, "invalid_arguments"),
        ("chat.postMessage", {"channel": "alerts"}, "no_text"),
        ("chat.postMessage", {"channel": "alerts", "text": "x" * 40_001}, "msg_too_long"),
        ("chat.postMessage", {"channel": "alerts", "text": "x", "thread_ts": "1.000001"}, "thread_not_found"),
        ("chat.postMessage", {"channel": "alerts", "text": "12,223 -> 0"}, "invalid_arguments"),
        ("chat.postMessage", {"channel": "alerts", "blocks": "[{"}, "invalid_blocks_format"),
        ("chat.postMessage", {"channel": "alerts", "blocks": [{"type": "marquee"}]}, "invalid_blocks"),
        ("chat.postMessage", {"channel": "alerts", "blocks": [section("x" * 3000)] * 5}, "msg_blocks_too_long"),
        ("chat.postMessage", {"channel": "alerts", "attachments": [{"colour": "red"}]}, "invalid_attachments"),
        ("chat.postMessage", {"channel": "alerts", "attachments": [{"color": "red"}]}, "invalid_attachments"),
        ("chat.postMessage", {"channel": "alerts", "attachments": [{}] * 101}, "too_many_attachments"),
        ("chat.postMessage", {"channel": "alerts", "text": "x", "metadata": {"id": 1}}, "invalid_metadata_format"),
        ("chat.update", {"channel": "alerts", "ts": "1.000001", "text": "x"}, "channel_not_found"),
        ("chat.update", {"channel": "C0000000001", "ts": "1.000001", "text": "x"}, "message_not_found"),
        ("conversations.history", {"channel": "C0000000001", "limit": 1000}, "invalid_limit"),
        ("conversations.history", {"channel": "C0000000001", "cursor": "!"}, "invalid_cursor"),
        ("conversations.history", {"channel": "C0000000001", "oldest": "then"}, "invalid_ts_oldest"),
        ("conversations.replies", {"channel": "C0000000001", "ts": "1.000001"}, "thread_not_found"),
        ("chat.shout", {"channel": "alerts"}, "unknown_method"),
    ],
)
def test_invalid_requests_are_refused(client: WebClient, method: str, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(SlackApiError) as refused:
        client.api_call(method, json=arguments)
    assert error_of(refused) == error


def test_an_updates_text_limit_is_a_tenth_of_a_posts(client: WebClient, channel: str) -> None:
    """chat.update refuses a text over 4,000 characters."""
    ts = post(client, text="x" * 40_000)["ts"]
    client.chat_update(channel=channel, ts=ts, text="x" * 4_000)
    with pytest.raises(SlackApiError) as refused:
        client.chat_update(channel=channel, ts=ts, text="x" * 4_001)
    assert error_of(refused) == "msg_too_long"


def test_a_reply_cannot_have_replies(client: WebClient) -> None:
    reply = post(client, thread_ts=post(client)["ts"])
    with pytest.raises(SlackApiError) as refused:
        post(client, thread_ts=reply["ts"])
    assert error_of(refused) == "cannot_reply_to_message"


def test_a_refusal_has_a_json_pointer(client: WebClient) -> None:
    with pytest.raises(SlackApiError) as refused:
        post(client, blocks=[section("x"), section("x" * 3001)])
    assert refused.value.response["response_metadata"]["messages"] == [
        "[ERROR] must be less than 3001 characters [json-pointer:/blocks/1/text/text]",
    ]


def test_blocks_in_coloured_attachments_are_validated_too(slack: Slack, client: WebClient) -> None:
    post(client, attachments=[{"color": "#A30200", "blocks": [section("back")]}])
    assert slack.messages()[0].words == "back"
    with pytest.raises(SlackApiError) as refused:
        post(client, attachments=[{"color": "#A30200", "blocks": [section("")]}])
    assert error_of(refused) == "invalid_attachments"


def test_a_webhook_responds_only_ok(slack: Slack) -> None:
    answer = WebhookClient(slack.webhook_url("payments")).send(text="rewound", blocks=[section("rewound")])
    assert (answer.status_code, answer.body) == (200, "ok")
    assert [message.text for message in slack.messages("payments")] == ["rewound"]


@pytest.mark.parametrize(
    ("text", "path", "status", "body"),
    [
        ("x", "T0BACKFLOW/C0000000009/secret", 404, "no_service"),
        ("x", "T0BACKFLOW/C0000000001/wrong", 404, "no_service"),
        (None, "T0BACKFLOW/C0000000001/secret", 400, "no_text"),
    ],
)
def test_a_webhook_refuses_in_plain_text(slack: Slack, text: str | None, path: str, status: int, body: str) -> None:
    answer = WebhookClient(f"http://127.0.0.1:{slack.port}/services/{path}").send(text=text)
    assert (answer.status_code, answer.body) == (status, body)


def test_a_rate_limit_has_a_retry_after_header_and_applies_once(slack: Slack, client: WebClient) -> None:
    slack.answer(429, retry_after=2)
    with pytest.raises(SlackApiError) as refused:
        post(client)
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["Retry-After"] == "2"
    assert slack.messages() == []
    assert post(client)["ok"]


def test_a_fault_of_one_method_leaves_the_others_alone(slack: Slack, client: WebClient, channel: str) -> None:
    slack.answer(500, method="chat.update", times=None)
    ts = post(client)["ts"]
    for _ in range(2):
        with pytest.raises(SlackApiError) as refused:
            client.chat_update(channel=channel, ts=ts, text="x")
        assert refused.value.response.status_code == 500
    slack.clear()
    assert client.chat_update(channel=channel, ts=ts, text="x")["ok"]


def test_any_error_code_can_be_scripted(slack: Slack, client: WebClient) -> None:
    slack.refuse("fatal_error")
    with pytest.raises(SlackApiError) as refused:
        post(client)
    assert error_of(refused) == "fatal_error"


@pytest.mark.parametrize(("after", "messages"), [(False, 0), (True, 1)])
def test_a_connection_is_closed_before_or_after_posting(
    slack: Slack, client: WebClient, *, after: bool, messages: int
) -> None:
    slack.close_connection(after=after)
    with pytest.raises(ConnectionError):
        post(client)
    assert len(slack.messages()) == messages


def test_a_hanging_request_reaches_the_clients_timeout(slack: Slack) -> None:
    impatient = WebClient(slack.token, base_url=slack.url, timeout=1, retry_handlers=[])
    slack.hang(method="chat.postMessage")
    with pytest.raises(TimeoutError):
        post(impatient)
    assert impatient.auth_test()["ok"]
    assert slack.messages() == []


def test_clearing_faults_closes_hanging_requests(slack: Slack, client: WebClient) -> None:
    slack.hang(after=True)
    with ThreadPoolExecutor(1) as pool:
        posting = pool.submit(post, client)
        slack.wait_for(slack.messages)
        slack.clear()
        with pytest.raises(ConnectionError):
            posting.result(timeout=5)


def test_a_deleted_message_cannot_be_updated_or_replied_to(slack: Slack, client: WebClient, channel: str) -> None:
    ts = post(client)["ts"]
    slack.delete_message(ts)
    with pytest.raises(SlackApiError) as refused:
        client.chat_update(channel=channel, ts=ts, text="x")
    assert error_of(refused) == "message_not_found"
    with pytest.raises(SlackApiError) as refused:
        post(client, thread_ts=ts)
    assert error_of(refused) == "thread_not_found"


def test_waiting_times_out(slack: Slack) -> None:
    with pytest.raises(TimeoutError, match="a request to Slack"):
        slack.wait_for(slack.messages, timeout=0.1)


def test_requests_are_dumped_with_their_responses(slack: Slack, client: WebClient, tmp_path: Path) -> None:
    post(client)
    slack.close_connection()
    with pytest.raises(ConnectionError):
        post(client, text="lost")
    slack.dump(tmp_path / "slack.jsonl")
    first, second = (json.loads(line) for line in (tmp_path / "slack.jsonl").read_text().splitlines())
    assert (first["method"], first["status"], first["answer"]["ok"]) == ("chat.postMessage", 200, True)
    assert (second["arguments"]["text"], second["status"], second["answer"]) == ("lost", None, None)
    assert first["at"].endswith("Z")
    assert [request.arguments["text"] for request in slack.received("chat.postMessage")] == ["rewound", "lost"]


def test_the_stand_in_can_restart_on_the_same_port() -> None:
    with Slack() as slack:
        port = slack.port
    with Slack(port=port) as slack:
        assert post(WebClient(slack.token, base_url=slack.url))["ok"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [("api/chat.postMessage", 200, b"invalid_json"), ("services/a/b", 400, b"invalid_payload")],
)
def test_a_body_that_is_not_a_json_object_is_refused(
    slack: Slack, path: str, status: int, expected: bytes, body: bytes
) -> None:
    """By the Web API with an error code, by a webhook with a status."""
    connection = HTTPConnection("127.0.0.1", slack.port, timeout=5)
    connection.request("POST", f"/{path}", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == status
    assert expected in answer.read()
    connection.close()
