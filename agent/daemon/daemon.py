"""The running agent: sources and checks on schedule, the pipeline, the dispatchers, and the watchdog."""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TextIO

import structlog

from agent.checks.runner import Checks
from agent.checks.schedule import CheckSchedule
from agent.clock import now_ms
from agent.config.settings import Settings
from agent.daemon import memory
from agent.daemon.clock_watch import REPORTED_MS, ClockWatch, describe_step, needs_restart
from agent.daemon.health import Health
from agent.daemon.loops import Loop, Progress
from agent.daemon.pipeline import JOURNAL, LOOKBACK_MS, UNWRITTEN, Pipeline
from agent.daemon.self_report import SelfReport
from agent.daemon.startup_log import StartupLog, try_receivers
from agent.daemon.state_keeper import IN_MEMORY, STATE
from agent.daemon.status import CheckRuns, Parts, report_buttons
from agent.daemon.systemd import Systemd
from agent.daemon.wiring import find_unwatched, make_archiver, make_receivers, make_slack_presses, make_sources
from agent.engine.check_requests import CheckResult
from agent.engine.engine import Engine
from agent.engine.presence import MEMORY_MS
from agent.model.observations.agent import name_of_source
from agent.model.observations.base import Available, Unavailable
from agent.model.observations.checks import CheckRun
from agent.model.text import count, span
from agent.notify.dispatcher import Dispatcher, close_all
from agent.sources.base import Emit, Source
from agent.storage.database import FILE
from agent.storage.journal.memberships import membership_changes
from agent.storage.journal.reader import last_at, positioned_chunks, read
from agent.storage.journal.writer import Journal, JournalError
from agent.storage.state_file import open_state

TICK_MS = 1_000
HUNG_MS = 60_000
"""A poll that takes longer than this, and than three intervals, is reported: its source is not being read."""

_WATCHDOG_MS = 10_000

log = structlog.get_logger(__name__)


