"""Slack's socket against the strict stand-in: envelopes, reconnection, and what is not as Slack describes it."""

import contextlib
import json
import time
from collections.abc import Iterator

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.notify.base import NotDelivered
from agent.notify.slack import Slack
from agent.notify.slack_buttons import Button
from agent.notify.slack_socket import Press, SlackSocket, presses_in
from testbed.slack import Slack as Workspace
from testbed.workspace import Message
from tests import samples

CHANNEL = "C0000000001"


class Desk:
    """A socket, and what it has passed on."""

    def __init__(self, slack: Workspace, token: str | None = None) -> None:
        self.slack = slack
        self.presses: list[Press] = []
        self.socket = SlackSocket(token or slack.app_token, base_url=slack.url, timeout=2, jitter=lambda: 0.0)

    def start(self) -> None:
        self.socket.start(self.presses.append)

    def wait_until_connected(self, connections: int) -> None:
        """Wait until so many connections were accepted, of which the last one works."""
        self.slack.wait_for(lambda: self.slack.socket.accepted >= connections and self.socket.is_connected, 60)

    def wait_for_presses(self, number: int) -> None:
        self.slack.wait_for(lambda: len(self.presses) >= number, 30)


@pytest.fixture
def desk(slack: Workspace) -> Iterator[Desk]:
    desk = Desk(slack)
    desk.start()
    desk.wait_until_connected(1)
    yield desk
    desk.socket.close()
    assert slack.socket.violations == []


@pytest.fixture
def posted(slack: Workspace) -> Message:
    receiver = Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, has_buttons=True)
    receiver.deliver(samples.message(samples.incident()), None)
    return slack.messages()[0]


def test_a_press_is_acknowledged_and_passed_on(desk: Desk, slack: Workspace, posted: Message) -> None:
    envelope = slack.press(posted, "Silence 1 d", user="U0OMAR", name="omar")
    desk.wait_for_presses(1)
    assert desk.presses == [Press(Button.SILENCE_DAY, "INC-7F3A9C", "U0OMAR", "omar", CHANNEL, posted.ts)]
    slack.wait_for(lambda: slack.socket.acknowledged[envelope] == 1)
    slack.wait_for(lambda: desk.socket.problem == "")
    assert desk.socket.malformed == 0


def test_an_envelope_delivered_twice_is_acted_on_once(desk: Desk, slack: Workspace, posted: Message) -> None:
    envelope = slack.press(posted, "Acknowledge")
    slack.socket.send_again(envelope)
    slack.press(posted, "Why?")
    desk.wait_for_presses(2)
    slack.wait_for(lambda: slack.socket.acknowledged[envelope] == 2)
    assert [press.button for press in desk.presses] == [Button.ACKNOWLEDGE, Button.WHY]


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "{",
        "[]",
        '"hello"',
        "{}",
        '{"type": 1}',
        '{"type": "interactive"}',
        '{"type": "interactive", "envelope_id": 7, "payload": {}}',
        "[" * 100_000,
        '{"type": "' + "x" * 100_000,
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_envelope_is_counted_and_skipped(desk: Desk, slack: Workspace, posted: Message, text: str) -> None:
    with structlog.testing.capture_logs() as logged:
        slack.socket.send_text(text)
        slack.socket.send_text(text)
        slack.press(posted, "Plot")
        desk.wait_for_presses(1)
    assert desk.socket.malformed == 2
    assert [entry["event"] for entry in logged].count("slack_message_malformed") == 1


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "press",
        {},
        {"type": "block_actions"},
        {"type": "block_actions", "user": {"id": "U1"}, "channel": {"id": "C1"}, "container": {}, "actions": []},
        {"type": "block_actions", "user": "U1", "channel": None, "container": {"message_ts": "1"}, "actions": [1]},
    ],
    ids=lambda payload: json.dumps(payload)[:40],
)
def test_a_malformed_payload_is_acknowledged_and_skipped(desk: Desk, slack: Workspace, payload: object) -> None:
    envelope = slack.socket.send("interactive", payload)
    slack.wait_for(lambda: slack.socket.acknowledged[envelope] == 1)
    slack.wait_for(lambda: desk.socket.malformed == 1)
    assert desk.presses == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "user", "channel", "container", "actions", "id", "action_id", "value", "name"]
                ),
                inner | st.sampled_from(["block_actions", "backflow_why"]),
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_payload_is_read_or_refused(payload: object) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        assert all(press.button in Button for press in presses_in(json.dumps(payload).encode()))


