"""The health of a ZooKeeper ensemble: what its servers answer to `srvr`, and how fast our own requests are."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple

from kazoo.hosts import collect_hosts

from agent.clock import now_ms
from agent.model.observations.base import Observation
from agent.model.observations.zookeeper import ZooKeeperHealth
from agent.sources.zookeeper.session import Session

_INTERVAL_MS = 60_000
_LATENCY_STEP_MS = 100
"""Latencies are rounded down to it, so that an ordinary one is not a change every minute."""

_TIMEOUT_SECONDS = 2
_MAX_ANSWER = 65_536
_MODE = re.compile(rb"^Mode: (\S+)", re.MULTILINE)
_READ_ONLY = b"read-only"
"""The mode of a server that has lost its quorum, with readonlymode.enabled."""

_NOT_SERVING = b"not currently serving requests"


class Answer(Enum):
    """What a server's answer means; org.apache.zookeeper.server.command.StatCommand writes it (3.4-3.9)."""

    SERVING = auto()
    NOT_SERVING = auto()
    """It sees no quorum, or is starting."""
    UNREACHABLE = auto()
    UNKNOWN = auto()
    """It refuses the command: `srvr` is not in its `4lw.commands.whitelist`."""


class Server(NamedTuple):
    """A client address of a ZooKeeper server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class HealthMonitor:
    """Measures the ensemble once a minute, in a thread of its own: a server that is down takes some seconds."""

    def __init__(
        self, cluster: str, connect: str, session: Session, emit: Callable[[Observation], None], *, tls: bool
    ) -> None:
        """Prepare for the servers in the connection string `connect`.

        tls: whether they accept TLS only. Such a port does not understand four-letter words.
        """
        hosts, _ = collect_hosts(connect)
        self._servers = [] if tls else sorted(Server(host, port) for host, port in hosts)
        self._cluster = cluster
        self._session = session
        self._emit = emit
        self._slowest_ms: int | None = None
        self._measured_at = 0
        self._thread: threading.Thread | None = None

    @contextmanager
    def measured_request(self) -> Iterator[None]:
        """Measure how long the request in its body takes, also if it fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._slowest_ms = max(int((time.monotonic() - started) * 1000), self._slowest_ms or 0)

    def measure_if_due(self, now: int) -> None:
        """Begin a measurement if the last one is a minute old and has ended."""
        if now - self._measured_at < _INTERVAL_MS or (self._thread is not None and self._thread.is_alive()):
            return
        self._measured_at = now
        self._thread = threading.Thread(target=self._measure, name=f"zookeeper-health-{self._cluster}", daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        answers = ask_servers(self._servers)
        latency_ms, self._slowest_ms = self._slowest_ms, None
        self._emit(
            ZooKeeperHealth(
                at=now_ms(),
                cluster=self._cluster,
                serving=answers[Answer.SERVING],
                not_serving=answers[Answer.NOT_SERVING],
                unreachable=answers[Answer.UNREACHABLE],
                latency_ms=None if latency_ms is None else latency_ms // _LATENCY_STEP_MS * _LATENCY_STEP_MS,
                expiries=self._session.expiries,
            )
        )


def ask_servers(servers: Iterable[Server]) -> dict[Answer, tuple[str, ...]]:
    """Return the servers by their answers, each after at most some seconds."""
    answers = {str(server): _ask(server) for server in servers}
    return {answer: tuple(name for name, given in answers.items() if given is answer) for answer in Answer}


def _ask(server: Server) -> Answer:
    deadline, received = time.monotonic() + _TIMEOUT_SECONDS, b""
    try:
        with socket.create_connection(server, _TIMEOUT_SECONDS) as connection:
            connection.sendall(b"srvr")
            while len(received) < _MAX_ANSWER and time.monotonic() < deadline:
                chunk = connection.recv(4096)
                if not chunk:
                    break
                received += chunk
    except OSError:
        return Answer.UNREACHABLE
    if mode := _MODE.search(received):
        return Answer.NOT_SERVING if mode[1] == _READ_ONLY else Answer.SERVING
    return Answer.NOT_SERVING if _NOT_SERVING in received else Answer.UNKNOWN
