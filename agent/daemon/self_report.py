"""How the running agent shows itself: status socket, HTTP port, heartbeat, systemd's status line, hourly log line."""

from functools import partial

import psutil
import structlog

from agent.config.settings import Settings
from agent.daemon.heartbeat import Heartbeat
from agent.daemon.loops import Loop
from agent.daemon.reports import AgentStatus, is_alarming
from agent.daemon.status import CheckRuns, Parts, StatusReader
from agent.daemon.tables import describe_subjects
from agent.daemon.web.routes import make_routes
from agent.daemon.web.server import SOCKET, Listener
from agent.model.observations.agent import name_of_source
from agent.model.text import count

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

log = structlog.get_logger(__name__)


class SelfReport:
    """Everything that only reads the agent. Nothing in it can stop the agent.

    line: what `systemctl status` shows, renewed every minute.
    """

    def __init__(self, settings: Settings, parts: Parts, check_runs: CheckRuns) -> None:
        """Prepare what [http] and [heartbeat] ask for. Raises CredentialError if the heartbeat's URL cannot be read."""
        self._reader = StatusReader(parts, check_runs)
        self.line = ""
        self._loops = [
            Loop("log line", _HOUR_MS, self._log_alive, partial(_log_failure, "log line")),
            Loop("status line", _MINUTE_MS, self._renew_line, partial(_log_failure, "status line")),
        ]
        if settings.heartbeat is not None:
            url, method = settings.heartbeat.read_url(), settings.heartbeat.method
            heartbeat = self._reader.heartbeat = Heartbeat(url, method, self._reader.impairment)
            self._loops.append(Loop("heartbeat", settings.heartbeat.every, heartbeat.beat, heartbeat.failed))
        respond = make_routes(self._reader)
        self._listeners = [Listener(settings.agent.state_directory / SOCKET, respond, parts.health)]
        if settings.http is not None:
            address = settings.http.address
            self._listeners.append(Listener(address, respond, parts.health, hosts=settings.http.hosts))
            if not address.is_loopback:
                log.warning("http_without_login", listen=settings.http.listen)

    def start(self) -> None:
        """Start the threads."""
        for listener in self._listeners:
            listener.start()
        for loop in self._loops:
            loop.start()

    def close(self) -> None:
        """Stop; the HTTP port is free afterwards."""
        for loop in self._loops:
            loop.stop()
        for listener in self._listeners:
            listener.close()

    def _renew_line(self) -> None:
        self.line = status_line(self._reader.status())

    def _log_alive(self) -> None:
        if self._reader.uptime * 1000 < _HOUR_MS / 2:  # the first call comes at the start
            return
        status = self._reader.status()
        log.info("agent_alive", **alive_fields(status))


def status_line(status: AgentStatus) -> str:
    """Return the line for `systemctl status`: what is watched, and what is open."""
    number = sum(map(is_alarming, status.incidents))
    problems = [f"{count(len(status.problems), 'problem')} of Backflow itself"] if status.problems else []
    return "; ".join([*describe_subjects(status.subjects), f"{count(number, 'incident')} open", *problems])


def alive_fields(status: AgentStatus) -> dict[str, object]:
    """Return what the hourly log line says."""
    return {
        "up_hours": round((status.at - status.started_at) / _HOUR_MS, 1),
        "watching": list(describe_subjects(status.subjects)),
        "sources": [name_of_source(source.cluster, source.source) for source in status.sources],
        "problems": list(status.problems),
        "open_incidents": sum(map(is_alarming, status.incidents)),
        "pending_deliveries": sum(receiver.pending for receiver in status.receivers),
        "delay_ms": status.delay_ms,
        "memory_mb": psutil.Process().memory_info().rss >> 20,
    }


def _log_failure(loop: str, error: Exception) -> None:
    log.error("job_failed", job=loop, reason=repr(error))