def test_what_others_pressed_is_acknowledged_and_ignored(desk: Desk, slack: Workspace) -> None:
    pressed = {
        "type": "block_actions",
        "user": {"id": "U1"},
        "channel": {"id": "C1"},
        "container": {"message_ts": "1.0"},
        "actions": [{"action_id": "deploy", "value": "INC-7F3A9C"}],
    }
    sent = [
        slack.socket.send("interactive", pressed),
        slack.socket.send("interactive", {"type": "view_submission"}),
        slack.socket.send("events_api", {"type": "event_callback"}),
        slack.socket.send("slash_commands", {"command": "/deploy"}),
    ]
    slack.wait_for(lambda: all(slack.socket.acknowledged[envelope] == 1 for envelope in sent))
    assert (desk.presses, desk.socket.malformed) == ([], 0)


def test_a_disconnect_is_followed_by_a_new_connection(desk: Desk, slack: Workspace, posted: Message) -> None:
    for connection in (2, 3):
        slack.socket.disconnect()
        desk.wait_until_connected(connection)
        slack.wait_for(lambda: slack.socket.connections == 1)
        slack.press(posted, "Why?")
        desk.wait_for_presses(connection - 1)


@pytest.mark.parametrize("cleanly", [True, False], ids=["close-frame", "without-a-word"])
def test_a_lost_connection_is_opened_again(desk: Desk, slack: Workspace, posted: Message, *, cleanly: bool) -> None:
    slack.socket.refuses = 2
    before = time.process_time()
    slack.socket.drop(cleanly=cleanly)
    slack.wait_for(lambda: desk.socket.broken_since is not None)
    desk.wait_until_connected(2)
    assert time.process_time() - before < 2, "no loop without a pause"
    slack.press(posted, "Why?")
    desk.wait_for_presses(1)
    slack.wait_for(lambda: desk.socket.problem == "")


def test_a_refused_app_token_is_said_and_not_tried_again_soon(slack: Workspace) -> None:
    desk = Desk(slack, "xapp-wrong")
    desk.start()
    slack.wait_for(lambda: "invalid_auth" in desk.socket.problem)
    assert not desk.socket.is_connected
    desk.socket.close()
    assert len(slack.received("apps.connections.open")) == 1


def test_a_bot_token_is_no_app_token(slack: Workspace) -> None:
    with pytest.raises(NotDelivered, match=r"not_allowed_token_type.*an app token with xapp-"):
        SlackSocket(slack.token, base_url=slack.url).identify()
    assert "opens a socket" in SlackSocket(slack.app_token, base_url=slack.url).identify()


def test_the_password_of_a_proxy_is_not_shown(slack: Workspace) -> None:
    proxy = slack.url.replace("//", "//user:hunter2@").removesuffix("/api/")
    socket = SlackSocket(slack.app_token, base_url=slack.url, proxy=proxy, timeout=2)
    socket.start(lambda _: None)
    slack.wait_for(lambda: "proxy" in socket.problem, 30)
    socket.close()
    assert "cannot be opened" in socket.problem
    assert "hunter2" not in socket.problem


def test_slack_that_cannot_be_reached_is_tried_again(slack: Workspace) -> None:
    slack.answer(500, method="apps.connections.open", times=2)
    slack.close_connection(method="apps.connections.open", times=1)
    desk = Desk(slack)
    desk.start()
    desk.wait_until_connected(1)
    assert len(slack.received("apps.connections.open")) >= 3
    desk.socket.close()


def test_a_server_that_does_not_greet_is_no_connection(slack: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.notify.slack_socket._HELLO_S", 0.2)
    slack.socket.is_silent = True
    desk = Desk(slack)
    desk.start()
    slack.wait_for(lambda: desk.socket.problem == "Slack has opened a socket and sent nothing on it", 30)
    slack.socket.is_silent = False
    slack.wait_for(lambda: desk.socket.is_connected, 60)
    desk.socket.close()
