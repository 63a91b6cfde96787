"""The agent that the kill matrix kills: the real daemon, with one source that emits a prepared workload.

The workload has its own time: the daemon's clock is that of its last observation. Before each pause of the workload the
agent must have delivered everything, as it has in reality, where minutes pass.
"""

import faulthandler
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing import parent_process
from pathlib import Path

import structlog

from agent.checks.runner import Checks
from agent.config.loading import load
from agent.config.settings import Settings
from agent.config.shipped import shipped
from agent.daemon import daemon, pipeline
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.observations.base import Observation, Tick
from agent.model.observations.checks import CheckRun
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState
from agent.model.times import millis
from agent.sources.base import Emit
from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from agent.storage.journal.reader import read
from agent.storage.journal.writer import Journal
from testbed.fault_points import POINTS, Point, arm, count_calls
from testbed.waiting import wait_until

_REPORT = "one rewind in 14 days"
_PLOT = b"\x89PNG\r\n\x1a\n a plot"
_BEGINNING = millis("2026-11-20T23:00:00Z")
_PAUSES = (0, 60, 195, 240, 400, 9_000)
"""Seconds: each incident opens, recovers and closes between two others."""

_SEGMENT_BYTES = 4_000
_TOKEN = "BACKFLOW_TESTBED_SLACK_TOKEN"  # noqa: S105 - the name of a variable


def workload() -> list[Observation]:
    """Return two incidents: a reset after an expired session, which requests a check, and a rewind by itself."""
    observations: list[Observation] = [
        _registration(0, "0x1"),
        *(_state(0, topic, 2005) for topic in "tuv"),
        *(
            LogOffsets(at=_at(1), cluster="main", topic=topic, partition=0, log_start=0, log_end=40_000)
            for topic in "tuv"
        ),
        *(_commit(second, "g", topic, 9_000 + 100 * second) for topic in "tv" for second in range(2, 12, 2)),
        *(_commit(second, "h", "u", 9_000 + 100 * second) for second in range(2, 200, 4)),
        _registration(12, None),
        _state(13, "t", 2011),
        _registration(18, "0x2"),
        *(_commit(second, "g", "t", 100 * second) for second in range(20, 110, 4)),
        *(_commit(second, "g", "v", 10_000 + 100 * second) for second in range(20, 64, 4)),
        *(_commit(second, "g", "v", 100 * second) for second in range(64, 190, 4)),
        *(_commit(second, "h", "u", 10 * second) for second in range(200, 300, 4)),
        _commit(301, "h", "u", 30_000),
        *(Tick(at=_at(second)) for second in range(0, 310, 10)),
        *(Tick(at=_at(second)) for second in range(310, 9_000, 600)),
    ]
    return sorted(observations, key=lambda observation: observation.at)


class Workload:
    """The source that emits what the journal lacks of the workload, and then stops the agent."""

    name, cluster, interval = "kafka", "main", 600_000

    def __init__(self, directory: Path) -> None:
        """directory: the agent's state."""
        self.now = _BEGINNING
        self.emit: Emit = NotImplemented
        self.ticks: Callable[[], int] = NotImplemented
        self._directory = directory
        self._left = Counter(workload())
        for observation in read(directory / "journal"):
            self._left[observation] -= 1
            self.now = max(self.now, observation.at)

    def poll(self) -> None:
        """Emit the workload, with a pause wherever everything must have been delivered."""
        ticks = 1  # the daemon's own
        with IncidentStore(self._directory / FILE, ["slack"]) as store:
            for begin, end in pairwise(map(_at, _PAUSES)):
                due = [observation for observation in (+self._left).elements() if begin <= observation.at < end]
                for observation in [*due, Tick(at=max(self.now, end))]:
                    self.now = max(self.now, observation.at)
                    self.emit([observation])
                    ticks += isinstance(observation, Tick)
                wait_until(partial(self._is_delivered, store, ticks), "everything to be delivered", 300, 0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _is_delivered(self, store: IncidentStore, ticks: int) -> bool:
        matrix = parent_process()
        if matrix is None or not matrix.is_alive():
            os._exit(1)  # it was interrupted, and ends no agent any more
        return self.ticks() >= ticks and not store.check_requests() and not store.pending()


def run_agent(directory: Path, slack: tuple[str, str], kill: tuple[Point, int] | None, counts: Path | None) -> None:
    """Run the daemon until it has delivered the workload; in a process of its own.

    slack: base URL and token. kill: die at the nth call of this point. counts: where to write how often each is called.
    """
    faulthandler.enable()
    source = Workload(directory)
    _use(source)
    calls: Counter[Point] = Counter()
    if counts is not None:
        count_calls(POINTS, calls)
    if kill is not None:
        arm(*kill)
    os.environ[_TOKEN] = slack[1]
    overrides = {
        "agent": {"state_directory": str(directory)},
        "slack": {"channel": "alerts", "token_env": _TOKEN, "base_url": slack[0]},
        "spark": {"enabled": False},
    }
    settings = load(shipped(), need_clusters=False, overrides=overrides)
    with (directory / "agent.log").open("a", encoding="utf-8") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        agent = daemon.Daemon(settings)
        source.ticks = lambda: agent._pipeline.ticks  # noqa: SLF001 - to know when everything is evaluated
        status = agent.run()
    if counts is not None:
        counts.write_text("\n".join(str(calls[point]) for point in POINTS), encoding="ascii")
    sys.exit(status)


def _use(source: Workload) -> None:
    """Give the daemon of this process the workload and its clock, small segments, and checks that take no time."""

    def make_sources(_settings: Settings, emit_for: Callable[[str, str], Emit], _known: object) -> list[Workload]:
        source.emit = emit_for(source.cluster, source.name)
        return [source]

    replaced: tuple[tuple[object, str, object], ...] = (
        (daemon, "TICK_MS", source.interval),
        (daemon, "now_ms", lambda: source.now),
        (pipeline, "now_ms", lambda: source.now),
        (daemon, "Journal", partial(Journal, segment_bytes=_SEGMENT_BYTES)),
        (daemon, "make_sources", make_sources),
        (Checks, "request", lambda checks, request: _answer(checks, request, source.now)),
    )
    for owner, name, value in replaced:
        setattr(owner, name, value)


def _answer(checks: Checks, request: CheckRequest, now: int) -> None:
    """Report at once what a Spark check would find."""
    run = CheckRun(at=now, cluster="main", check=request.check, started_at=now, complete=False, outcome="found")
    checks._on_result(CheckResult(request, [run], (_REPORT,), _PLOT))  # noqa: SLF001 - in place of its own thread


def _at(second: float) -> int:
    return _BEGINNING + round(second * 1_000)


def _registration(second: int, session: str | None) -> BrokerRegistration:
    epoch = None if session is None else int(session, 16)
    return BrokerRegistration(at=_at(second), cluster="main", broker=2005, session=session, epoch=epoch)


def _state(second: int, topic: str, leader: int) -> PartitionState:
    both = (2005, 2011)
    return PartitionState(
        at=_at(second), cluster="main", topic=topic, partition=0, leader=leader, replicas=both, isr=both
    )


def _commit(second: int, group: str, topic: str, offset: int) -> Commit:
    return Commit(at=_at(second), cluster="main", group=group, topic=topic, partition=0, offset=offset)
