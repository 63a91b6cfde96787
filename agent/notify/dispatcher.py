"""Delivery to one receiver: in order per incident, at least once, across crashes.

Messages and thread entries are rendered when they are due. A message that reads as it was last delivered is dropped.
"""

import random
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from agent.clock import monotonic_ms, now_ms
from agent.model.findings import Incident, Status
from agent.model.matchers import Silence, find_silence
from agent.notify.base import (
    Declined,
    Gone,
    Handle,
    Message,
    NotDelivered,
    Receiver,
    Refused,
    Unanswered,
    message_of,
    plain_message_of,
)
from agent.notify.edit_limit import EditLimit
from agent.notify.policy import Why, fingerprint_of, first_notification, is_repeated, repetition, update
from agent.notify.quiet_hours import is_held_back, summarize
from agent.notify.refresh import Refresher
from agent.notify.retries import Retries
from agent.render.thread import ThreadLog, begin_thread, is_announcement, is_reminder, thread_entry
from agent.storage.database import StorageError
from agent.storage.outbox import Outbox, Row

log = structlog.get_logger(__name__)

_THREAD_LOG = msgspec.json.Decoder(ThreadLog)

PLOT_PATIENCE_MS = 300_000
"""How long an unanswered plot may hold back the entries after it."""

_TURN_S = 5.0
_DICE = random.SystemRandom()


class Backlog(NamedTuple):
    """What waits for one receiver. incidents: how many have a pending delivery.

    oldest: for how long one has been due, ms; not of what silences and quiet hours hold back.
    """

    incidents: int
    oldest: int


