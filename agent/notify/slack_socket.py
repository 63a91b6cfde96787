"""Slack's Socket Mode: a WebSocket that the agent opens and Slack sends presses of buttons on.

The token is an app-level one (xapp-...) with the scope connections:write. Slack gives each connection an address of
its own (`apps.connections.open`), greets with `hello`, sends each press in an envelope that must be acknowledged within
3 s, and announces with `disconnect` that it is about to close the connection.
"""

import errno
import random
import re
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import Struct
from slack_sdk.errors import SlackClientError
from slack_sdk.socket_mode.builtin import SocketModeClient
from slack_sdk.web import WebClient

from agent.model.text import visible
from agent.notify.base import NotDelivered, RateLimited, Refused, Unanswered
from agent.notify.http_calls import TIMEOUT_S, quoted
from agent.notify.retries import FIRST_RETRY_MS, LAST_RETRY_MS, REFUSED_RETRY_MS
from agent.notify.slack import SILENT, call, text_of, web_client
from agent.notify.slack_buttons import Button

_LOOK_S = 1.0
"""How often the connection is looked at."""

_HELLO_S = 20.0
"""How long Slack may take to greet on a new connection."""

_REMEMBERED = 1_000
"""Envelopes that are known again if Slack delivers them twice."""

_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_RECEIVED_AT_ONCE = 1 << 16
_LONGEST_NAME = 80
_DICE = random.SystemRandom()

log = structlog.get_logger(__name__)


class Press(NamedTuple):
    """A button that was pressed. user: the id of who pressed it; name: theirs. ts: of the message, in its channel."""

    button: Button
    incident: str
    user: str
    name: str
    channel: str
    ts: str


class _Envelope(Struct):
    type: str
    envelope_id: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


class _Kind(Struct):
    type: str


class _User(Struct):
    id: str
    username: str = ""
    name: str = ""


class _Channel(Struct):
    id: str


class _Action(Struct):
    action_id: str
    value: str = ""


class _Container(Struct):
    message_ts: str


class _BlockActions(Struct):
    """The payload `block_actions`; it has more fields."""

    user: _User
    channel: _Channel
    container: _Container
    actions: list[_Action]


# Made at import: msgspec crashes if two threads are the first to decode a type at the same time.
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_KIND = msgspec.json.Decoder(_Kind)
_BLOCK_ACTIONS = msgspec.json.Decoder(_BlockActions)


def presses_in(payload: bytes | msgspec.Raw) -> list[Press]:
    """Return the presses of our buttons in the payload of an interactive envelope. Raises msgspec.DecodeError."""
    if _KIND.decode(payload).type != "block_actions":
        return []
    pressed = _BLOCK_ACTIONS.decode(payload)
    user = pressed.user
    name = visible(user.username or user.name or user.id)[:_LONGEST_NAME]
    ours = (action for action in pressed.actions if action.action_id in set(Button))
    return [
        Press(Button(action.action_id), action.value, user.id, name, pressed.channel.id, pressed.container.message_ts)
        for action in ours
    ]


