"""The stand-in of Slack's socket refuses what Slack refuses."""

import base64
import json
import os
import socket
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from testbed.slack import Slack
from testbed.waiting import wait_until

TEXT = 0x81


class Client:
    """A WebSocket by hand, which can break every rule."""

    def __init__(self, url: str, version: str = "13") -> None:
        split = urlsplit(url)
        self.connection = socket.create_connection((split.hostname, split.port), timeout=10)
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {split.path}?{split.query} HTTP/1.1\r\nHost: slack\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        )
        rest = f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n\r\n"
        self.connection.sendall((head + rest).encode())

    def send(self, content: bytes, *, first: int = TEXT, masked: bool = True) -> None:
        mask = os.urandom(4)
        body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(content)) if masked else content
        head = struct.pack("!BB", first, (0x80 if masked else 0) | len(content))
        self.connection.sendall(head + (mask if masked else b"") + body)


@pytest.fixture
def client(slack: Slack) -> Iterator[Client]:
    made = Client(slack.socket.make_url())
    wait_until(lambda: slack.socket.connections == 1, "the connection", 10, 0.01)
    with made.connection:
        yield made


def wait_for_violation(slack: Slack, part: str) -> None:
    wait_until(lambda: any(part in violation for violation in slack.socket.violations), part, 10, 0.01)
    wait_until(lambda: slack.socket.connections == 0, "the end of the connection", 10, 0.01)


def test_an_envelope_may_be_acknowledged_once(slack: Slack, client: Client) -> None:
    answer = json.dumps({"envelope_id": slack.socket.send("interactive", {})}).encode()
    client.send(answer)
    wait_until(lambda: sum(slack.socket.acknowledged.values()) == 1, "the acknowledgement", 10, 0.01)
    assert slack.socket.violations == []
    client.send(answer)
    wait_for_violation(slack, "acknowledged more often than it was sent")


@pytest.mark.parametrize(
    ("content", "options", "violation"),
    [
        (b'{"envelope_id": "unknown"}', {}, "acknowledged more often"),
        (b'{"ok": true}', {}, "no acknowledgement"),
        (b"thanks", {}, "no acknowledgement"),
        (b"{}", {"masked": False}, "without a mask"),
        (b"{}", {"first": 0x01}, "a fragment"),
        (b"{}", {"first": 0x82}, "opcode 2"),
    ],
)
def test_frames_against_the_protocol_end_the_connection(
    slack: Slack, client: Client, content: bytes, options: dict[str, int], violation: str
) -> None:
    client.send(content, **options)  # type: ignore[arg-type]
    wait_for_violation(slack, violation)


def test_an_address_opens_one_connection(slack: Slack) -> None:
    url = slack.socket.make_url()
    first = Client(url)
    wait_until(lambda: slack.socket.connections == 1, "the connection", 10, 0.01)
    second = Client(url)
    wait_until(lambda: "used again" in " ".join(slack.socket.violations), "the violation", 10, 0.01)
    third = Client(slack.socket.make_url(), version="8")
    wait_until(lambda: "no handshake" in " ".join(slack.socket.violations), "the violation", 10, 0.01)
    for opened in (first, second, third):
        opened.connection.close()


def test_a_press_needs_a_button(slack: Slack) -> None:
    slack.workspace.call("chat.postMessage", {"channel": "alerts", "text": "no buttons"})
    with pytest.raises(KeyError, match="Why"):
        slack.press(slack.messages()[0], "Why?")
