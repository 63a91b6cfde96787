"""Read-only HTTP servers of the agent: a port for browsers and Prometheus, a Unix socket for `backflow status`."""

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

import structlog

from agent.config.self_report import Address
from agent.daemon.health import Health

SOCKET = "agent.sock"
"""The name of the Unix socket in the state directory."""

_CONNECTIONS = 16
_IDLE_S = 10
_RETRY_S = 5
_FREED_S = 0.25
"""How long a new connection waits for the one that was closed for it."""
_LOOK_S = 5
"""How often it is looked whether the socket can still be found."""
_LONGEST_PATH = 100
"""Bytes; a longer path is no address of a Unix socket on Linux."""

_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Connection": "close",
}

log = structlog.get_logger(__name__)


class Response(NamedTuple):
    """A response. policy: its Content-Security-Policy."""

    status: HTTPStatus
    content_type: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"


class Request(NamedTuple):
    """A GET request: its path and the first value of each query parameter."""

    path: str
    query: Mapping[str, str]


Respond = Callable[[Request], Response]


def text(body: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a plain response."""
    return Response(status, "text/plain; charset=utf-8", f"{body}\n".encode(errors="backslashreplace"))


def is_allowed_host(header: str | None, hosts: Collection[str]) -> bool:
    """Return whether a request with this Host header may be answered.

    A page of another site can make a browser connect here under a name of that site (DNS rebinding), never under an IP
    address or `localhost`. Browsers always send the header. hosts: further names.
    """
    if header is None:
        return True
    host = header.strip().lower()
    host = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    if host in {"localhost", *(name.lower() for name in hosts)}:
        return True
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    server_version = "backflow"
    sys_version = ""
    timeout = _IDLE_S
    respond: ClassVar[Respond]
    hosts: ClassVar[Collection[str] | None]
    """Allowed in the Host header besides IP addresses; None allows any."""

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        self.server.set_read(self.connection)  # type: ignore[attr-defined]
        return is_valid

    def do_GET(self) -> None:
        self._send(self._response())

    def do_HEAD(self) -> None:
        self._send(self._response())

    def _refuse(self) -> None:
        self._send(text("this server only reads: use GET", HTTPStatus.METHOD_NOT_ALLOWED), {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _response(self) -> Response:
        if self.hosts is not None and not is_allowed_host(self.headers.get("Host"), self.hosts):
            return text(
                "refused: the Host header is neither an IP address nor a known name; add it to `hosts` in [http]",
                HTTPStatus.FORBIDDEN,
            )
        try:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=10).items()}
        except ValueError:
            return text("not a valid address", HTTPStatus.BAD_REQUEST)
        try:
            return type(self).respond(Request(parts.path, query))
        except TimeoutError:
            return text("the pipeline does not answer; see /health", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:
            log.exception("http_request_failed", path=parts.path)
            return text("internal error; the agent's log has the details", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, response: Response, more: Mapping[str, str] | None = None) -> None:
        self.send_response(response.status)
        headers = {**_HEADERS, **(more or {}), "Content-Security-Policy": response.policy}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name in http.server
        """Log nothing: a scrape every few seconds is no event."""


class _Threads(socketserver.ThreadingMixIn):
    """Answers in threads, in as many at a time as there are connections.

    With one more, that which has waited longest for its request is closed: slow clients leave room for others.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._reading: dict[Any, None] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._close_oldest()
            if not self._free.acquire(timeout=_FREED_S):
                self.shutdown_request(request)  # type: ignore[attr-defined]
                return
        self._reading[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self.set_read(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.set_read(request)
            self._free.release()

    def set_read(self, request: Any) -> None:
        """Take note that the request of a connection has arrived; from any thread."""
        self._reading.pop(request, None)

    def _close_oldest(self) -> None:
        """Close the connection that has waited longest for its request, if there is one."""
        for request in list(self._reading)[:1]:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # ends its thread's wait for data

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke: the client has gone."""


class _TcpServer(_Threads, socketserver.TCPServer):
    pass


class _Tcp6Server(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(_Threads, socketserver.UnixStreamServer):
    pass


class Listener:
    """A server in a thread of its own. If it cannot listen, that is reported, and tried again."""

    def __init__(
        self, address: Address | Path, respond: Respond, health: Health, *, hosts: Collection[str] = ()
    ) -> None:
        """address: of a TCP port, or the path of a Unix socket. hosts: names in the Host header of TCP requests."""
        is_unix = isinstance(address, Path)
        self._address = address
        self._health = health
        self._problem = ""
        self._part = "status socket" if isinstance(address, Path) else f"HTTP on {address.host}:{address.port}"
        fields = {"respond": staticmethod(respond), "hosts": None if is_unix else (*hosts, socket.gethostname())}
        self._handler = type("_BoundHandler", (_Handler,), fields)
        self._stopped = threading.Event()
        self._server: socketserver.TCPServer | None = None
        self._thread = threading.Thread(target=self._run, name=self._part, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Stop listening, so that the address is free; answers under way end by themselves. timeout: seconds."""
        self._stopped.set()
        if self._server is not None:
            with contextlib.suppress(OSError):  # it has been closed just now
                self._server.socket.shutdown(socket.SHUT_RDWR)  # ends its wait for connections
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._listen() as server:
                    self._server = server
                    server.timeout = _LOOK_S
                    while not self._stopped.is_set() and self._is_there():
                        self._report("")
                        server.handle_request()
            except OSError as error:
                reason = error.strerror or str(error)
                self._report(f"Cannot listen: {reason}. It is tried again; monitoring goes on.")
                self._stopped.wait(_RETRY_S)

    def _report(self, problem: str) -> None:
        """Report the port to Health; log the socket only, as its directory holds the state, which is reported."""
        if not isinstance(self._address, Path):
            if problem:
                self._health.failed(self._part, problem)
            else:
                self._health.works(self._part)
        elif problem and problem != self._problem:
            log.warning("status_socket_unavailable", path=str(self._address), reason=problem)
        self._problem = problem

    @contextlib.contextmanager
    def _listen(self) -> Iterator[socketserver.TCPServer]:
        """Listen until the end of the block. Raises OSError."""
        if not isinstance(self._address, Path):
            server_class = _Tcp6Server if ":" in self._address.host else _TcpServer
            with server_class(tuple(self._address), self._handler) as server:
                yield server
            return
        self._address.unlink(missing_ok=True)  # of a killed agent: the journal's lock keeps a second one away
        with short_path(self._address) as path, _UnixServer(path, self._handler) as unix_server:
            self._address.chmod(0o600)
            yield unix_server
        self._address.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        """Return whether the socket can still be found: somebody may delete the state directory."""
        return not isinstance(self._address, Path) or self._address.exists()


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Return a path that leads to the same file and is short enough for a Unix socket, valid inside the block."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
