"""The one thread that owns all state: batches from the sources pass through journal, engine and store, in this order.

An incident is saved in one transaction with the journal position it was made from, after the journal up to there is on
disk: a kill loses at most the last second of history, and nothing that an incident was made from. If the journal cannot
be written, incidents are still saved and posted.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec.structs import replace

from agent.clock import monotonic_ms, now_ms
from agent.daemon.earlier_run import EarlierRun, dated_by
from agent.daemon.health import Health
from agent.daemon.inputs import Inputs
from agent.daemon.state_keeper import STATE, StateKeeper
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.engine.engine import Engine
from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AFTER
from agent.model.batches import ObservationBatch
from agent.model.encoding import encodable
from agent.model.findings import Finding, Incident
from agent.model.observations.base import Observation, Tick
from agent.model.text import count
from agent.notify.policy import check_report_lines, check_report_message, check_report_target
from agent.sources.base import HEARTBEAT_MS, Batch
from agent.storage.database import StorageError
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.journal.reader import Positioned
from agent.storage.journal.retention import RETAIN_MS, TRUST_MS
from agent.storage.journal.writer import Journal, JournalError

LOOKBACK_MS = 2 * HEARTBEAT_MS + LATENESS_MS
"""How much of the journal restores the facts after a restart: every visible subject has a heartbeat in it."""

_FLUSH_MS = 1_000
_FLUSH_ROWS = 32_768
"""How many observations wait for the journal at most: they take memory."""

_TICK_MS = 1_000
_POSITION_MS = 10_000
_DAY_MS = 86_400_000
_PROGRESS = 10_000
"""How many observations are restored between two signs of progress: less than a second's work."""

JOURNAL = "journal"
UNWRITTEN = "Incidents are still posted, but after a restart what happened meanwhile is missing."

