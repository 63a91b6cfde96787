"""The one thread that owns all state: batches from the sources go through journal, core and store, in that order.

An incident is saved in one transaction with the journal position it came from, after the journal has that position on
the disk: a kill loses at most the last second of history, and nothing that an incident was made from.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping

import structlog

from agent.facts import LATENESS_MS
from agent.findings import Incident
from agent.journal import Journal, JournalError
from agent.observations import Observation, Tick
from agent.sources import HEARTBEAT_MS, Batch
from agent.store import Store
from agent.watch import Watch

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
        self, journal: Journal, store: Store, watch: Watch, *, retention: int, wake: Mapping[str, Callable[[], None]]
    ) -> None:
        """retention: of the journal, ms. wake: what to call for a receiver when something was queued for it."""
        self.ticks = 0
        self.failure: BaseException | None = None
        self._journal = journal
        self._store = store
        self._watch = watch
        self._retention = retention
        self._wake = wake
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._unsaved: dict[str, Incident] = {}
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
        self._watch.resume(self._store.incidents(include_closed=False), before)
        for start in range(0, len(after), _CHUNK):
            self._keep(self._watch.take(after[start : start + _CHUNK]))
        self._save()

    def put(self, batch: Batch) -> None:
        """Take a batch; from any thread."""
        self._batches.put(batch)

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
        self._journal.append(batch)
        self._keep(self._watch.take(batch))
        now = self._watch.now
        if self._unsaved or now - self._flushed_at >= _FLUSH_MS:
            self._flushed_at = now
            self._write(now)
        self.ticks += sum(isinstance(one, Tick) for one in batch)

    def _run(self) -> None:
        try:
            while (batch := self._batches.get()) is not None:
                self.take(batch)
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
            if self._unsaved or now - self._saved_at >= _POSITION_MS:
                self._saved_at = now
                self._save()
            self._journal.seal(now)
            if now - self._retained_at >= _RETAIN_MS:
                self._retained_at = now
                self._journal.retain(self._retention // 86_400_000, now)
        except (JournalError, sqlite3.OperationalError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.exception("cannot write", reason=str(error))
        else:
            self._complaint = ""

    def _save(self) -> None:
        woken = self._store.save(self._journal.position, self._unsaved.values())
        self._unsaved = {}
        for receiver in woken:
            self._wake[receiver]()
