"""Slack's side of Socket Mode: a strict WebSocket server on loopback (RFC 6455) that sends envelopes.

What a client does against the protocol is kept in `violations` and ends its connection.
"""

import base64
import hashlib
import json
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from testbed.connections import read_exactly
from testbed.workspace import BOT, Message

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_PROTOCOL_ERROR = 1002


class ViolationError(Exception):
    """What a client did against the protocol."""


class SocketMode:
    """The server: listening from construction until close.

    acknowledged: how often each envelope was acknowledged. refuses: how many of the next connections get an HTTP error.
    is_silent: whether it neither greets nor answers pings.
    """

    def __init__(self) -> None:
        self.acknowledged: Counter[str] = Counter()
        self.violations: list[str] = []
        self.refuses = 0
        self.is_silent = False
        self.accepted = 0
        self._envelopes: dict[str, str] = {}
        self._sent: Counter[str] = Counter()
        self._tickets: set[str] = set()
        self._connections: list[socket.socket] = []
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, name="socket-mode", daemon=True)
        self._thread.start()

    def make_url(self) -> str:
        """Return the address of one connection."""
        ticket = secrets.token_hex(8)
        with self._lock:
            self._tickets.add(ticket)
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}/link/?ticket={ticket}&app_id=A0BACKFLOW"

    @property
    def connections(self) -> int:
        """How many connections are open and greeted."""
        with self._lock:
            return len(self._connections)

    def send(self, kind: str, payload: Any) -> str:
        """Send an envelope on the newest connection; return its id."""
        envelope_id = secrets.token_hex(8)
        envelope = {"envelope_id": envelope_id, "type": kind, "payload": payload, "accepts_response_payload": False}
        self._envelopes[envelope_id] = json.dumps(envelope)
        self.send_again(envelope_id)
        return envelope_id

    def send_again(self, envelope_id: str) -> None:
        """Deliver an envelope once more, as Slack does if it was not acknowledged in time."""
        with self._lock:
            self._sent[envelope_id] += 1
        self.send_text(self._envelopes[envelope_id])

    def send_text(self, text: str) -> None:
        """Send any text on the newest connection."""
        with self._lock:
            self._connections[-1].sendall(_frame(_TEXT, text.encode()))

    def disconnect(self, reason: str = "refresh_requested") -> None:
        """Announce, as Slack does every few hours, that the newest connection ends soon."""
        self.send_text(json.dumps({"type": "disconnect", "reason": reason, "debug_info": {"host": "stand-in"}}))

    def drop(self, *, cleanly: bool) -> None:
        """Close all connections: with a close frame, or without a word."""
        with self._lock:
            for connection in self._connections:
                if cleanly:
                    connection.sendall(_frame(_CLOSE, struct.pack("!H", 1000)))
                connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def close(self) -> None:
        """Stop listening and close every connection. It may be called again."""
        with suppress(OSError):  # the clients may have closed them
            self.drop(cleanly=False)
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _listen(self) -> None:
        with suppress(OSError):  # raised by accept when the server is closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                if not self._shake_hands(connection):
                    return
                while self._take_frame(connection):
                    pass
            except ViolationError as violation:
                self.violations.append(str(violation))
                with suppress(OSError):
                    connection.sendall(_frame(_CLOSE, struct.pack("!H", _PROTOCOL_ERROR)))
            except (OSError, EOFError):  # the client has gone, or `drop` has closed it
                pass
            finally:
                with self._lock:
                    self._connections = [kept for kept in self._connections if kept is not connection]

    def _shake_hands(self, connection: socket.socket) -> bool:
        """Open the WebSocket and greet; return False if the connection is refused."""
        lines = _read_head(connection).split("\r\n")
        method, target, version = lines[0].split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        wanted = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
        wrong = [name for name, value in wanted.items() if headers.get(name, "").lower() != value]
        key = headers.get("sec-websocket-key", "")
        if (method, version) != ("GET", "HTTP/1.1") or wrong or len(base64.b64decode(key)) != 16:
            msg = f"no handshake of a WebSocket: {lines[0]}, {wrong}"
            raise ViolationError(msg)
        with self._lock:
            ticket = target.partition("ticket=")[2].partition("&")[0]
            if ticket not in self._tickets:
                msg = "an address that was not given out, or is used again"
                raise ViolationError(msg)
            self._tickets.discard(ticket)
            if self.refuses:
                self.refuses -= 1
                connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                return False
        accept = base64.b64encode(hashlib.sha1(f"{key}{_MAGIC}".encode()).digest()).decode()  # noqa: S324 - RFC 6455
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        connection.sendall(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        with self._lock:
            self.accepted += 1
            if not self.is_silent:
                hello = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0BACKFLOW"}}
                connection.sendall(_frame(_TEXT, json.dumps(hello).encode()))
                self._connections.append(connection)
        return True

    def _take_frame(self, connection: socket.socket) -> bool:
        """Take one frame of the client's; return False after a close frame."""
        first, second = read_exactly(connection, 2)
        if not first & 0x80 or first & 0x70:
            msg = "a fragment, or reserved bits"
            raise ViolationError(msg)
        if not second & 0x80:
            msg = "a frame of a client without a mask"
            raise ViolationError(msg)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", read_exactly(connection, 2))
        elif length == 127:
            (length,) = struct.unpack("!Q", read_exactly(connection, 8))
        mask = read_exactly(connection, 4)
        content = bytes(byte ^ mask[index % 4] for index, byte in enumerate(read_exactly(connection, length)))
        opcode = first & 0x0F
        if opcode == _PING and not self.is_silent:
            with self._lock:
                connection.sendall(_frame(_PONG, content))
        elif opcode == _TEXT:
            self._take_acknowledgement(content)
        elif opcode not in (_PING, _PONG, _CLOSE):
            msg = f"opcode {opcode}"
            raise ViolationError(msg)
        return opcode != _CLOSE

    def _take_acknowledgement(self, content: bytes) -> None:
        """Count an acknowledgement: an object with the id of an envelope, once for each delivery."""
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not answer.keys() <= {"envelope_id", "payload"}:
            msg = f"no acknowledgement: {content[:100]!r}"
            raise ViolationError(msg)
        with self._lock:
            envelope_id = str(answer.get("envelope_id"))
            self.acknowledged[envelope_id] += 1
            if self.acknowledged[envelope_id] > self._sent[envelope_id]:
                msg = f"envelope {envelope_id} was acknowledged more often than it was sent"
                raise ViolationError(msg)


def press_payload(message: Message, channel: str, label: str, user: str, name: str) -> dict[str, Any]:
    """Return the payload `block_actions` of a press, as Slack documents it. Raises KeyError without such a button."""
    blocks = [block for attachment in message.attachments for block in attachment.get("blocks", ())]
    found = [
        (block, element)
        for block in [*message.blocks, *blocks]
        for element in (block["elements"] if block["type"] == "actions" else ())
        if element["text"]["text"] == label
    ]
    if not found:
        raise KeyError(label)
    block, button = found[0]
    return {
        "type": "block_actions",
        "user": {"id": user, "username": name, "name": name, "team_id": "T0BACKFLOW"},
        "api_app_id": "A0BACKFLOW",
        "token": "deprecated",
        "container": {
            "type": "message_attachment",
            "message_ts": message.ts,
            "attachment_id": 1,
            "channel_id": message.channel,
            "is_ephemeral": False,
            "is_app_unfurl": False,
        },
        "trigger_id": "1.2.3",
        "team": {"id": "T0BACKFLOW", "domain": "stand-in"},
        "enterprise": None,
        "is_enterprise_install": False,
        "channel": {"id": message.channel, "name": channel},
        "message": {
            "type": "message",
            "ts": message.ts,
            "text": message.text,
            "attachments": message.attachments,
            **BOT,
        },
        "state": {"values": {}},
        "response_url": "https://hooks.stand-in.example/actions/T0BACKFLOW/1/2",
        "actions": [
            {
                "action_id": button["action_id"],
                "block_id": block.get("block_id", "b"),
                "text": button["text"],
                "value": button["value"],
                "type": "button",
                "action_ts": f"{time.time():.6f}",
            }
        ],
    }


def _frame(opcode: int, content: bytes) -> bytes:
    """Return an unmasked frame, as servers send them."""
    if len(content) < 126:
        return struct.pack("!BB", 0x80 | opcode, len(content)) + content
    if len(content) < 1 << 16:
        return struct.pack("!BBH", 0x80 | opcode, 126, len(content)) + content
    return struct.pack("!BBQ", 0x80 | opcode, 127, len(content)) + content


def _read_head(connection: socket.socket) -> str:
    """Return the head of the HTTP request. Raises EOFError."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read_exactly(connection, 1)
    return head.decode("ascii").removesuffix("\r\n\r\n")
