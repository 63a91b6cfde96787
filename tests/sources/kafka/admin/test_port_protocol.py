"""What a port speaks, tried with servers of its kind; a real ZooKeeper is in tests/integration/test_init.py."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.sources.kafka.admin.port_protocol import find_port_problem, split_servers


@contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port whose connections are handled one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed
                    return
                with connection:
                    handle(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def close(connection: socket.socket) -> None:
    connection.recv(100)


class Quiet(BaseHTTPRequestHandler):
    """An HTTP server that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_http_is_recognised() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        problem = find_port_problem(f"127.0.0.1:{server.server_port}", is_tls=False)
        server.shutdown()
        thread.join()
    assert problem == "this is a port of an HTTP server: name the port of a Kafka listener"


@pytest.mark.parametrize("is_client_certificate_required", [False, True])
def test_tls_is_recognised_unless_the_client_speaks_it(tmp_path: Path, is_client_certificate_required: bool) -> None:  # noqa: FBT001
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate_of(tmp_path))
    if is_client_certificate_required:
        context.verify_mode = ssl.CERT_REQUIRED

    def shake_hands(connection: socket.socket) -> None:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except (ssl.SSLError, ConnectionError):
            return

    with serving(shake_hands) as address:
        problem = find_port_problem(address, is_tls=False)
        assert problem is not None
        assert problem.startswith('the port expects TLS: set "security.protocol" to "SSL"')
        assert find_port_problem(address, is_tls=True) is None


def certificate_of(directory: Path) -> tuple[Path, Path]:
    """Return the files of the certificate and of its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subject = ["-subj", "/CN=broker", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_a_port_that_closes_is_unknown() -> None:
    with serving(close) as address:
        assert find_port_problem(address, is_tls=False) is None


def test_a_port_on_which_nothing_listens_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert find_port_problem(f"127.0.0.1:{port}", is_tls=False) is None


def test_servers_are_split_with_their_default_port() -> None:
    assert split_servers("kafka-1:9093, SSL://kafka-2:9094,[::1]:9095,kafka-3") == [
        "kafka-1:9093", "kafka-2:9094", "::1:9095", "kafka-3:9092",
    ]  # fmt: skip
