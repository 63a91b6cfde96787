"""Delivery to one receiver: in order per incident, at least once, across crashes. What is said lives in the store."""

import random
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import structlog

from agent.notify.base import Declined, Gone, Handle, NotDelivered, RateLimited, Receiver, Refused, Unanswered
from agent.notify.policy import worth_posting
from agent.storage.outbox import Outbox, Row

log = structlog.get_logger(__name__)

FIRST_RETRY_MS = 500
LAST_RETRY_MS = 60_000
REFUSED_RETRY_MS = 300_000
"""How long to wait after a refusal that only a person can lift (a revoked token, a channel that is gone)."""

PLOT_PATIENCE_MS = 300_000
"""How long an entry that is a plot may keep what comes after it waiting, once an attempt of it had no answer."""

_TURN_S = 5.0
_DICE = random.SystemRandom()


def now_ms() -> int:
    """The wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """The monotonic clock, ms."""
    return time.monotonic_ns() // 1_000_000


class Dispatcher:
    """A worker with a thread of its own that delivers what the store has queued for one receiver.

    turns: counts its progress, for the watchdog: up by one at least every five seconds and the calls of one delivery.
    """

    def __init__(
        self,
        path: Path,
        receiver: Receiver,
        *,
        clock: Callable[[], int] = monotonic_ms,
        jitter: Callable[[], float] = _DICE.random,
    ) -> None:
        """path: the state file. clock: ms of a clock that only goes forward. jitter: draws from [0, 1)."""
        self.turns = 0
        self._path = path
        self._receiver = receiver
        self._clock = clock
        self._jitter = jitter
        self._wakeup = threading.Event()
        self._closing = threading.Event()
        self._failures: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._channel_due: dict[str, int] = {}
        self._complaints: dict[str, str] = {}
        self._thread = threading.Thread(target=self.run, name=f"outbox-{receiver.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Something was queued: look at once. From any thread."""
        self._wakeup.set()

    def close(self, timeout: float = 2.0) -> bool:
        """Stop after the call under way; whether that ended within `timeout` seconds.

        A call that is left behind counts as one whose answer was lost: the next start looks it up.
        """
        self._closing.set()
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Deliver until closed."""
        queue = Outbox(self._path, self._receiver.name)
        try:
            while not self._closing.is_set():
                self._wakeup.clear()
                try:
                    due = self.deliver_due(queue)
                except sqlite3.Error as error:
                    log.exception("cannot read or write the queue", receiver=self._receiver.name, reason=str(error))
                    due = None
                self.turns += 1
                if not self._closing.is_set():
                    self._wakeup.wait(_TURN_S if due is None else min(_TURN_S, max(0, due - self._clock()) / 1000))
        finally:
            queue.close()

    def deliver_due(self, queue: Outbox) -> int | None:
        """Try what is due, the first thing of each incident; returns when the next is due (ms), None: nothing waits."""
        heads = queue.heads()
        for memory in (self._due, self._failures):
            for incident_id in memory.keys() - dict(heads).keys():
                del memory[incident_id]
        for incident_id, seq in heads:
            self.turns += 1
            if self._closing.is_set():
                break
            if self._clock() < self._due.get(incident_id, 0):
                continue
            try:
                self._attempt(queue, incident_id, seq)
            except sqlite3.Error:
                raise
            except Exception as error:  # noqa: BLE001 - a defect in one message must not silence all others
                self._defect(incident_id, error)
        return min((self._due.get(incident_id, 0) for incident_id, _ in heads), default=None)

    def _attempt(self, queue: Outbox, incident_id: str, seq: int) -> None:
        row = queue.read(seq)
        if row is None:
            return
        channel = self._receiver.channel(row.message, row.handle)
        if self._clock() < self._channel_due.get(channel, 0):
            self._due[incident_id] = self._channel_due[channel]
            return
        if not queue.attempt(row, now_ms()):
            return
        sent = False
        try:
            handle, told = self._look_up(queue, row)
            if not told:
                sent = True
                handle = self._receiver.deliver(row.message, handle)
            queue.confirmed(row, handle)
        except NotDelivered as error:
            if _left_out(row, error, now_ms()):
                log.warning(
                    "plot left out",
                    receiver=self._receiver.name,
                    incident=incident_id,
                    plot=row.message.file,
                    reason=str(error),
                )
                queue.confirmed(row, row.handle)
                return
            self._put_off(queue, row, channel, error, sent=sent)
            return
        self._due.pop(incident_id, None)
        if row.handle is not None:
            # A first message alone does not end them: where each thread entry finds it gone, new ones come ever slower.
            self._failures.pop(incident_id, None)
        if self._complaints.pop(channel, None) is not None:
            log.info("delivering again", receiver=self._receiver.name, channel=channel)

    def _look_up(self, queue: Outbox, row: Row) -> tuple[Handle | None, bool]:
        """The handle, and whether there is nothing left to send. Raises NotDelivered.

        What an attempt of unknown end may have left there is looked for. Where nobody may look, telling twice is better
        than never.
        """
        handle, is_entry = row.handle, row.message.number > 0
        if row.attempted_at is not None and (handle is None or is_entry):
            try:
                found = self._receiver.find(row.message, handle, row.attempted_at)
            except Refused as error:
                log.warning("cannot look up a lost answer", receiver=self._receiver.name, reason=str(error))
                found = None
            if found is not None:
                queue.found(row, found)
                return found, is_entry
        return handle, handle is None and not worth_posting(row.message.incident)

    def _put_off(self, queue: Outbox, row: Row, channel: str, error: NotDelivered, *, sent: bool) -> None:
        """Settle what is known of the attempt, when to try again, and tell the operator once.

        sent: it was the delivery that failed; where it was the look-up, an earlier attempt is still in doubt.
        """
        incident_id = row.message.incident.id
        if isinstance(error, Gone):
            queue.gone(row)
        elif sent and not isinstance(error, Unanswered):
            queue.refused(row)
        if isinstance(error, RateLimited):
            wait = error.retry_after
            self._channel_due[channel] = self._clock() + wait
        elif isinstance(error, Refused):
            wait = REFUSED_RETRY_MS
        else:
            wait = self._backoff(incident_id)
        self._due[incident_id] = self._clock() + wait
        if self._complaints.get(channel) != str(error):
            self._complaints[channel] = str(error)
            say = log.error if isinstance(error, Refused) else log.warning
            say(
                "not delivered",
                receiver=self._receiver.name,
                channel=channel,
                incident=incident_id,
                reason=str(error),
                retry_in_ms=wait,
            )

    def _defect(self, incident_id: str, error: Exception) -> None:
        """Log where it is, without a traceback: a renderer may add the local variables, and a token is among them."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"
        log.error("not delivered by a defect", receiver=self._receiver.name, incident=incident_id, reason=reason)
        self._due[incident_id] = self._clock() + self._backoff(incident_id)

    def _backoff(self, incident_id: str) -> int:
        """Twice the wait with each failure, up to a minute; drawn from its upper half."""
        failures = self._failures.get(incident_id, 0)
        self._failures[incident_id] = failures + 1
        wait = min(LAST_RETRY_MS, FIRST_RETRY_MS << min(failures, 16))
        return int(wait * (0.5 + self._jitter() / 2))


def _left_out(row: Row, error: NotDelivered, now: int) -> bool:
    """Whether it is a plot that is not worth keeping the thread waiting any longer: its lines were told before it."""
    if row.message.plot is None:
        return False
    tried_long = row.attempted_at is not None and now - row.attempted_at > PLOT_PATIENCE_MS
    return isinstance(error, Declined) or (isinstance(error, Unanswered) and tried_long)