class Dispatcher:
    """A worker with a thread of its own that delivers what the store has queued for one receiver.

    turns: its progress, for the watchdog: up by one at least every five seconds plus the calls of one delivery.
    delivered: how many deliveries the receiver has confirmed.
    """

    def __init__(
        self,
        path: Path,
        receiver: Receiver,
        *,
        silences: Callable[[int], Sequence[Silence]] = lambda _: (),
        quiet_until: Callable[[int], int | None] = lambda _: None,
        repeat_interval: int | None = None,
        clock: Callable[[], int] = monotonic_ms,
        jitter: Callable[[], float] = _DICE.random,
    ) -> None:
        """path: the state file. clock: ms of a clock that only goes forward. jitter: draws from [0, 1).

        silences: returns those of the configuration that last at a time, ms; those of the state file come on top.
        quiet_until: returns the end of the quiet hours at a time, both ms, or None.
        repeat_interval: after how many ms an open critical incident is repeated; None: never.
        """
        self.turns = self.delivered = 0
        self._retries = Retries(receiver.name, clock, jitter)
        self._pending_since: dict[tuple[str, int], int] = {}
        self._path = path
        self._moves = 0
        self._receiver = receiver
        self._silences = silences
        self._quiet_until = quiet_until
        self._quiet_end: int | None = None
        self._may_owe_digest = True  # of an earlier run
        self._repeat_interval = repeat_interval
        self._active: list[Silence] = []
        self._shown: list[Silence] | None = None  # what messages of an earlier run show is unknown
        self._held: dict[str, int] = {}
        self._edit_limit = EditLimit(clock)
        self._clock = clock
        self._refresher = Refresher(receiver, clock)
        self._wakeup = threading.Event()
        self._closing = threading.Event()
        self._unavailable = ""
        self._thread = threading.Thread(target=self.run, name=f"dispatcher-{receiver.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def move(self, path: Path) -> None:
        """Go on with the state in this file, which may have the path of the last. From any thread."""
        self._path = path
        self._moves += 1
        self._wakeup.set()

    def wake(self) -> None:
        """Look for pending deliveries at once. From any thread."""
        self._wakeup.set()

    @property
    def backlog(self) -> Backlog:
        """What waits, since this process knows of it. From any thread."""
        pending = list(self._pending_since.items())
        overdue = [since for (incident_id, _), since in pending if incident_id not in self._held]
        return Backlog(len(pending), max(0, self._clock() - min(overdue)) if overdue else 0)

    @property
    def failed(self) -> Counter[str]:
        """How many attempts failed, by the kind of reason."""
        return self._retries.failed

    @property
    def problem(self) -> str:
        """Why nothing is delivered at present, or empty. From any thread."""
        return next(filter(None, [self._unavailable, *self._retries.problems]), "")

    def close(self, timeout: float = 2.0) -> bool:
        """Stop after the call under way; return whether that ended within `timeout` seconds.

        A call that is abandoned counts as one whose answer was lost: the next start looks it up.
        """
        self._closing.set()
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Deliver until closed, from wherever the state is."""
        outbox, moves = None, self._moves
        while not self._closing.is_set():
            self._wakeup.clear()
            due = None
            try:
                if outbox is not None and moves != self._moves:
                    outbox.close()
                    outbox = None
                if outbox is None:
                    moves = self._moves
                    outbox = Outbox(self._path, self._receiver.name)
                due = self.deliver_due(outbox)
            except Exception as error:  # without this thread nothing is delivered
                is_storage = isinstance(error, sqlite3.Error | StorageError)
                reason = str(error) if is_storage else f"internal error: {type(error).__name__}: {error}"
                if reason != self._unavailable:
                    self._unavailable = reason
                    log.exception("outbox_unavailable", receiver=self._receiver.name, reason=reason)
            else:
                self._unavailable = ""
            self.turns += 1
            if not self._closing.is_set():
                self._wakeup.wait(_TURN_S if due is None else min(_TURN_S, max(0, due - self._clock()) / 1000))
        if outbox is not None:
            outbox.close()

    def deliver_due(self, outbox: Outbox) -> int | None:
        """Try the next due delivery of each incident; return when the next is due (ms), None if none is pending.

        What is queued meanwhile is looked at before the rest: a new incident must not wait for many edits.
        """
        now = now_ms()
        active = [*self._silences(now), *outbox.silences(now)]
        if active != self._shown and self._receiver.edits:
            outbox.queue_edits()  # messages show which silence holds them back
        self._active = self._shown = active
        self._quiet_end = self._quiet_until(now)
        if self._quiet_end is not None:
            self._may_owe_digest = True
        elif self._may_owe_digest:
            digest_id = f"QUIET-{secrets.token_hex(4).upper()}"
            outbox.end_quiet_hours(lambda held: summarize(held, self._active, digest_id, now), now)
            self._may_owe_digest = False
        if self._repeat_interval is not None:
            self._repeat(outbox, self._repeat_interval, now)
        self._refresher.run(outbox)
        heads = outbox.heads()
        since = {head: at for head, at in self._pending_since.items() if head[0] not in self._held}
        self._pending_since = {head: since.get(head, self._clock()) for head in heads}
        self._retries.keep(dict(heads))
        for incident_id in self._held.keys() - dict(heads).keys():
            del self._held[incident_id]
        for incident_id, seq in heads:
            self.turns += 1
            if self._closing.is_set():
                break
            self._refresher.run(outbox)
            if self._clock() < self._retries.due(incident_id):
                continue
            try:
                self._attempt(outbox, incident_id, seq)
            except sqlite3.Error:
                raise
            except Exception as error:  # noqa: BLE001 - a defect in one message must not silence all others
                self._retries.put_off_defect(incident_id, error)
            if self._wakeup.is_set():
                return self._clock()
        due = (max(self._retries.due(incident_id), self._held.get(incident_id, 0)) for incident_id, _ in heads)
        return min(due, default=None)

    def _attempt(self, outbox: Outbox, incident_id: str, seq: int) -> None:
        row = outbox.read(seq)
        if row is not None:
            row = self._unless_held(outbox, row)
        if row is None:
            return
        try:
            row, message, covered = _compose(row, self._shown_silence(row.incident))
        except Exception as error:  # noqa: BLE001 - a defect in a sentence must not keep back the incident
            self._retries.log_defect(incident_id, error)
            message, covered = plain_message_of(row), None
        fingerprint = fingerprint_of(message.report)
        if self._is_dropped(outbox, row, fingerprint, covered):
            return
        channel = self._receiver.channel(message, row.handle)
        if not self._retries.is_channel_due(incident_id, channel) or not outbox.attempt(row, now_ms(), covered):
            return
        sent = False
        try:
            handle, is_done = self._look_up(outbox, row, message)
            if not is_done and self._is_excluded(row, handle):
                outbox.discard(row)
                return
            if not is_done and _is_outdated(row):
                outbox.confirmed(row, handle)  # not skipped: its number may be in the thread
                return
            if not is_done:
                sent = True
                handle = self._receiver.deliver(message, handle)
            is_first = message.number == 0 and row.handle is None
            is_announced = is_announcement(message.lines) if row.is_log_entry else is_first
            if message.number == 0 and row.handle is not None:
                self._edit_limit.edited(row.incident)
            shown = fingerprint if message.number == 0 else None
            outbox.confirmed(row, handle, shown, now_ms() if is_announced else None)
            self.delivered += 1
        except NotDelivered as error:
            if _is_given_up(row, error, now_ms()):
                log.warning(
                    "plot_not_delivered",
                    receiver=self._receiver.name,
                    incident=incident_id,
                    plot=message.file,
                    reason=str(error),
                )
                outbox.confirmed(row, row.handle)
                return
            self._put_off(outbox, row, channel, error, sent=sent)
            return
        self._retries.succeeded(incident_id, channel, is_first=row.handle is None)

    def _repeat(self, outbox: Outbox, interval: int, now: int) -> None:
        """Queue a repetition of each critical incident for which that is due, unless a silence lasts."""
        for incident, announced_at in outbox.announced(now - interval + 1):
            line = repetition(incident, announced_at, interval, now)
            if line and find_silence(incident, self._active) is None:
                outbox.announce(incident.id, line, now)

    def _unless_held(self, outbox: Outbox, row: Row) -> Row | None:
        """Return what to deliver of the incident now: all of it, an edit that notifies no one, or None.

        The rest waits for the end of silences and of quiet hours; an edit, until the last one is some time ago.
        """
        incident = row.incident
        is_untried = row.handle is None and row.attempted_at is None
        if row.is_report and is_untried and not self._receiver.accepts(incident):
            self._discard(outbox, row, Why.NOT_ROUTED)
            return None
        if row.is_digest or row.is_report:
            return row
        self._held.pop(incident.id, None)
        if self._is_edited_later(row):
            return None
        silence = find_silence(incident, self._active)
        if is_untried and not self._receiver.accepts(incident):
            self._discard(outbox, row, Why.NOT_ROUTED)
            return None
        is_quiet = silence is None and is_held_back(incident) and first_notification(incident).is_sent
        until = silence.ends_at if silence is not None else (self._quiet_end if is_quiet else None)
        is_in_doubt = row.handle is None and row.attempted_at is not None and row.quiet_until is None
        if until is None or (is_quiet and is_in_doubt):
            return row
        if is_quiet and is_untried and row.quiet_until != until:
            outbox.hold(incident.id, until)
        if silence is not None and is_untried and incident.status is not Status.OPEN:
            self._discard(outbox, row, Why.OVER_WHILE_SILENCED)
            return None
        if row.handle is not None and self._receiver.edits and not self._receiver.notifies(incident, row.handle):
            edit = row if row.number == 0 else outbox.message(incident.id)
            if edit is not None:
                return None if self._is_edited_later(edit) else edit
        self._held[incident.id] = self._clock() + until - now_ms()
        return None

    def _is_edited_later(self, row: Row) -> bool:
        """Return whether the row is an edit that must wait, because the last one is not long ago."""
        if row.number > 0 or row.handle is None or row.attempted_at is not None or not self._receiver.edits:
            return False
        due = self._edit_limit.due(row.incident)
        if self._clock() >= due:
            return False
        self._held[row.incident.id] = due
        return True

    def _shown_silence(self, incident: Incident) -> Silence | None:
        """Return the silence that the incident's message names."""
        is_over = incident.status is Status.CLOSED or not self._receiver.edits
        return None if is_over else find_silence(incident, self._active)

    def _discard(self, outbox: Outbox, row: Row, why: Why) -> None:
        """Drop all that is pending of an incident that was never delivered."""
        log.debug("notification_skipped", receiver=self._receiver.name, incident=row.incident.id, why=why.value)
        outbox.discard(row)

    def _is_dropped(self, outbox: Outbox, row: Row, fingerprint: str, covered: str | None) -> bool:
        """Drop a row that needs no delivery; what an attempt of unknown outcome left must be looked up first."""
        if row.attempted_at is not None:
            return False
        if row.number == 0:
            why = update(row, fingerprint)
            if why.is_sent:
                return False
            if row.handle is None:
                self._discard(outbox, row, why)
            else:
                log.debug("notification_skipped", receiver=self._receiver.name, incident=row.incident.id, why=why.value)
                outbox.skip(row)
            return True
        if row.is_log_entry and (not row.lines or _is_outdated(row)):
            outbox.skip(row, covered)
            return True
        return False

    def _look_up(self, outbox: Outbox, row: Row, message: Message) -> tuple[Handle | None, bool]:
        """Return the handle, and whether an earlier attempt of unknown outcome delivered this. Raises NotDelivered.

        If the receiver may not be searched, a duplicate is better than a loss.
        """
        handle, is_entry = row.handle, row.number > 0
        if row.attempted_at is not None and (handle is None or is_entry):
            try:
                found = self._receiver.find(message, handle, row.attempted_at)
            except Refused as error:
                log.warning("lost_answer_lookup_refused", receiver=self._receiver.name, reason=str(error))
                found = None
            if found is not None:
                outbox.found(row, found)
                return found, is_entry
        return handle, False

    def _is_excluded(self, row: Row, handle: Handle | None) -> bool:
        """Return whether nothing is to be delivered of an incident that was looked up. handle: what was found."""
        is_accepted = row.is_report or row.is_digest or self._receiver.accepts(row.incident)
        if handle is None:
            return not is_accepted or not (row.is_report or first_notification(row.incident).is_sent)
        # With the state file it is lost who had the incident; the end is sent in any case.
        is_unattempted = not handle and row.handle is None and row.covered is None
        return is_unattempted and not is_accepted and row.incident.status is Status.OPEN

    def _put_off(self, outbox: Outbox, row: Row, channel: str, error: NotDelivered, *, sent: bool) -> None:
        """Record the outcome of the attempt and when to try again.

        sent: the delivery failed, not the look-up, after which an earlier attempt is still in doubt.
        """
        if isinstance(error, Gone):
            outbox.gone(row)
        elif sent and not isinstance(error, Unanswered):
            outbox.refused(row)
        self._retries.put_off(row.incident.id, channel, error)


def close_all(dispatchers: Iterable[Dispatcher], timeout: float) -> bool:
    """Stop all after their calls under way; return whether those ended within `timeout` seconds."""
    closing = list(dispatchers)
    for dispatcher in closing:  # all at once: each of several calls may hang
        dispatcher.close(0)
    deadline = time.monotonic() + timeout
    return all(dispatcher.close(max(0.0, deadline - time.monotonic())) for dispatcher in closing)


def _compose(row: Row, silence: Silence | None) -> tuple[Row, Message, str | None]:
    """Return the row with its lines, the message, and for what is composed now what the thread covers with it.

    A first message begins its thread. An entry keeps the lines of its first attempt: it may have arrived.
    """
    if row.is_log_entry and not row.lines:
        log_so_far = ThreadLog() if row.covered is None else _THREAD_LOG.decode(row.covered)
        lines, thread_log = thread_entry(log_so_far, row.incident)
        row = row._replace(lines=lines)
        return row, message_of(row), msgspec.json.encode(thread_log).decode()
    begins = row.number == 0 and row.covered is None and row.attempted_at is None and not row.lines
    covered = msgspec.json.encode(begin_thread(row.incident)).decode() if begins else None
    return row, message_of(row, silence), covered


def _is_outdated(row: Row) -> bool:
    """Return whether the row repeats an incident that is over or acknowledged by now."""
    return row.is_log_entry and is_reminder(row.lines) and not is_repeated(row.incident)


def _is_given_up(row: Row, error: NotDelivered, now: int) -> bool:
    """Whether a plot should hold back the thread no longer: its lines were delivered before it."""
    if row.plot is None:
        return False
    if row.is_report and isinstance(error, Gone):
        return True
    tried_long = row.attempted_at is not None and now - row.attempted_at > PLOT_PATIENCE_MS
    return isinstance(error, Declined) or (isinstance(error, Unanswered) and tried_long)
