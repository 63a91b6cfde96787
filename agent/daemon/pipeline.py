"""The one thread that owns all state: batches from the sources go through journal, core and store, in that order.

An incident is saved in one transaction with the journal position it came from, after the journal has that position on
the disk: a kill loses at most the last second of history, and nothing that an incident was made from.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from agent.engine.check_requests import CheckRequest, CheckResult
from agent.engine.engine import Engine
from agent.engine.facts import LATENESS_MS
from agent.model.findings import Incident
from agent.model.observations import Observation, Tick
from agent.notify.policy import evidence_entry, evidence_in
from agent.sources.base import HEARTBEAT_MS, Batch
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.journal import Journal, JournalError

LOOKBACK_MS = 2 * HEARTBEAT_MS + LATENESS_MS
"""How much of the journal rebuilds the facts after a restart: every subject in sight has a heartbeat in it."""

_FLUSH_MS = 1_000
_POSITION_MS = 10_000
_RETAIN_MS = 3_600_000
_CHUNK = 1_000

log = structlog.get_logger(__name__)


class Pipeline:
    """Takes batches from any thread; runs in one of its own.

    ticks: how many ticks went all the way through, for the watchdog.
    """

    def __init__(
        self,
        journal: Journal,
        store: IncidentStore,
        watch: Engine,
        *,
        retention: int,
        wake: Mapping[str, Callable[[], None]],
        ask: Callable[[CheckRequest], None] = lambda _: None,
    ) -> None:
        """retention: of the journal and of closed incidents, ms.

        wake: what to call for a receiver when something was queued for it.
        ask: takes what is asked of checks, once it is stored: each ask when it is new, and again under the same id when
        it has grown before its answer came; after a restart those that were not answered. Must not block.
        """
        self.ticks = 0
        self.failure: BaseException | None = None
        self._journal = journal
        self._store = store
        self._watch = watch
        self._retention = retention
        self._wake = wake
        self._ask = ask
        self._batches: queue.SimpleQueue[Batch | CheckResult | None] = queue.SimpleQueue()
        self._unsaved: dict[str, Incident] = {}
        self._evidence: list[CheckReport] = []
        self._asks: list[CheckRequest] = []
        self._asked: dict[str, CheckRequest] = {}
        self._flushed_at = self._saved_at = self._retained_at = 0
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="pipeline")

    def restore(self, judged: Iterable[tuple[int, Observation]]) -> None:
        """Carry on from an earlier run: its incidents, and what the journal holds of it, as positions and observations.

        What came after the last saved position is judged as news.
        """
        saved = self._store.position
        before: list[Observation] = []
        after: list[Observation] = []
        for position, observation in judged:
            (before if position < saved else after).append(observation)
        # An incident may be closed while what a check finds can still join it.
        newest = max((one.seen for one in before), default=0)
        self._watch.resume(self._store.incidents(closed_since=newest - self._joinable), before)
        for start in range(0, len(after), _CHUNK):
            self._keep(self._watch.take(after[start : start + _CHUNK]))
        self._save()

    def put(self, batch: Batch) -> None:
        """Take a batch; from any thread."""
        self._batches.put(batch)

    def answer(self, answer: CheckResult) -> None:
        """Take what came of a check; from any thread."""
        self._batches.put(answer)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Take what waits, then stop; whether that was done within `timeout` seconds."""
        self._batches.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def take(self, batch: Batch) -> None:
        """One batch, all the way through."""
        self._take(batch)
        now = self._watch.now
        if self._unsaved or now - self._flushed_at >= _FLUSH_MS:
            self._flushed_at = now
            self._write(now)
        self.ticks += sum(isinstance(one, Tick) for one in batch)

    def take_answer(self, answer: CheckResult) -> None:
        """What came of a check, all the way through: its findings, and its evidence in the thread of an incident."""
        changed = self._take(answer.observations)
        held = None if answer.ask is None else self._watch.incident_of(answer.ask.finding)
        holder = None if held is None else self._unsaved.get(held) or self._store.incident(held)
        told_of = evidence_in(answer, holder, changed)
        where = None if told_of is None else told_of.id
        self._evidence.append(CheckReport(where, answer.ask, evidence_entry(answer), answer.plot))
        self._write(self._watch.now)

    @property
    def _joinable(self) -> int:
        """How long after its last news an incident may still be joined by another finding, ms, on the safe side."""
        return 2 * self._watch.horizon

    def _take(self, observations: Batch) -> Sequence[Incident]:
        self._journal.append(observations)
        changed = self._watch.take(observations)
        self._keep(changed)
        return changed

    def _run(self) -> None:
        try:
            while (taken := self._batches.get()) is not None:
                if isinstance(taken, CheckResult):
                    self.take_answer(taken)
                else:
                    self.take(taken)
            self._saved_at = 0
            self._write(self._watch.now)
        except BaseException as error:
            self.failure = error
            raise

    def _keep(self, changed: Iterable[Incident]) -> None:
        self._unsaved.update((one.id, one) for one in changed)

    def _write(self, now: int) -> None:
        """Journal first, then the incidents made from it. A full disk is said once; nothing is dropped, all is tried
        again.
        """
        try:
            self._journal.flush()
            if self._unsaved or self._evidence or now - self._saved_at >= _POSITION_MS:
                self._saved_at = now
                self._save()
            self._journal.seal(now)
            if now - self._retained_at >= _RETAIN_MS:
                self._retained_at = now
                self._journal.retain(self._retention // 86_400_000, now)
                self._store.prune(now - max(self._retention, self._joinable))
        except (JournalError, sqlite3.OperationalError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.exception("cannot write", reason=str(error))
        else:
            self._complaint = ""

    def _save(self) -> None:
        asks = self._watch.check_requests
        grown = asks if asks != self._asks else []
        woken = self._store.save(self._journal.position, self._unsaved.values(), grown, self._evidence)
        self._unsaved, self._evidence, self._asks = {}, [], asks
        for receiver in woken:
            self._wake[receiver]()
        self._hand_on()

    def _hand_on(self) -> None:
        """What is asked and not answered yet, where it is new or has grown."""
        asked = {one.id: one for one in self._store.asks()}
        for one in asked.values():
            if self._asked.get(one.id) != one:
                self._ask(one)
        self._asked = asked
