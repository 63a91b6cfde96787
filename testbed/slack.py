"""A strict Slack stand-in on loopback that the real slack-sdk talks to: faults as verbs, and a record of what came.

What Slack does with a request lives in workspace, what it accepts in arguments and blockkit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event, RLock
from types import TracebackType
from typing import Self, TypeVar

from msgspec import Struct, to_builtins

from agent.model.times import rfc3339
from testbed.arguments import SCOPES, RefusedError
from testbed.slack_http import CheckResult, Request, Server, refusal
from testbed.waiting import wait_until
from testbed.workspace import Message, Upload, Workspace

T = TypeVar("T")


class Fault(Struct, kw_only=True):
    """What happens to the next `times` requests (None: until cleared) of `method` (None: any).

    answer: sent instead of Slack's; None: nothing is sent. after: Slack has acted on the request all the same.
    hold: the connection is kept open until faults are cleared.
    """

    method: str | None
    times: int | None
    after: bool
    answer: CheckResult | None = None
    hold: bool = False


class Slack:
    """The stand-in: serving from construction until close. Use it as a context manager."""

    def __init__(self, *channels: str, token: str = "xoxb-stand-in", port: int = 0) -> None:
        """channels: names; the bot is a member of each (default: alerts). port 0: a free one."""
        self.token = token
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
        """Stop serving and let go of every connection."""
        self.clear()
        self._server.close()

    @property
    def port(self) -> int:
        """The port, on 127.0.0.1."""
        return self._server.port

    @property
    def url(self) -> str:
        """What WebClient takes as `base_url`."""
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
    ) -> None:
        """Answer with an HTTP status: 429 (with Retry-After, seconds) or a server's error."""
        headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
        body = {"ok": False, "error": "ratelimited" if status == 429 else "internal_error"}
        self._fail(Fault(method=method, times=times, after=after, answer=CheckResult(status, body, headers)))

    def refuse(self, error: str, *, method: str | None = None, times: int | None = 1) -> None:
        """Answer `ok: false` with one of Slack's error codes, such as fatal_error."""
        self._fail(Fault(method=method, times=times, after=False, answer=refusal(error)))

    def hang(self, *, method: str | None = None, times: int | None = 1, after: bool = False) -> None:
        """Keep the connection open without an answer until faults are cleared."""
        self._fail(Fault(method=method, times=times, after=after, hold=True))

    def close_connection(self, *, method: str | None = None, times: int | None = 1, after: bool = False) -> None:
        """Close the connection without an answer; after: the message is there, only the answer is lost."""
        self._fail(Fault(method=method, times=times, after=after))

    def clear(self) -> None:
        """No more faults; connections that hang are closed."""
        with self._lock:
            self._faults.clear()
            self._cleared.set()

    def delete_message(self, ts: str) -> None:
        """Delete a message as somebody in the channel would. Raises KeyError where there is none."""
        with self._lock:
            key = next((key for key in self.workspace.messages if key[1] == ts), ("", ts))
            del self.workspace.messages[key]

    def kick(self, channel: str = "alerts") -> None:
        """Remove the bot from a channel."""
        with self._lock:
            self.workspace.members.discard(self.workspace.channel(channel))

    def withhold(self, scope: str) -> None:
        """Take a scope, such as files:write, from the token."""
        with self._lock:
            self._withheld.add(scope)

    def messages(self, channel: str = "alerts") -> list[Message]:
        """Return a channel's messages as they stand, oldest first, without the threads' replies."""
        with self._lock:
            wanted = self.workspace.channel(channel)
            return [one for one in self.workspace.messages.values() if (one.channel, one.thread_ts) == (wanted, None)]

    @property
    def threads(self) -> dict[str, list[Message]]:
        """The replies to each message that has some, oldest first, by its ts."""
        with self._lock:
            threads = {one.ts: self.workspace.replies(one) for one in self.workspace.messages.values()}
            return {ts: replies for ts, replies in threads.items() if replies}

    @property
    def uploads(self) -> list[Upload]:
        """The files that were announced, with their content once sent."""
        with self._lock:
            return list(self.workspace.uploads.values())

    def received(self, method: str) -> list[Request]:
        """Return the requests of one method, oldest first."""
        with self._lock:
            return [one for one in self.requests if one.method == method]

    def wait_for(self, condition: Callable[[], T], timeout: float = 10) -> T:
        """Wait until the condition holds and return its value. Raises TimeoutError after `timeout` seconds."""
        return wait_until(condition, "Slack to be told", timeout, every=0.05)

    def dump(self, path: Path) -> None:
        """Write the requests received, one JSON object a line."""
        with self._lock:
            lines = [json.dumps(to_builtins(one) | {"at": rfc3339(one.at)}) for one in self.requests]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _decide(self, request: Request, token: str | None, content: bytes) -> CheckResult | None:
        """Return the answer to a request, or None; blocks while a fault holds it. Called by the server's threads."""
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

    def _act(self, request: Request, token: str | None, content: bytes) -> CheckResult:
        if request.method == "webhook":
            return self._webhook(request)
        if request.method == "upload":
            return self._upload(request, content)
        if token != self.token:
            return refusal("not_authed" if token is None else "invalid_auth")
        needed = SCOPES.get(request.method)
        if needed in self._withheld:
            return refusal("missing_scope", needed=needed, provided=",".join({*SCOPES.values()} - self._withheld))
        try:
            fields = self.workspace.call(request.method, request.arguments)
        except RefusedError as refused:
            return refusal(refused.error, refused.problems)
        if "file_id" in fields:
            fields["upload_url"] = f"http://127.0.0.1:{self.port}/upload/v1/{fields['file_id']}"
        return CheckResult(200, {"ok": True, **fields})

    def _webhook(self, request: Request) -> CheckResult:
        try:
            self.workspace.post(self.workspace.channel(request.arguments["channel"], named=False), request.arguments)
        except RefusedError as refused:
            gone = refused.error == "channel_not_found"
            return CheckResult(404, "no_service") if gone else CheckResult(400, refused.error)
        return CheckResult(200, "ok")

    def _upload(self, request: Request, content: bytes) -> CheckResult:
        upload = self.workspace.uploads.get(request.arguments["file"])
        if upload is None or len(content) != upload.length:
            return CheckResult(400, "the file was not announced with this length")
        upload.content = content
        return CheckResult(200, f"OK - {len(content)}")

    def _fail(self, fault: Fault) -> None:
        with self._lock:
            if self._cleared.is_set():
                self._cleared = Event()
            self._faults.append(fault)

    def _next_fault(self, method: str) -> Fault | None:
        for fault in self._faults:
            if fault.method in (None, method) and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None
