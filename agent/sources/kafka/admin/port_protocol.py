"""What a port speaks that is no Kafka listener as configured: ZooKeeper, HTTP or TLS. Opens connections."""

import re
import socket
import ssl

_SECONDS = 2.0
_ADDRESS = re.compile(r"(?:\w+://)?\[?(?P<host>[^\[\],/]+?)\]?(?::(?P<port>\d+))?")
_DEFAULT_PORT = "9092"

_REASONS = {
    "zookeeper": "this is a port of ZooKeeper: name it in `zookeeper`, and the brokers' port in `bootstrap_servers`",
    "http": "this is a port of an HTTP server: name the port of a Kafka listener",
    "tls": 'the port expects TLS: set "security.protocol" to "SSL", or to "SASL_SSL" if it asks for a password',
}


def split_servers(bootstrap_servers: str) -> list[str]:
    """Return the addresses, `host:port`, without protocols."""
    matches = (_ADDRESS.fullmatch(server.strip()) for server in bootstrap_servers.split(","))
    return [f"{match['host']}:{match['port'] or _DEFAULT_PORT}" for match in matches if match]


def find_port_problem(address: str, *, is_tls: bool) -> str | None:
    """Return what else the port at `host:port` speaks and which setting fits; None if that is unknown.

    is_tls: whether our client speaks TLS, so that a port that does is no problem.
    """
    host, _, port = address.rpartition(":")
    try:
        speaks = _speaks(host, int(port), is_tls=is_tls)
    except OSError:
        return None
    return _REASONS.get(speaks or "")


def _speaks(host: str, port: int, *, is_tls: bool) -> str | None:
    # "srvr" is allowed by default from ZooKeeper 3.5.3 on; a server that refuses it says so.
    if b"zookeeper" in (reply := _reply(host, port, b"srvr").lower()) or b"whitelist" in reply:
        return "zookeeper"
    if _reply(host, port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/"):
        return "http"
    return "tls" if not is_tls and _completes_handshake(host, port) else None


def _reply(host: str, port: int, request: bytes) -> bytes:
    """Return the beginning of the reply; empty if the port closes the connection or waits for more."""
    with socket.create_connection((host, port), _SECONDS) as connection:
        connection.sendall(request)
        try:
            return connection.recv(200)
        except (TimeoutError, ConnectionError):
            return b""


def _completes_handshake(host: str, port: int) -> bool:
    """Return whether the port speaks TLS, also if it wants a certificate of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: only whether it speaks TLS counts
    with socket.create_connection((host, port), _SECONDS) as connection:
        try:
            context.wrap_socket(connection).close()
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        except OSError:
            return False
    return True