class Daemon:
    """The agent from start to stop."""

    def __init__(self, settings: Settings, *, stream: TextIO = sys.stdout) -> None:
        """stream: where the console receiver prints. The state directory must exist.

        Raises CredentialError, JournalError, StorageError, OSError.
        """
        self._wake = threading.Event()
        self._stop = self._reload = self._restart = False
        self._health = Health()
        self._clock = ClockWatch()
        directory = settings.agent.state_directory
        self._receivers = receivers = make_receivers(settings, stream)
        self._journal_directory = directory / "journal"
        # This locks the state too.
        self._journal = Journal(self._journal_directory, unreadable=self._report_left_out, sealed=self._archive_sealed)
        opened = open_state(directory, [receiver.name for receiver in receivers], now_ms())
        self._store = opened.store
        missing = self._journal.continue_at(self._store.position)
        self._archiver = make_archiver(settings, self._journal.position, self._health, self._report_left_out)
        self._dispatchers = {
            receiver.name: Dispatcher(
                self._store.path,
                receiver,
                silences=settings.silences_at,
                quiet_until=settings.notifications.quiet_until,
                repeat_interval=settings.notifications.repeat_interval,
            )
            for receiver in receivers
        }
        self._presses = make_slack_presses(settings.slack, lambda: self._store.path, self._wake_dispatchers)
        engine = Engine(settings.rules, settings.correlations, settings.incidents, self._health.set_aside)
        self._check_runs = CheckRuns(self._earlier_check_runs())
        self._checks = Checks(settings, self._put_check_result)
        self._schedule = CheckSchedule(settings, self._checks.run_on_schedule, self._log_failure)
        self._pipeline = Pipeline(
            self._journal,
            self._store,
            engine,
            retention=settings.journal.retention,
            wake={name: dispatcher.wake for name, dispatcher in self._dispatchers.items()},
            run_check=self._checks.request,
            health=self._health,
            moved=self._move_state,
            home=directory / FILE,
            is_archived=self._is_archived,
        )
        with Systemd() as systemd:
            self._restore(self._journal_directory, systemd.starting)
        self._store.queue_open()
        if missing:
            self._health.failed(
                "end of the journal",
                f"{self._journal_directory} lacks the last {count(missing, 'observation')} before the agent stopped: "
                "files were damaged, removed or not written. Incidents are kept; rules, replay and Spark checks do not "
                "see what is missing.",
            )
        if opened.lost:
            self._health.failed(f"damaged {STATE}", f"{opened.lost}.")
        if opened.problem:
            self._health.failed(STATE, f"{opened.problem}. {IN_MEMORY}")
        known = list(engine.latest())
        self._startup_logs: dict[str, StartupLog] = {}

        def emit_for(cluster: str, source: str) -> Emit:
            startup_log = StartupLog(cluster, source, self._pipeline.put, known, now_ms())
            return self._startup_logs.setdefault(name_of_source(cluster, source), startup_log).emit

        self._sources = make_sources(settings, emit_for, known)
        if unwatched := find_unwatched(self._sources, known, now_ms()):
            self._pipeline.put(unwatched)
        self._loops = [Loop("tick", TICK_MS, self._tick, partial(self._log_failure, "tick"))]
        self._loops += [
            Loop(_name(source), source.interval, partial(self._poll, source), partial(self._poll_failed, source))
            for source in self._sources
        ]
        self._source_loops = dict(zip(self._loops[1:], self._sources, strict=True))
        self._loops.append(Loop("memory", memory.RETURN_MS, memory.return_free, partial(self._log_failure, "memory")))
        self._failed: set[str] = set()
        turns: dict[str, Callable[[], int]] = {"pipeline": lambda: self._pipeline.ticks}
        for name, dispatcher in self._dispatchers.items():
            turns[f"dispatcher {name}"] = partial(getattr, dispatcher, "turns")
        self._progress = Progress(self._loops, turns)
        parts = Parts(
            state_directory=directory,
            sources=self._sources,
            pipeline=self._pipeline,
            dispatchers=self._dispatchers,
            checks=self._checks,
            health=self._health,
            progress=self._progress,
            rules=list(settings.rules),
            presses=self._presses,
            archiver=self._archiver,
        )
        self._self_report = SelfReport(settings, parts, self._check_runs)

    def run(self, is_valid: Callable[[], bool] = lambda: False) -> int | None:
        """Monitor until SIGTERM or SIGINT; return the exit status: 0, or 3 if a part of the agent failed.

        is_valid: whether the configuration file may replace the current one; asked after SIGHUP, and after a clock step
        until it may. The agent then stops in order and None is returned: the caller starts it again, and it resumes
        where it stopped.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._take_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # what came during the start waits
        memory.collect_rarely()
        memory.take_carefully()
        with Systemd() as systemd:
            self._start()
            systemd.ready()
            log.info("daemon_ready", sources=list(map(_name, self._sources)), receivers=list(self._dispatchers))
            interval = min(systemd.watchdog_interval or _WATCHDOG_MS, _WATCHDOG_MS) / 1000
            shown = ""
            while not self._stop and self._pipeline.alive:
                self._wake.wait(interval)
                self._wake.clear()
                if self._reload and not self._stop:
                    self._reload = False
                    systemd.reloading()
                    if is_valid():
                        log.info("configuration_reloading")
                        return self._close_to_restart()
                    systemd.ready()
                # With a mistake in the file the agent would not start: it goes on until that is corrected.
                if self._restart and is_valid() and not self._stop:
                    systemd.reloading()
                    log.warning("restarting_after_clock_step")
                    return self._close_to_restart()
                stuck = self._progress.stuck()
                if stuck:
                    log.error("loops_stuck", loops=stuck)
                elif not self._stop:
                    systemd.watchdog()
                if shown != self._self_report.line:
                    shown = self._self_report.line
                    systemd.status(shown)
            systemd.stopping()
            return self._close()

    def _take_signal(self, number: int, frame: object) -> None:
        del frame
        self._reload = self._reload or number == signal.SIGHUP
        self._stop = self._stop or number != signal.SIGHUP
        self._wake.set()

    def _start(self) -> None:
        self._pipeline.start()
        for dispatcher in self._dispatchers.values():
            dispatcher.start()
        if self._presses is not None:
            self._presses.start()
        self._checks.start()
        if self._archiver is not None:
            self._archiver.start()
        for loop in self._loops:
            loop.start()
        self._schedule.start()
        self._self_report.start()
        try_receivers(self._receivers)

    def _earlier_check_runs(self) -> Iterator[CheckRun]:
        runs = read(self._journal_directory, kinds=["check_run"], unreadable=self._report_left_out)
        return (run for run in runs if isinstance(run, CheckRun))

    def _restore(self, journal: Path, progressed: Callable[[], None]) -> None:
        """Continue from the journal; report observations from the future: the clock was ahead when they were made."""
        now = now_ms()
        newest = last_at(journal, until=now + 1)
        since = (now if newest is None else newest) - LOOKBACK_MS
        self._pipeline.restore(
            positioned_chunks(journal, since, self._report_left_out),
            now,
            progressed,
            before=membership_changes(journal, since - MEMORY_MS, since, self._report_left_out),
        )
        ahead = max((observation.seen for observation in read(journal, since=now + REPORTED_MS)), default=now)
        if ahead > now:
            self._health.failed("clock", describe_step(now - ahead))

    def _report_left_out(self, path: Path, reason: str) -> None:
        if path == self._journal_directory:
            self._health.failed(JOURNAL, f"{path}: {reason}. {UNWRITTEN}")
        else:
            self._health.failed("journal file", f"{path}: {reason}. It is left out; all else is read.")

    def _archive_sealed(self) -> None:
        if self._archiver is not None:
            self._archiver.wake()

    def _is_archived(self, folder: Path) -> bool:
        return self._archiver is None or self._archiver.is_archived(folder)

    def _move_state(self, path: Path) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.move(path)

    def _wake_dispatchers(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def _tick(self) -> None:
        step = self._clock.step()
        if step:
            self._health.failed("clock", describe_step(step))
        if needs_restart(step):
            self._restart = True
            self._wake.set()
        self._report_hung_sources()
        if self._presses is not None:
            report_buttons(self._presses, self._health)
        self._health.tick()
        self._pipeline.tick()

    def _report_hung_sources(self) -> None:
        """Report a source whose poll does not end as unavailable."""
        for loop, source in self._source_loops.items():
            silent = loop.call_lasts
            if silent > max(HUNG_MS, 3 * source.interval) and _name(source) not in self._failed:
                self._fail(source, f"its poll has not ended for {span(silent)}; the agent is restarted if it hangs")

    def _poll(self, source: Source) -> None:
        source.poll()
        name, now = _name(source), now_ms()
        self._startup_logs[name].polled(now)
        if source.problem is None:
            self._health.works(name)
        else:
            self._health.failed(name, source.problem)
        if name in self._failed:
            self._failed.discard(name)
            self._pipeline.put([Available(at=now, source=source.name, cluster=source.cluster)])

    def _poll_failed(self, source: Source, error: Exception) -> None:
        """Report the source as unavailable: its poll has a defect."""
        self._log_failure(_name(source), error)
        self._fail(source, f"internal error: {error!r}; the agent's log has the details")

    def _fail(self, source: Source, reason: str) -> None:
        self._failed.add(_name(source))
        self._pipeline.put([Unavailable(at=now_ms(), source=source.name, cluster=source.cluster, reason=reason)])

    def _log_failure(self, job: str, error: BaseException) -> None:
        log.error("job_failed", job=job, reason=repr(error), traceback="".join(traceback.format_exception(error)))

    def _put_check_result(self, result: CheckResult) -> None:
        for observation in result.observations:
            if isinstance(observation, CheckRun):
                self._check_runs.add(observation)
        self._pipeline.put_check_result(result)

    def _close_to_restart(self) -> int | None:
        """Stop everything; return None if the agent is to start again: nothing failed, and it was not stopped."""
        status = self._close()
        return status if status or self._stop else None

    def _close(self) -> int:
        """Stop everything within ten seconds; the journal and the incidents are then complete."""
        log.info("daemon_stopping")
        self._self_report.close()
        self._schedule.close()
        for loop in self._loops:
            loop.stop()
        closing = [source.close for source in self._sources] + [self._checks.close]
        closing += [] if self._presses is None else [self._presses.close]
        closers = [threading.Thread(target=close, daemon=True) for close in closing]
        for closer in closers:
            closer.start()
        deadline = time.monotonic() + 3
        for closer in closers:
            closer.join(max(0.0, deadline - time.monotonic()))
        written = self._pipeline.close(timeout=3)
        delivered = close_all(self._dispatchers.values(), timeout=2)
        archived = self._archiver is None or self._archiver.close(timeout=1)
        if written:
            try:
                self._journal.close()
            except JournalError as error:  # what is on disk is sealed at the next start
                log.exception("journal_not_closed", reason=str(error))
            self._store.close()
        log.info("daemon_stopped", written=written, delivered=delivered, archiving=not archived)
        return 0 if written and self._pipeline.failure is None else 3


def _name(source: Source) -> str:
    return name_of_source(source.cluster, source.name)
