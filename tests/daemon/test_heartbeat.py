"""The heartbeat arrives while the agent works, and never shows its URL."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import structlog
from pydantic import SecretStr

from agent.daemon.heartbeat import Heartbeat
from agent.notify.slack import configure_connections
from testbed.processes import free_port


class _Monitor(BaseHTTPRequestHandler):
    requests: list[tuple[str, str]]
    status: int

    def do_GET(self) -> None:
        self.requests.append((self.command, self.path))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@contextmanager
def monitored(status: int = 200) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A monitor that answers with the status: its address, and the requests that arrived."""
    requests: list[tuple[str, str]] = []
    handler = type("Monitor", (_Monitor,), {"requests": requests, "status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_heartbeat_arrives_with_the_configured_method(method: str) -> None:
    with monitored() as (address, requests):
        heartbeat = Heartbeat(SecretStr(f"{address}/ping/secret-4711?x=1"), method, lambda: "")
        heartbeat.beat()
    assert requests == [(method, "/ping/secret-4711?x=1")]
    assert heartbeat.sent_at is not None
    assert (heartbeat.problem, heartbeat.failures) == ("", 0)


def test_heartbeat_takes_its_own_way_beside_slacks_proxy() -> None:
    with monitored() as (address, requests), monitored() as (proxy, proxied):
        configure_connections(proxy)
        try:
            Heartbeat(SecretStr(f"{address}/ping/secret-4711"), "GET", lambda: "").beat()
        finally:
            configure_connections()
    assert (requests, proxied) == ([("GET", "/ping/secret-4711")], [])


def test_heartbeat_is_not_sent_while_the_agent_is_impaired() -> None:
    impairments = ["without progress: pipeline", ""]
    with monitored() as (address, requests), structlog.testing.capture_logs() as logged:
        heartbeat = Heartbeat(SecretStr(f"{address}/ping"), "GET", lambda: impairments.pop(0))
        heartbeat.beat()
        assert (requests, heartbeat.sent_at) == ([], None)
        assert heartbeat.problem == "not sent: without progress: pipeline"
        heartbeat.beat()
    assert requests == [("GET", "/ping")]
    assert [entry["event"] for entry in logged] == ["heartbeat_failed", "heartbeat_resumed"]


def test_refusal_is_logged_once_without_the_url() -> None:
    with monitored(status=503) as (address, requests), structlog.testing.capture_logs() as logged:
        heartbeat = Heartbeat(SecretStr(f"{address}/secret-4711"), "GET", lambda: "")
        heartbeat.beat()
        heartbeat.beat()
    assert len(requests) == heartbeat.failures == 2
    assert heartbeat.problem.endswith("answers with status 503")
    assert len(logged) == 1
    assert "secret-4711" not in str(logged) + heartbeat.problem


def test_unreachable_monitor_is_no_error() -> None:
    port = free_port()
    heartbeat = Heartbeat(SecretStr(f"http://127.0.0.1:{port}/secret"), "GET", lambda: "")
    heartbeat.beat()
    assert heartbeat.problem == f"127.0.0.1:{port} cannot be reached: Connection refused"
    assert heartbeat.sent_at is None


def test_defect_is_reported_without_its_text() -> None:
    heartbeat = Heartbeat(SecretStr("http://127.0.0.1/secret"), "GET", lambda: "")
    heartbeat.failed(RuntimeError("http://127.0.0.1/secret"))
    assert (heartbeat.problem, heartbeat.failures) == ("internal error: RuntimeError", 1)
