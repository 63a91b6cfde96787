"""A strict Slack stand-in on loopback for the real slack-sdk: faults as methods, and a record of all requests.

`workspace` has what Slack does with a request, `arguments` and `blockkit` what it accepts.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from threading import Event, RLock
from types import TracebackType
from typing import Self, TypeVar

from msgspec import Struct, to_builtins

from agent.model.times import rfc3339
from testbed.arguments import SCOPES, RefusedError, scopes_of
from testbed.slack_http import Request, Response, Server, refusal
from testbed.slack_socket import SocketMode, press_payload
from testbed.waiting import wait_until
from testbed.workspace import Ephemeral, Message, Upload, Workspace

T = TypeVar("T")


class Fault(Struct, kw_only=True):
    """A fault for the next `times` requests (None: until cleared) of `method` (None: any).

    answer: sent instead of Slack's; None: nothing is sent. after: Slack acts on the request before the fault.
    hold: the connection is kept open until faults are cleared. share: of the requests that it hits, drawn at random.
    """

    method: str | None
    times: int | None
    after: bool
    answer: Response | None = None
    hold: bool = False
    share: float = 1.0


class Slack:
    """The stand-in: serving from construction until close. Use it as a context manager."""

    def __init__(
        self, *channels: str, token: str = "xoxb-stand-in", app_token: str = "xapp-stand-in", port: int = 0
    ) -> None:
        """channels: names; the bot is a member of each (default: alerts). port 0: a free one."""
        self.token = token
        self.app_token = app_token
        self.socket = SocketMode()
        self.requests: list[Request] = []
        self.workspace = Workspace(channels or ("alerts",))
        self._withheld: set[str] = set()
        self._faults: list[Fault] = []
        self._cleared = Event()
        self._lock = RLock()
        self._server = Server(self._decide, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and close every connection."""
        self.clear()
        self.socket.close()
        self._server.close()

    @property
    def port(self) -> int:
        """The port, on 127.0.0.1."""
        return self._server.port

    @property
    def url(self) -> str:
        """The `base_url` for WebClient."""
        return f"http://127.0.0.1:{self.port}/api/"

    def webhook_url(self, channel: str = "alerts") -> str:
        """Return an incoming webhook that posts into a channel."""
        return f"http://127.0.0.1:{self.port}/services/T0BACKFLOW/{self.workspace.channel(channel)}/secret"

    def answer(
        self,
        status: int,
        *,
        retry_after: int | None = None,
        method: str | None = None,
        times: int | None = 1,
        after: bool = False,
        share: float = 1.0,
    ) -> None:
        """Respond with an HTTP status: 429 (with Retry-After, seconds) or a server error."""
        headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
        body = {"ok": False, "error": "ratelimited" if status == 429 else "internal_error"}
        answer = Response(status, body, headers)
        self._fail(Fault(method=method, times=times, after=after, answer=answer, share=share))

    def refuse(self, error: str, *, method: str | None = None, times: int | None = 1) -> None:
        """Respond `ok: false` with one of Slack's error codes, such as fatal_error."""
        self._fail(Fault(method=method, times=times, after=False, answer=refusal(error)))

    def respond(self, response: Response, *, method: str | None = None, times: int | None = 1) -> None:
        """Respond as something else in between would: a proxy, a portal, a connection that is cut."""
        self._fail(Fault(method=method, times=times, after=False, answer=response))

    def hang(self, *, method: str | None = None, times: int | None = 1, after: bool = False) -> None:
        """Keep the connection open without a response until faults are cleared."""
        self._fail(Fault(method=method, times=times, after=after, hold=True))

    def close_connection(
        self, *, method: str | None = None, times: int | None = 1, after: bool = False, share: float = 1.0
    ) -> None:
        """Close the connection without a response; after: the message is posted, only the response is lost."""
        self._fail(Fault(method=method, times=times, after=after, share=share))

    def clear(self) -> None:
        """Remove all faults and close the connections that hang."""
        with self._lock:
            self._faults.clear()
            self._cleared.set()

    def press(self, message: Message, label: str, *, user: str = "U0ANNA", name: str = "anna") -> str:
        """Press a button of a message; return the id of the envelope. Raises KeyError if it has no such button."""
        with self._lock:
            payload = press_payload(message, self.workspace.channels[message.channel], label, user, name)
        return self.socket.send("interactive", payload)

    def delete_message(self, ts: str) -> None:
        """Delete a message as a member of the channel would. Raises KeyError if there is none."""
        with self._lock:
            key = next((key for key in self.workspace.messages if key[1] == ts), ("", ts))
            del self.workspace.messages[key]

    def kick(self, channel: str = "alerts") -> None:
        """Remove the bot from a channel."""
        with self._lock:
            self.workspace.members.discard(self.workspace.channel(channel))

    def archive(self, channel: str = "alerts") -> None:
        """Archive a channel: it can be read, and takes nothing more."""
        with self._lock:
            self.workspace.archived.add(self.workspace.channel(channel))

    def withhold(self, scope: str) -> None:
        """Remove a scope, such as files:write, from the token."""
        with self._lock:
            self._withheld.add(scope)

    def messages(self, channel: str = "alerts") -> list[Message]:
        """Return a channel's messages as they are now, oldest first, without replies in threads."""
        with self._lock:
            wanted = self.workspace.channel(channel)
            return [
                message
                for message in self.workspace.messages.values()
                if (message.channel, message.thread_ts) == (wanted, None)
            ]

    @property
    def threads(self) -> dict[str, list[Message]]:
        """The replies to each message that has any, oldest first, by its ts."""
        with self._lock:
            threads = {message.ts: self.workspace.replies(message) for message in self.workspace.messages.values()}
            return {ts: replies for ts, replies in threads.items() if replies}

    @property
    def uploads(self) -> list[Upload]:
        """The announced files, with their content once it was sent."""
        with self._lock:
            return list(self.workspace.uploads.values())

    @property
    def ephemerals(self) -> list[Ephemeral]:
        """The messages that one user saw, oldest first."""
        with self._lock:
            return list(self.workspace.ephemerals)

    def received(self, method: str) -> list[Request]:
        """Return the requests of one method, oldest first."""
        with self._lock:
            return [request for request in self.requests if request.method == method]

    def wait_for(self, condition: Callable[[], T], timeout: float = 10) -> T:
        """Wait until the condition holds and return its value. Raises TimeoutError after `timeout` seconds."""
        return wait_until(condition, "a request to Slack", timeout, every=0.05)

    def dump(self, path: Path) -> None:
        """Write the received requests, one JSON object per line."""
        with self._lock:
            lines = [json.dumps(to_builtins(request) | {"at": rfc3339(request.at)}) for request in self.requests]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _decide(self, request: Request, token: str | None, content: bytes) -> Response | None:
        """Return the response to a request, or None; blocks while a fault holds it. Called by the server's threads."""
        with self._lock:
            self.requests.append(request)
            fault = self._next_fault(request.method)
            answer = self._act(request, token, content) if fault is None or fault.after else None
            if fault is not None:
                answer = fault.answer
            if answer is not None:
                request.status, request.answer = answer.status, answer.body
            cleared = self._cleared
        if fault is not None and fault.hold:
            cleared.wait()
        return answer

    def _act(self, request: Request, token: str | None, content: bytes) -> Response:
        if request.method == "webhook":
            return self._webhook(request)
        if request.method == "upload":
            return self._upload(request, content)
        is_socket = request.method == "apps.connections.open"
        if token not in (self.token, self.app_token):
            return refusal("not_authed" if token is None else "invalid_auth")
        if is_socket is not (token == self.app_token):
            return refusal("not_allowed_token_type")
        if is_socket:
            return Response(200, {"ok": True, "url": self.socket.make_url()})
        scopes = {*SCOPES.values()} - self._withheld
        try:
            for needed in scopes_of(request.method, request.arguments):
                if needed not in scopes:
                    return refusal("missing_scope", needed=needed, provided=",".join(scopes))
            fields = self.workspace.call(request.method, request.arguments)
        except RefusedError as refused:
            return refusal(refused.error, refused.problems)
        if "file_id" in fields:
            fields["upload_url"] = f"http://127.0.0.1:{self.port}/upload/v1/{fields['file_id']}"
        return Response(200, {"ok": True, **fields}, (("X-OAuth-Scopes", ",".join(sorted(scopes))),))

    def _webhook(self, request: Request) -> Response:
        try:
            self.workspace.post(self.workspace.channel(request.arguments["channel"], named=False), request.arguments)
        except RefusedError as refused:
            gone = refused.error == "channel_not_found"
            return Response(404, "no_service") if gone else Response(400, refused.error)
        return Response(200, "ok")

    def _upload(self, request: Request, content: bytes) -> Response:
        upload = self.workspace.uploads.get(request.arguments["file"])
        if upload is None or len(content) != upload.length:
            return Response(400, "the file was not announced with this length")
        upload.content = content
        return Response(200, f"OK - {len(content)}")

    def _fail(self, fault: Fault) -> None:
        with self._lock:
            if self._cleared.is_set():
                self._cleared = Event()
            self._faults.append(fault)

    def _next_fault(self, method: str) -> Fault | None:
        for fault in self._faults:
            if fault.method in (None, method) and fault.times != 0 and random.random() < fault.share:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None
