"""The HTTP server only reads, answers only known hosts, and never stops the agent."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
import structlog

from agent.config.self_report import Address
from agent.daemon.health import SETTLED_MS, Health
from agent.daemon.web.server import SOCKET, Listener, Request, Response, is_allowed_host, short_path, text
from testbed.processes import free_port
from testbed.waiting import wait_until


def echo(request: Request) -> Response:
    if request.path == "/busy":
        raise TimeoutError
    if request.path == "/defect":
        raise ValueError(request.path)
    return text(f"{request.path} {sorted(request.query.items())}")


@contextmanager
def listening(address: Address | Path, *, health: Health | None = None, hosts: tuple[str, ...] = ()) -> Iterator[None]:
    listener = Listener(address, echo, health or Health(), hosts=hosts)
    listener.start()
    try:
        wait_until(lambda: is_open(address), "the server to listen", 30, 0.02)
        yield
    finally:
        listener.close(10)


def is_open(address: Address | Path) -> bool:
    try:
        connect(address).close()
    except OSError:
        return False
    return True


def connect(address: Address | Path) -> socket.socket:
    if isinstance(address, Address):
        return socket.create_connection((address.host, address.port), 30)
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(address) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def ask(address: Address | Path, method: str, path: str, *headers: str) -> tuple[int, str, http.client.HTTPResponse]:
    with connect(address) as connection:
        lines = [f"{method} {path} HTTP/1.1", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode())
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return response.status, response.read().decode(), response


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", free_port())


def test_get_and_head_are_answered_and_nothing_else(address: Address) -> None:
    with listening(address):
        status, body, response = ask(address, "GET", "/a%3Cb?name=x%26y&name=z", "Host: localhost")
        assert (status, body) == (200, "/a%3Cb [('name', 'x&y')]\n")
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert (response.headers["Cache-Control"], response.headers["X-Frame-Options"]) == ("no-store", "DENY")
        status, body, response = ask(address, "HEAD", "/a", "Host: localhost")
        assert (status, body, response.headers["Content-Length"]) == (200, "", "6")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, _, response = ask(address, method, "/a", "Host: localhost")
            assert (status, response.headers["Allow"]) == (405, "GET, HEAD")


def test_hosts_that_are_not_known_are_refused(address: Address) -> None:
    with listening(address, hosts=("backflow.internal",)):
        for host in ("127.0.0.1:9464", "[::1]:9464", "backflow.internal", "BACKFLOW.internal:80", socket.gethostname()):
            assert ask(address, "GET", "/", f"Host: {host}")[0] == 200
        for host in (
            "evil.example",
            "127.0.0.1.evil.example:9464",
            "localhost.evil.example",
            "",
            "backflow.internal@e",
        ):
            assert ask(address, "GET", "/", f"Host: {host}")[0] == 403
        assert ask(address, "GET", "/")[0] == 200


@pytest.mark.parametrize(
    ("header", "allowed"),
    [(None, True), ("10.1.2.3", True), ("[::1]", True), ("a.b", False), ("1.2.3", False), ("[x]", False)],
)
def test_addresses_are_no_names(header: str | None, allowed: bool) -> None:  # noqa: FBT001 - a parameter of the table
    assert is_allowed_host(header, ()) is allowed


def test_defects_and_waits_are_answers(address: Address) -> None:
    with listening(address), structlog.testing.capture_logs() as logged:
        assert ask(address, "GET", "/busy")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        status, body, _ = ask(address, "GET", "/defect")
    assert status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "ValueError" not in body
    assert [entry["path"] for entry in logged if entry["log_level"] == "error"] == ["/defect"]


def test_a_port_is_free_after_the_end_and_again(address: Address) -> None:
    for _ in range(3):
        with listening(address):
            assert ask(address, "GET", "/a")[0] == 200
        assert not is_open(address)


def test_a_port_in_use_is_reported_and_tried_again(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.daemon.web.server._RETRY_S", 0.02)
    health = Health()
    listener = Listener(address, echo, health)
    with socket.create_server((address.host, address.port)):
        listener.start()
        wait_until(lambda: health.problems, "the report", 30, 0.02)
    assert "Address already in use" in health.problems[f"HTTP on 127.0.0.1:{address.port}"]
    try:
        wait_until(lambda: is_open(address), "the port", 30, 0.02)
    finally:
        listener.close(10)


def test_a_port_that_was_in_use_works_again_after_a_minute_though_nobody_asks(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.daemon.web.server._RETRY_S", 0.02)
    monkeypatch.setattr("agent.daemon.web.server._LOOK_S", 0.02)
    now = [0]
    health = Health(lambda: now[0])
    listener = Listener(address, echo, health)
    with socket.create_server((address.host, address.port)):
        listener.start()
        wait_until(lambda: health.problems, "the report", 30, 0.02)
    try:
        wait_until(lambda: is_open(address), "the port", 30, 0.02)
        now[0] = SETTLED_MS
        wait_until(lambda: not health.problems, "the end of the problem", 30, 0.02)
    finally:
        listener.close(10)


@pytest.mark.parametrize("is_unix", [False, True])
def test_closing_does_not_wait_for_the_next_look(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_unix: bool
) -> None:
    monkeypatch.setattr("agent.daemon.web.server._LOOK_S", 3_600)
    place = tmp_path / SOCKET if is_unix else address
    before = set(threading.enumerate())
    with listening(place):
        assert ask(place, "GET", "/a")[0] == 200
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of all threads", 30, 0.02)


def test_a_socket_that_cannot_be_made_is_only_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.daemon.web.server._RETRY_S", 0.02)
    directory, health = tmp_path / "state", Health()
    directory.write_text("no directory", encoding="utf-8")
    listener = Listener(directory / SOCKET, echo, health)
    with structlog.testing.capture_logs() as logged:
        listener.start()
        try:
            wait_until(lambda: logged, "the log line", 30, 0.02)
            directory.unlink()
            directory.mkdir()
            wait_until(lambda: is_open(directory / SOCKET), "the socket", 30, 0.02)
        finally:
            listener.close(10)
    reasons = [entry["reason"] for entry in logged if entry["event"] == "status_socket_unavailable"]
    assert reasons[0] == "Cannot listen: Not a directory. It is tried again; monitoring goes on."
    assert len(reasons) == len(set(reasons))
    assert health.problems == {}


def test_a_socket_with_a_long_path_is_only_for_its_owner(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    path = directory / SOCKET
    with listening(path):
        assert ask(path, "GET", "/a", "Host: anything")[0] == 200
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_a_socket_replaces_that_of_a_killed_agent_and_returns_if_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.daemon.web.server._LOOK_S", 0.02)
    path = tmp_path / SOCKET
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with listening(path):
        assert ask(path, "GET", "/a")[0] == 200
        path.unlink()
        wait_until(lambda: is_open(path), "the socket to be there again", 30, 0.02)


def test_connections_that_say_nothing_leave_room_for_others(address: Address) -> None:
    with listening(address):
        silent = [connect(address) for _ in range(10)]
        try:
            assert ask(address, "GET", "/a")[0] == 200
        finally:
            for connection in silent:
                connection.close()


def test_slow_requests_leave_room_for_others(address: Address) -> None:
    with listening(address):
        slow = [connect(address) for _ in range(40)]
        try:
            for connection in slow:
                with suppress(OSError):
                    connection.sendall(b"GET /a HTTP/1.1\r\n")
            assert ask(address, "GET", "/b")[:2] == (200, "/b []\n")
        finally:
            for connection in slow:
                connection.close()
