"""The HTTP server of the Slack stand-in, on loopback; `slack` decides the responses."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct


class Request(Struct, kw_only=True):
    """A received request, without its token.

    at: ms since the epoch. method: Slack's name for it, or `webhook` or `upload`. status, answer: the response; None if
    there was none.
    """

    at: int
    method: str
    arguments: dict[str, Any]
    status: int | None = None
    answer: dict[str, Any] | str | None = None


class Response(NamedTuple):
    """A response: text for a webhook, an object for the Web API. headers: besides the usual ones."""

    status: int
    body: dict[str, Any] | str
    headers: tuple[tuple[str, str], ...] = ()


def refusal(error: str, problems: Iterable[str] = (), **more: str) -> Response:
    """Return the Web API's response to a request that it refuses."""
    messages = [f"[ERROR] {problem}" for problem in problems]
    return Response(200, {"ok": False, "error": error, **more, "response_metadata": {"messages": messages}})


Decide: TypeAlias = Callable[[Request, str | None, bytes], Response | None]
"""Returns the response to a request with this token (or None) and this body; None closes the connection without one."""


class Server:
    """An HTTP server that serves from construction until close."""

    def __init__(self, decide: Decide, port: int = 0) -> None:
        """port: on 127.0.0.1; 0 for a free one."""
        self._http = _HTTPServer(("127.0.0.1", port), partial(_Handler, decide))
        self._thread = Thread(target=self._http.serve_forever, args=(0.05,), name="slack", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, on 127.0.0.1."""
        return int(self._http.server_address[1])

    def close(self) -> None:
        """Stop accepting connections."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    """Reads a request and writes the response that `decide` returns."""

    def __init__(self, decide: Decide, *connection: Any) -> None:
        self._decide = decide
        super().__init__(*connection)

    def do_POST(self) -> None:
        """Handle a POST or a GET: Slack accepts both."""
        at = time.time_ns() // 1_000_000
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        split = urlsplit(self.path)
        area, _, rest = split.path.removeprefix("/").partition("/")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        answer: Response | None
        try:
            arguments = dict(parse_qsl(split.query)) | ({} if area == "upload" else self._arguments(content))
        except ValueError:
            answer = Response(400, "invalid_payload") if area == "services" else refusal("invalid_json")
        else:
            method = {"services": "webhook", "upload": "upload"}.get(area, rest)
            if method == "webhook":
                arguments["channel"] = rest.split("/")[1] if rest.endswith("/secret") else ""
            elif method == "upload":
                arguments["file"] = rest.rpartition("/")[2]
            answer = self._decide(Request(at=at, method=method, arguments=arguments), token, content)
        if answer is not None:
            with suppress(ConnectionError):  # the client may have given up waiting, which such tests are about
                self._write(answer)

    do_GET = do_POST  # noqa: N815  http.server looks for this name

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr: `requests` is the log."""

    def _arguments(self, content: bytes) -> dict[str, Any]:
        """Return the arguments in the body, a form or JSON. Raises ValueError."""
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("application/json"):
            arguments = json.loads(content or b"{}")  # slack-sdk calls an empty body JSON
            if isinstance(arguments, dict):
                return arguments
            raise ValueError(kind)
        return dict(parse_qsl(content.decode()))

    def _write(self, answer: Response) -> None:
        plain = isinstance(answer.body, str)
        body = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/html" if plain else "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