_DEFECT = "pipeline"

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Pipeline:
    """Processes batches, put in from any thread, in a thread of its own. A batch that fails is set aside.

    ticks: how many ticks have been processed, for the watchdog. failure: what ended the thread, or None.
    """

    def __init__(
        self,
        journal: Journal,
        store: IncidentStore,
        engine: Engine,
        *,
        retention: int,
        wake: Mapping[str, Callable[[], None]],
        run_check: Callable[[CheckRequest], None] = lambda _: None,
        health: Health | None = None,
        moved: Callable[[Path], None] = lambda _: None,
        home: Path | None = None,
        is_archived: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        """retention: of the journal and of closed incidents, ms.

        wake: by receiver, called when something was queued for it.
        run_check: called with each check request once it is stored, and again under the same id if it has grown before
        its result arrived; after a restart with those that have no result. Must not block.
        health: takes what fails. moved: called with each new place of the state; home: where it belongs, by default
        where it is. is_archived: whether retention may remove a folder of the journal.
        """
        self.ticks = 0
        self.failure: BaseException | None = None
        self._journal = journal
        self._store = store
        self._health = health or Health()
        store.unusable = lambda row, reason: self._health.failed(f"stored row {row}", f"Set aside: it {reason}.")
        self._keeper = StateKeeper(
            store, home or store.path, self._health, moved=moved, current=lambda: engine.incidents
        )
        self._engine = engine
        self._retention, self._is_archived = retention, is_archived
        self._wake = wake
        self._run_check = run_check
        self._inputs: Inputs[Batch | CheckResult | None] = Inputs()
        self._views: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._delay, self._ticked_at = 0, monotonic_ms()
        self._unsaved: dict[str, Incident] = {}
        self._unsaved_reports: list[CheckReport] = []
        self._requests: list[CheckRequest] = []
        self._started: dict[str, CheckRequest] = {}
        self._flushed_at = self._saved_at = 0
        self._retain_at = monotonic_ms() + TRUST_MS
        self._flushed_position = journal.position
        # A daemon thread: one that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def restore(
        self,
        chunks: Iterable[Sequence[Positioned]],
        now: int = LONG_AFTER,
        progressed: Callable[[], None] = lambda: None,
        *,
        before: Iterable[Observation] = (),
    ) -> None:
        """Continue an earlier run from its incidents and its journal.

        Observations after the last saved position are processed as new. before: what is known of the time before the
        chunks, in order. now: ms. Of what is dated later, because the
        clock was ahead, only the last of each subject counts, as of now: the rest would hide what follows.
        progressed: called again and again meanwhile, as that may take minutes.
        """
        earlier = EarlierRun(chunks, self._store.position, now)
        remembered = ([observation] for observation in before)
        self._engine.restore(_counted(chain(remembered, earlier.evaluated()), progressed))
        self._engine.restore_last(earlier.ahead)
        # A finding of a check can still join an incident that is closed.
        incidents = self._store.incidents(closed_since=max(earlier.newest, 0) - self._join_window)
        self._engine.resume(_not_after(incident, now) for incident in incidents)
        self._health.resume(self._engine.latest())
        for batch in _counted(earlier.rest(), progressed):
            self._add_unsaved(self._engine.take(batch))
        self._save(self._engine.now)

    def put(self, batch: Batch) -> None:
        """Queue a batch, once there is room for it; from any thread.

        Nothing in it may be dated later than now: time would run ahead.
        """
        printable = batch if isinstance(batch, ObservationBatch) else encodable(batch)
        dated = dated_by(now_ms(), printable)
        self._inputs.put(dated, len(dated), waits=True)

    def tick(self) -> None:
        """Queue a tick; from any thread."""
        self._inputs.put([Tick(at=now_ms())], 1)

    def put_check_result(self, result: CheckResult) -> None:
        """Queue the result of a check; from any thread."""
        self._inputs.put(result)

    def read(self, view: Callable[[Engine, IncidentStore], T], timeout: float) -> T:
        """Return what `view` returns, called in the pipeline's thread before the next batch; from any thread.

        view: must take milliseconds at most. timeout: seconds. Raises TimeoutError, and what `view` raises.
        """
        result: Future[T] = Future()

        def look() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(view(self._engine, self._store))
                except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                    result.set_exception(error)

        self._views.put(look)
        self._inputs.put([])  # wakes the thread
        try:
            return result.result(timeout)
        finally:
            result.cancel()

    @property
    def queued(self) -> int:
        """How many observations wait."""
        return self._inputs.waiting

    @property
    def delay(self) -> int:
        """How long a batch waits before it is processed, ms, as ticks show once a second."""
        return max(self._delay, monotonic_ms() - self._ticked_at - _TICK_MS)

    def start(self) -> None:
        """Start the thread."""
        self._ticked_at = monotonic_ms()
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Process what is queued and stop; return whether that was done within `timeout` seconds."""
        self._inputs.put(None)
        self._inputs.close()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def take(self, batch: Batch) -> None:
        """Process one batch completely, with what was reported of the agent itself."""
        self._evaluate(batch)
        if reports := self._health.drain():
            self._evaluate(reports)
        now = self._engine.now
        is_due = now - self._flushed_at >= _FLUSH_MS or self._journal.position - self._flushed_position >= _FLUSH_ROWS
        if self._unsaved or is_due:
            self._flushed_at, self._flushed_position = now, self._journal.position
            self._write(now)
        if isinstance(batch, ObservationBatch):
            return
        ticks = [observation.at for observation in batch if isinstance(observation, Tick)]
        if ticks:
            self.ticks += len(ticks)
            self._delay, self._ticked_at = max(0, now_ms() - ticks[-1]), monotonic_ms()

    def take_check_result(self, result: CheckResult) -> None:
        """Process the result of a check: its findings, and its report for the thread of an incident."""
        changed = self._evaluate(result.observations)
        incident_id = None if result.request is None else self._engine.incident_of(result.request.finding)
        requester = None
        if incident_id is not None:
            requester = self._unsaved.get(incident_id) or self._store.incident(incident_id)
        incident = check_report_target(result, requester, changed)
        message = check_report_message(result)
        report = CheckReport(
            None if incident is None else incident.id,
            result.request,
            check_report_lines(result) if message is None else result.lines[1:],
            result.plot,
            message,
        )
        self._unsaved_reports.append(report)
        self._write(self._engine.now)

    @property
    def _join_window(self) -> int:
        """How long after its last change an incident can be joined by another finding, ms, at most."""
        return 2 * self._engine.horizon

    def _evaluate(self, observations: Batch) -> Sequence[Incident]:
        self._journal.append(observations)
        changed = self._engine.take(observations)
        self._add_unsaved(changed)
        return changed

    def _run(self) -> None:
        try:
            while (taken := self._inputs.get()) is not None:
                while not self._views.empty():
                    self._views.get()()
                try:
                    if isinstance(taken, CheckResult):
                        self.take_check_result(taken)
                    else:
                        self.take(taken)
                except Exception as error:  # noqa: BLE001 - a defect with one batch must not end the agent
                    self._health.set_aside(_DEFECT, error)
            self._evaluate(self._health.drain())
            self._saved_at = 0
            self._write(self._engine.now)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._inputs.close()

    def _add_unsaved(self, changed: Iterable[Incident]) -> None:
        self._unsaved.update((incident.id, incident) for incident in changed)

    def _write(self, now: int) -> None:
        """Write the journal, then the incidents made from it. What cannot be written is tried again the next time."""
        try:
            self._journal.flush()
            self._journal.seal(now)
        except JournalError as error:
            self._health.failed(JOURNAL, f"{error}. {UNWRITTEN}")
        else:
            self._health.works(JOURNAL)
        try:
            if self._unsaved or self._unsaved_reports or now - self._saved_at >= _POSITION_MS:
                self._saved_at = now
                self._save(now)
            if monotonic_ms() >= self._retain_at:
                self._retain_at = monotonic_ms() + RETAIN_MS
                self._keeper.prune(now - max(self._retention, self._join_window))
                self._retain_journal(now)
        except StorageError as error:
            self._health.failed(STATE, f"{error}. Incidents wait in memory and are not posted.")
        except JournalError as error:
            self._health.failed("journal retention", f"{error}.")

    def _retain_journal(self, now: int) -> None:
        kept = self._journal.retain(self._retention // _DAY_MS, now, self._is_archived)
        if kept:
            self._health.failed(
                "journal retention",
                f"{count(kept, 'folder')} of the journal, each a kind and a date, are past `retention` and stay on the "
                "local disk until they are archived. Repair the archive, or free space before the disk is full.",
            )

    def _save(self, now: int) -> None:
        requests = self._engine.check_requests
        changed_requests = requests if requests != self._requests else []
        position = self._journal.position
        woken = self._keeper.save(position, self._unsaved.values(), changed_requests, self._unsaved_reports, now)
        if not self._keeper.is_away:
            self._health.works(STATE)
        self._unsaved, self._unsaved_reports, self._requests = {}, [], requests
        for receiver in woken:
            self._wake[receiver]()
        self._run_requested_checks()

    def _run_requested_checks(self) -> None:
        """Pass on the check requests without a result that are new or have grown."""
        stored = {request.id: request for request in self._store.check_requests()}
        for request in stored.values():
            if self._started.get(request.id) != request:
                self._run_check(request)
        self._started = stored


def _counted(batches: Iterable[Batch], progressed: Callable[[], None]) -> Iterator[Batch]:
    """Yield the batches; call `progressed` whenever there have been _PROGRESS observations."""
    passed = 0
    for batch in batches:
        passed += len(batch)
        if passed >= _PROGRESS:
            passed = 0
            progressed()
        yield batch


def _not_after(incident: Incident, now: int) -> Incident:
    """Return the incident with findings that became known later than now as final: their facts are gone."""
    final = now - FINALIZATION_MS - 1

    def dated(finding: Finding) -> Finding:
        recovered_at = None if finding.recovered_at is None else min(finding.recovered_at, final)
        return finding if finding.known_at <= now else replace(finding, known_at=final, recovered_at=recovered_at)

    causes, findings = tuple(map(dated, incident.causes)), tuple(map(dated, incident.findings))
    return replace(incident, causes=causes, findings=findings)
