"""The running agent: sources polled and checks run on schedule, the pipeline, the outboxes, the service manager."""

import signal
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TextIO

import structlog
from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from agent.checks.runner import Checks
from agent.config.check_sections import trigger
from agent.config.settings import Settings
from agent.daemon.pipeline import LOOKBACK_MS, Pipeline
from agent.daemon.startup_log import StartupLog
from agent.daemon.systemd import Systemd
from agent.daemon.wiring import receivers_of, sources_of
from agent.engine.check_requests import CheckResult
from agent.engine.engine import Engine
from agent.model.observations import Available, Tick, Unavailable
from agent.notify.dispatcher import Dispatcher, now_ms
from agent.sources.base import Emit, Source
from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from agent.storage.journal import Journal, entries, last_at

TICK_MS = 1_000
STUCK_MS = 120_000
"""A loop that has not come round for this long is stuck: the watchdog is no longer fed."""

_WATCH_MS = 10_000

log = structlog.get_logger(__name__)


class Daemon:
    """The agent from start to stop. Raises what its parts raise where they cannot start."""

    def __init__(self, settings: Settings, *, stream: TextIO = sys.stdout) -> None:
        """stream: where the console receiver prints."""
        self._stop = threading.Event()
        directory = settings.agent.state_directory
        directory.mkdir(parents=True, exist_ok=True)
        receivers = receivers_of(settings, stream)
        self._store = IncidentStore(directory / FILE, [one.name for one in receivers])
        self._journal = Journal(directory / "journal", self._store.position)
        self._outboxes = {one.name: Dispatcher(directory / FILE, one) for one in receivers}
        watch = Engine(settings.rules, settings.correlations, settings.incidents)
        self._checks = Checks(settings, self._answered)
        self._schedules = {
            name: trigger(one.schedule)
            for name, one in settings.checks.items()
            if settings.spark.enabled and one.enabled and one.schedule
        }
        self._pipeline = Pipeline(
            self._journal,
            self._store,
            watch,
            retention=settings.journal.retention,
            wake={name: outbox.wake for name, outbox in self._outboxes.items()},
            ask=self._checks.ask,
        )
        newest = last_at(directory / "journal")
        if newest is not None:
            self._pipeline.restore(entries(directory / "journal", since=newest - LOOKBACK_MS))
        known = list(watch.latest())
        self._looks: dict[str, StartupLog] = {}

        def emit_of(cluster: str, source: str) -> Emit:
            look = StartupLog(cluster, source, self._pipeline.put, known, now_ms())
            return self._looks.setdefault(f"{cluster}/{source}", look).emit

        self._sources = sources_of(settings, emit_of, known)
        self._polled_at = dict.fromkeys(map(_job, self._sources), now_ms())
        self._scheduler = BackgroundScheduler(
            timezone="UTC", executors={"default": ThreadPoolExecutor(len(self._sources) + 1)}
        )
        self._failed: set[str] = set()
        self._loops: dict[str, tuple[int, int]] = {}

    def run(self) -> int:
        """Watch until SIGTERM or SIGINT. Returns the exit status: 0, or 3 where a part of the agent failed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        with Systemd() as systemd:
            self._start()
            systemd.ready()
            log.info(
                "watching", sources=[f"{one.cluster}/{one.name}" for one in self._sources], telling=list(self._outboxes)
            )
            interval = min(systemd.watchdog_interval or _WATCH_MS, _WATCH_MS) / 1000
            while not self._stop.wait(interval) and self._pipeline.alive:
                stuck = self._stuck(now_ms())
                if stuck:
                    log.error("stuck", loops=stuck)
                else:
                    systemd.watchdog()
            systemd.stopping()
            return self._close()

    def _start(self) -> None:
        self._pipeline.start()
        for outbox in self._outboxes.values():
            outbox.start()
        self._checks.start()
        self._scheduler.add_listener(self._job_failed, EVENT_JOB_ERROR)
        # A late tick or poll is run once, at once: what matters is what holds now, not how many were missed.
        limits = {"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        self._scheduler.add_job(self._tick, "interval", seconds=TICK_MS / 1000, id="tick", **limits)
        for source in self._sources:
            self._scheduler.add_job(
                self._poll,
                "interval",
                [source],
                seconds=source.interval / 1000,
                id=_job(source),
                next_run_time=datetime.now(UTC),
                **limits,
            )
        for check, due in self._schedules.items():
            self._scheduler.add_job(self._checks.run_on_schedule, due, [check], id=f"check {check}", **limits)
        self._scheduler.start()

    def _tick(self) -> None:
        self._pipeline.put([Tick(at=now_ms())])

    def _poll(self, source: Source) -> None:
        source.poll()
        now = self._polled_at[_job(source)] = now_ms()
        self._looks[_job(source)].polled(now)
        if _job(source) in self._failed:
            self._failed.discard(_job(source))
            self._pipeline.put([Available(at=now, source=source.name, cluster=source.cluster)])

    def _answered(self, answer: CheckResult) -> None:
        self._pipeline.answer(answer)

    def _job_failed(self, event: JobExecutionEvent) -> None:
        """A defect in a source is told like any other reason for not seeing."""
        source = next((one for one in self._sources if _job(one) == event.job_id), None)
        log.error("job failed", job=event.job_id, reason=repr(event.exception), traceback=event.traceback)
        if source is not None:
            self._polled_at[event.job_id] = now_ms()
            self._failed.add(event.job_id)
            reason = f"the source failed: {event.exception!r}; its log says where"
            self._pipeline.put([Unavailable(at=now_ms(), source=source.name, cluster=source.cluster, reason=reason)])

    def _stuck(self, now: int) -> list[str]:
        """The loops that have not come round for too long."""
        turns = {"pipeline": self._pipeline.ticks} | {
            f"outbox {name}": one.turns for name, one in self._outboxes.items()
        }
        for name, turn in turns.items():
            if self._loops.get(name, (-1, 0))[0] != turn:
                self._loops[name] = (turn, now)
        since = {name: at for name, (_, at) in self._loops.items()} | self._polled_at
        return [name for name, at in since.items() if now - at > STUCK_MS]

    def _close(self) -> int:
        """Stop everything within ten seconds; the journal and the incidents are complete afterwards."""
        log.info("stopping")
        self._scheduler.shutdown(wait=False)
        closing = [source.close for source in self._sources] + [self._checks.close]
        closers = [threading.Thread(target=close, daemon=True) for close in closing]
        for closer in closers:
            closer.start()
        deadline = time.monotonic() + 3
        for closer in closers:
            closer.join(max(0.0, deadline - time.monotonic()))
        written = self._pipeline.close(timeout=3)
        delivered = [outbox.close(timeout=2) for outbox in self._outboxes.values()]
        if written:
            self._journal.close()
            self._store.close()
        log.info("stopped", written=written, delivered=all(delivered))
        return 0 if written and self._pipeline.failure is None else 3


def _job(source: Source) -> str:
    return f"{source.cluster}/{source.name}"