class SlackSocket:
    """Keeps a connection open, acknowledges what comes and passes presses on, each once.

    malformed: how many messages could not be read. problem: why nothing can come at present, or empty. broken_since:
    since when, seconds of the monotonic clock; None if it is connected.
    """

    def __init__(
        self,
        token: str,
        *,
        base_url: str = "https://slack.com/api/",
        proxy: str | None = None,
        ca: Path | None = None,
        timeout: int = TIMEOUT_S,
        jitter: Callable[[], float] = _DICE.random,
    ) -> None:
        """proxy: an address; by default the environment's. ca: PEM file of trusted authorities.

        timeout: seconds per call of the Web API. jitter: draws from [0, 1).
        """
        self.malformed = 0
        self.problem = "not connected yet"
        self.broken_since: float | None = time.monotonic()
        self._web = web_client(token, base_url, timeout)
        self._token, self._proxy, self._ca = token, proxy, ca
        self._jitter = jitter
        self._pass_on: Callable[[Press], None] = lambda _: None
        self._client: _Client | None = None
        self._failures = 0
        self._greeted = ""
        self._last_error = ""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slack-socket", daemon=True)

    @property
    def is_connected(self) -> bool:
        """Whether presses arrive. From any thread."""
        client = self._client
        return client is not None and client.is_connected() and client.session_id() == self._greeted

    def identify(self) -> str:
        """Return that Slack would open a connection. Raises NotDelivered."""
        self._open()
        return "Slack opens a socket for the app token"

    def start(self, pass_on: Callable[[Press], None]) -> None:
        """Connect, from a thread of its own. pass_on: takes each press, from another; it returns at once."""
        self._pass_on = pass_on
        self._thread.start()

    def close(self) -> None:
        """Close the connection; that may take some seconds."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait = 0.0
        while not self._closing.wait(wait):
            try:
                wait = self._look()
            except Exception as error:  # noqa: BLE001 - slack_sdk raises much; presses are lost, not the agent
                wait = self._fail(Unanswered(f"the socket failed: {type(error).__name__}: {quoted(str(error))}"))
        if self._client is not None:
            self._client.close()

    def _look(self) -> float:
        """Connect if there is no connection; return when to look again, seconds."""
        if self._client is None:
            self._client = _Client(self._open, self._take, self._take_error, self._proxy, self._ca)
        if self.is_connected:
            self._works()
            return _LOOK_S
        if self._client.is_connected():
            if time.monotonic() - self._client.connected_at < _HELLO_S:
                return min(_LOOK_S, 0.1)
            self._client.disconnect()
            return self._fail(Unanswered("Slack has opened a socket and sent nothing on it"))
        self._breaks("the connection was closed")
        self._last_error = ""
        try:
            self._client.connect_to_new_endpoint()
        except NotDelivered as error:
            return self._fail(error)
        if not self._client.is_connected():
            reason = self._last_error or "the server has refused the WebSocket"
            return self._fail(Unanswered(f"the socket cannot be opened: {reason}"))
        return 0.0

    def _open(self) -> str:
        """Return the address of a new connection, which is a secret. Raises NotDelivered."""
        return text_of(call(self._web.apps_connections_open, app_token=self._token), "url")

    def _works(self) -> None:
        if self.broken_since is not None:
            log.info("slack_socket_connected")
        self._failures, self.broken_since, self.problem = 0, None, ""

    def _breaks(self, problem: str) -> None:
        """Record since when nothing comes, and why."""
        if self.broken_since is None:
            self.broken_since = time.monotonic()
            self.problem = problem

    def _fail(self, error: NotDelivered) -> float:
        """Record a failed attempt, and log each reason once; return after how many seconds to try again."""
        self._breaks(str(error))
        if self.problem != str(error):
            self.problem = str(error)
            log.warning("slack_socket_failed", reason=self.problem)
        if isinstance(error, RateLimited):
            return error.retry_after / 1000
        if isinstance(error, Refused):
            return REFUSED_RETRY_MS / 1000
        wait = min(LAST_RETRY_MS, FIRST_RETRY_MS << min(self._failures, 16))
        self._failures += 1
        return wait * (0.5 + self._jitter() / 2) / 1000

    def _take_error(self, error: Exception) -> None:
        reason = _CREDENTIALS.sub("//", str(error))  # slack_sdk names the proxy with them
        self._last_error = f"{type(error).__name__}: {quoted(reason)}"

    def _take(self, message: str) -> None:
        """Take a message from Slack: acknowledge it, and pass on what was pressed. Called by the client's thread."""
        try:
            envelope = _ENVELOPE.decode(message)
        except (msgspec.DecodeError, RecursionError) as error:
            self._skip(str(error))
            return
        client = self._client
        if envelope.type == "hello" and client is not None:
            self._greeted = client.session_id() or ""
        if envelope.type in ("hello", "disconnect"):  # the client itself follows the second
            return
        if envelope.envelope_id is None:
            self._skip(f"an envelope of type {envelope.type} without an id")
            return
        self._acknowledge(envelope.envelope_id)
        if envelope.type == "interactive" and self._is_new(envelope.envelope_id):
            try:
                presses = presses_in(envelope.payload)
            except (msgspec.DecodeError, RecursionError) as error:
                self._skip(str(error))
                return
            for press in presses:
                self._pass_on(press)

    def _acknowledge(self, envelope_id: str) -> None:
        """Acknowledge an envelope; if that fails Slack shows a warning to who pressed, and may send it again."""
        try:
            if self._client is not None:
                self._client.send_socket_mode_response({"envelope_id": envelope_id})
        except (SlackClientError, OSError) as error:
            self._take_error(error)

    def _is_new(self, envelope_id: str) -> bool:
        with self._lock:  # an old and a new connection are read at the same time for a moment
            is_known = envelope_id in self._seen
            self._seen[envelope_id] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            return not is_known

    def _skip(self, reason: str) -> None:
        """Leave out a message that is not as Slack describes it; the first is logged."""
        self.malformed += 1
        if self.malformed == 1:
            log.warning("slack_message_malformed", reason=quoted(reason))


class _Client(SocketModeClient):
    """slack_sdk's client. It reads, answers pings and follows `disconnect`; SlackSocket decides when to connect again.

    connected_at: seconds of the monotonic clock.
    """

    def __init__(
        self,
        open_address: Callable[[], str],
        take: Callable[[str], None],
        take_error: Callable[[Exception], None],
        proxy: str | None,
        ca: Path | None,
    ) -> None:
        self.connected_at = 0.0
        self._open_address = open_address
        super().__init__(
            app_token="",  # `issue_new_wss_url` uses that of SlackSocket
            logger=SILENT,
            web_client=WebClient(ssl=ssl.create_default_context(cafile=ca), logger=SILENT),
            auto_reconnect_enabled=False,
            receive_buffer_size=_RECEIVED_AT_ONCE,  # it reads a message by recursion, one level for each buffer
            concurrency=1,
            proxy=proxy,
            on_message_listeners=[take],
            on_error_listeners=[take_error],
        )

    def issue_new_wss_url(self) -> str:
        return self._open_address()

    def connect(self) -> None:
        super().connect()
        self.connected_at = time.monotonic()
        session = self.current_session
        if session is not None and session.sock is not None:
            session.sock = _EndRaises(session.sock)  # type: ignore[assignment]

    def close(self) -> None:
        connection = None if self.current_session is None else self.current_session.sock
        if connection is not None:
            with suppress(OSError):  # Slack may have closed it
                connection.shutdown(socket.SHUT_RDWR)  # ends its wait for data, which may last 3 s
        with suppress(AttributeError):  # slack_sdk 3.47, if its thread that reads closes the connection meanwhile
            self.disconnect()
        super().close()


class _EndRaises:
    """A socket whose end is an error: slack_sdk 3.47 would read on after it in a loop without a pause."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def recv(self, size: int) -> bytes:
        received = self._connection.recv(size)
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "Slack has closed the connection")
        return received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
