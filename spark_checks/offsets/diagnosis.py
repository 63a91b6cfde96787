"""What a rewind or jump was, from what the journal says around it: labels, records, possible causes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from agent.engine.history import LATENESS_MS
from agent.model.findings import Records
from agent.model.observations.kafka import PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS, find_leader_changes, is_recreated
from spark_checks.journal.files import JournalWindow
from spark_checks.offsets.arrays import MAX_RATE, SURGE, Move
from spark_checks.offsets.context import (
    Place,
    Reading,
    SessionLoss,
    States,
    Truncation,
    read_log_offsets,
    read_session_losses,
    read_states,
    read_truncations,
)
from spark_checks.offsets.coverage import Clock, Gap
from spark_checks.offsets.keys import Key

BEFORE_MS, AFTER_MS = 600_000, 60_000
"""How long before and after a move its causes are searched."""

AT, SOON, BEFORE = range(3)
"""When the log is read: at the commit, soon after it, and when the offset can have been reset.

After BEFORE come the moments of the commits before it, newest first.
"""

BASELINE_MS = 660_000
"""How old the last reading of an unchanged log may be: a heartbeat and the allowed lateness."""


class Event(NamedTuple):
    """A move with its key and its times in the journal, ms. began: the earliest time it can have happened."""

    key: Key
    move: Move
    at: int
    began: int
    before_at: int

    @classmethod
    def of(cls, key: Key, move: Move, clock: Clock) -> "Event":
        """Return the event of a move, with the times that the clock showed."""
        at = clock.original_time(move.position, move.time)
        before = clock.original_time(move.before_position, move.before_time)
        return cls(key, move, at, before if move.since is None else move.since, before)

    @property
    def is_rewind(self) -> bool:
        """Return whether the offset moved backwards."""
        return self.move.offset < self.move.before_offset

    def places(self, number: int) -> list[Place]:
        """Return where and when the log must be read, numbered from `number` times ten."""
        moments = {AT: self.at, SOON: self.at + LATENESS_MS}
        if not self.is_rewind:
            moments[BEFORE] = max(self.before_at, (self.move.since or self.at) - CLOCK_SLACK_MS)
            times = (self.move.before_time, *(time for time, _ in self.move.earlier))
            moments |= {BEFORE + 1 + index: time for index, time in enumerate(times)}
        return [
            Place(number * 10 + moment, self.key.topic, self.key.partition, at - BASELINE_MS, at)
            for moment, at in moments.items()
        ]


class Diagnosis(NamedTuple):
    """A classified rewind or jump with what happened around it. labels: `rewind` or `jump` first.

    leader_changes: (old state, new state). gaps: those that hide when it happened.
    """

    event: Event
    labels: tuple[str, ...]
    records: Records
    session_losses: tuple[SessionLoss, ...] = ()
    leader_changes: tuple[tuple[PartitionState, PartitionState], ...] = ()
    truncations: tuple[Truncation, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def badness(self) -> tuple[bool, int]:
        """Return a sort key: rewinds after jumps, then by records."""
        return (self.event.is_rewind, self.records.reread + self.records.lost + self.records.skipped)


def diagnose(
    window: JournalWindow, events: Sequence[Event], gaps: Sequence[Gap], clock: Clock, min_records: int
) -> list[Diagnosis]:
    """Classify events and return them oldest first, without those that turn out to be harmless."""
    ordered = sorted(events, key=lambda event: (event.at, event.key))
    if not ordered:
        return []
    places = [
        Place(number, event.key.topic, event.key.partition, event.began - BEFORE_MS - BASELINE_MS, event.at + AFTER_MS)
        for number, event in enumerate(ordered)
    ]
    since_before = [
        place._replace(begin=min(place.begin, event.before_at - BASELINE_MS))
        for place, event in zip(places, ordered, strict=True)
    ]
    context = Context(
        cluster=window.cluster,
        log=read_log_offsets(window, [p for number, event in enumerate(ordered) for p in event.places(number)]),
        states=read_states(window, since_before),
        session_losses=read_session_losses(window),
        truncations=read_truncations(window, places),
        gaps=gaps,
        clock=clock,
    )
    diagnoses = (context.diagnose(number, event, min_records) for number, event in enumerate(ordered))
    return [diagnosis for diagnosis in diagnoses if diagnosis is not None]


class Context(NamedTuple):
    """What the journal says around events. log: by ten times the event's number plus the moment."""

    cluster: str
    log: dict[int, Reading]
    states: States
    session_losses: Sequence[SessionLoss]
    truncations: dict[tuple[str, int], list[Truncation]]
    gaps: Sequence[Gap]
    clock: Clock

    def diagnose(self, number: int, event: Event, min_records: int) -> Diagnosis | None:
        """Classify an event; return None for a harmless one, such as a topic's re-creation."""
        partition = (self.cluster, event.key.topic, event.key.partition)
        if is_recreated(self.states, partition, event.before_at, event.at):
            return None
        log = {moment: self.log[number * 10 + moment] for moment in range(10) if number * 10 + moment in self.log}
        classified = (classify_rewind if event.is_rewind else classify_jump)(event, log, min_records)
        if classified is None:
            return None
        labels, records = classified
        begin, end = event.began - BEFORE_MS, event.at + AFTER_MS
        states = self.states.history(PartitionState, *partition)
        changes = [(old, new) for old, new in find_leader_changes(states) if begin <= new.at <= end]
        brokers = {broker for old, new in changes for broker in (*old.replicas, *new.replicas)}
        state = states.as_of(event.at)
        brokers |= set(state.replicas) if state is not None else set()
        losses = [loss for loss in self.session_losses if begin <= loss.at <= end and loss.broker in brokers]
        truncations = [
            truncation
            for truncation in self.truncations.get((event.key.topic, event.key.partition), [])
            if begin <= truncation.at <= end
            and self._is_certain(truncation)
            and not is_recreated(self.states, partition, truncation.since, truncation.at)
        ]
        gaps = [gap for gap in self.gaps if gap.may_hide(event.key.group, event.began, event.at)]
        # What comes late across a clock step looks like what the new clock dates.
        clock_set_back = any(
            (event.move.before_position < step.after and step.before < event.move.position)
            or 0 <= event.move.time - step.old <= LATENESS_MS
            for step in self.clock.steps
        )
        more = {
            "after_session_loss": any(loss.at <= event.at for loss in losses),
            "after_leader_move": any(new.start <= event.at for _, new in changes),
            "after_truncation": any(truncation.at <= event.at for truncation in truncations),
            "over_a_gap": bool(gaps),
            "clock_set_back": clock_set_back,
        }
        labels += [label for label, holds in more.items() if holds]
        return Diagnosis(event, tuple(labels), records, tuple(losses), tuple(changes), tuple(truncations), tuple(gaps))

    def _is_certain(self, truncation: Truncation) -> bool:
        # Readings dated before and after a clock step can look like a truncation.
        return all(truncation.at <= step.new or truncation.since >= step.old for step in self.clock.steps)


