"""HTTP servers that misbehave as a test tells them to. None is a JobManager, nor plays one."""

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

Behaviour = Callable[[socket.socket, str, threading.Event], None]
"""Responds to a request for a path on a connection; the event is set when the server ends."""


class FaultyServer:
    """A server on a free loopback port; a context manager. `behaviour` may be changed while it runs."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requested: list[str] = []
        """The paths of all requests."""
        self._ended = threading.Event()
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    request = b""
                    while b"\r\n\r\n" not in request and (chunk := self.request.recv(65_536)):
                        request += chunk
                    path = request.split(b" ")[1].decode()
                    server.requested.append(path)
                    server.behaviour(self.request, path, server._ended)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="faulty-server", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


def hanging(connection: socket.socket, path: str, ended: threading.Event) -> None:
    """Take the request and never respond."""
    del connection, path
    ended.wait()


def dripping(connection: socket.socket, path: str, ended: threading.Event) -> None:
    """Respond with endless headers, one byte at a time, so that no wait for a packet times out."""
    del path
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def raw_response(content: bytes) -> Behaviour:
    """Respond with these bytes and hang up."""

    def respond(connection: socket.socket, path: str, ended: threading.Event) -> None:
        del path, ended
        connection.sendall(content)

    return respond


def status(line: str, body: str = "", headers: str = "") -> Behaviour:
    """Respond with an HTTP status such as "500 Internal Server Error"."""
    return raw_response(f"HTTP/1.1 {line}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode())


def json_responses(responses: Mapping[str, Any]) -> Behaviour:
    """Respond with the JSON for a path without its query, else with 404; a string is a whole status line."""

    def respond(connection: socket.socket, path: str, ended: threading.Event) -> None:
        found = responses.get(path.partition("?")[0])
        if isinstance(found, str):
            status(found)(connection, path, ended)
        elif found is None:
            status("404 Not Found")(connection, path, ended)
        else:
            status("200 OK", json.dumps(found))(connection, path, ended)

    return respond