def classify_rewind(event: Event, log: dict[int, Reading], min_records: int) -> tuple[list[str], Records]:
    """Return the labels and records of a rewind."""
    old, new = event.move.before_offset, event.move.offset
    labels = ["rewind"]
    reading = log.get(AT) or log.get(SOON)
    # A poll sees what was committed since the reset: near the start counts as the start.
    if reading is not None and new - reading.log_start <= max(min_records, (old - reading.log_start) * 0.05):
        labels.append("to_earliest")
    if event.move.expired:
        labels.append("after_expiry")
    return labels, Records(reread=old - new)


def classify_jump(event: Event, log: dict[int, Reading], min_records: int) -> tuple[list[str], Records] | None:
    """Return the labels and records of a jump, or None if all of its records may have been read."""
    move = event.move
    old, new = move.before_offset, move.offset
    start = log[AT].log_start if AT in log else 0
    deleted = max(start - old, 0)
    skipped = max(new - max(old, start), 0)
    to_latest = BEFORE in log and old < log[BEFORE].log_end <= new
    fast = (new - old) * 1000 > MAX_RATE * max(move.time - move.before_time, 1000)
    came_back = move.expired and to_latest and skipped >= min_records
    overrun = deleted >= min_records
    if not (came_back or overrun or fast or (to_latest and _is_surge(move, log, min_records))):
        return None
    # What retention left may have been read from the log start on, unless the group went on at the log end.
    read_on = overrun and not (to_latest or fast)
    labels = {"jump": True, "retention": deleted > 0, "to_latest": to_latest, "after_expiry": move.expired}
    return [label for label, holds in labels.items() if holds], Records(lost=deleted, skipped=0 if read_on else skipped)


def _is_surge(move: Move, log: dict[int, Reading], min_records: int) -> bool:
    """Return whether a group that lagged in its last moves caught up SURGE times faster than in any of them."""
    series = [(move.before_time, move.before_offset), *move.earlier]
    readings = [log.get(BEFORE + 1 + index) for index in range(len(series))]
    if len(series) <= 3 or any(
        reading is None or reading.log_end - offset < min_records
        for reading, (_, offset) in zip(readings, series, strict=True)
    ):
        return False
    pace = (move.offset - move.before_offset) * 1000 / max(move.time - move.before_time, 1000)
    paces = [(new - old) * 1000 / max(late - early, 1) for (late, new), (early, old) in pairwise(series)]
    return pace > SURGE * max(paces)
