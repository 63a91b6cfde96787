"""What a fall or a leap of a committed offset was, by all that the journal tells around it. No file is read here."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from agent.engine.facts import LATENESS_MS
from agent.model.findings import Records
from agent.model.observations import PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS, find_leader_changes, is_recreated
from spark_checks.history.clock import Clock
from spark_checks.history.context import Place, Reading, Truncation
from spark_checks.history.events import Loss, Spell, States
from spark_checks.history.keys import Key
from spark_checks.history.moves import LEAP, MAX_RATE
from spark_checks.history.stitch import Hit

BEFORE_MS, AFTER_MS = 600_000, 60_000
"""How long before and after a fall or a leap its causes are looked for."""

AT, SOON, BEFORE = range(3)
"""Of which moment a reading of the log is wanted: of the commit, of soon after it, of when it can have been reset.

After BEFORE come the moments of the commits before it, newest first.
"""

BASELINE_MS = 660_000
"""How far back the last reading of an unchanged log may lie: a heartbeat and what may come late."""


class Event(NamedTuple):
    """A hit with its key and times as the journal has them. began: the earliest moment at which it can have
    happened.
    """

    key: Key
    hit: Hit
    at: int
    began: int
    before_at: int

    @classmethod
    def of(cls, key: Key, hit: Hit, clock: Clock) -> "Event":
        """The hit, its times told by that clock again."""
        at, before = clock.told(hit.position, hit.time), clock.told(hit.before_position, hit.before_time)
        return cls(key, hit, at, before if hit.since is None else hit.since, before)

    @property
    def back(self) -> bool:
        """Whether it is a fall."""
        return self.hit.offset < self.hit.before_offset

    def places(self, number: int) -> list[Place]:
        """The moments of which the log is wanted, numbered from `number` times ten."""
        moments = {AT: self.at, SOON: self.at + LATENESS_MS}
        if not self.back:
            moments[BEFORE] = max(self.before_at, (self.hit.since or self.at) - CLOCK_SLACK_MS)
            times = (self.hit.before_time, *(time for time, _ in self.hit.earlier))
            moments |= {BEFORE + 1 + index: time for index, time in enumerate(times)}
        return [
            Place(number * 10 + moment, self.key.topic, self.key.partition, at - BASELINE_MS, at)
            for moment, at in moments.items()
        ]


class Verdict(NamedTuple):
    """What an event was. labels: `rewind` or `jump` first."""

    event: Event
    labels: tuple[str, ...]
    records: Records
    losses: tuple[Loss, ...] = ()
    moves: tuple[tuple[PartitionState, PartitionState], ...] = ()
    truncations: tuple[Truncation, ...] = ()
    hidden: tuple[Spell, ...] = ()


def judge_fall(event: Event, log: dict[int, Reading], least: int) -> tuple[list[str], Records]:
    """The labels of a rewind and its records."""
    old, new = event.hit.before_offset, event.hit.offset
    labels = ["rewind"]
    reading = log.get(AT) or log.get(SOON)
    # A poll sees what was committed since: near the start counts as the start.
    if reading is not None and new - reading.log_start <= max(least, (old - reading.log_start) * 0.05):
        labels.append("to_earliest")
    if event.hit.forgotten:
        labels.append("after_expiry")
    return labels, Records(reread=old - new)


def judge_leap(event: Event, log: dict[int, Reading], least: int) -> tuple[list[str], Records] | None:
    """The labels of a jump and its records; None where all of it may have been read."""
    hit = event.hit
    old, new = hit.before_offset, hit.offset
    start = log[AT].log_start if AT in log else 0
    passed = max(start - old, 0)
    skipped = max(new - max(old, start), 0)
    to_latest = BEFORE in log and old < log[BEFORE].log_end <= new
    fast = (new - old) * 1000 > MAX_RATE * max(hit.time - hit.before_time, 1000)
    came_back = hit.forgotten and to_latest and skipped >= least
    overrun = passed >= least
    if not (came_back or overrun or fast or (to_latest and _surged(hit, log, least))):
        return None
    # What retention left may have been read from the log's start on, unless it went on at the log's end.
    read_on = overrun and not (to_latest or fast)
    labels = {"jump": True, "retention": passed > 0, "to_latest": to_latest, "after_expiry": hit.forgotten}
    return [label for label, holds in labels.items() if holds], Records(lost=passed, skipped=0 if read_on else skipped)


def _surged(hit: Hit, log: dict[int, Reading], least: int) -> bool:
    """Whether a group that lagged in all its last moves caught up LEAP times faster than in any of them."""
    series = [(hit.before_time, hit.before_offset), *hit.earlier]
    ends = [log.get(BEFORE + 1 + index) for index in range(len(series))]
    if len(series) <= 3 or any(
        end is None or end.log_end - offset < least for end, (_, offset) in zip(ends, series, strict=True)
    ):
        return False
    pace = (hit.offset - hit.before_offset) * 1000 / max(hit.time - hit.before_time, 1000)
    paces = [(new - old) * 1000 / max(late - early, 1) for (late, new), (early, old) in pairwise(series)]
    return pace > LEAP * max(paces)


class Around(NamedTuple):
    """All that the journal tells around events. log: readings by ten times the event's number plus the moment."""

    cluster: str
    log: dict[int, Reading]
    states: States
    losses: Sequence[Loss]
    truncations: dict[tuple[str, int], list[Truncation]]
    spells: Sequence[Spell]
    clock: Clock

    def judge(self, number: int, event: Event, least: int) -> Verdict | None:
        """What the event was; None where it was nothing, as across a topic's deletion and re-creation."""
        partition = (self.cluster, event.key.topic, event.key.partition)
        if is_recreated(self.states, partition, event.before_at, event.at):
            return None
        log = {moment: self.log[number * 10 + moment] for moment in range(10) if number * 10 + moment in self.log}
        judged = judge_fall(event, log, least) if event.back else judge_leap(event, log, least)
        if judged is None:
            return None
        labels, records = judged
        begin, end = event.began - BEFORE_MS, event.at + AFTER_MS
        moves = [
            (old, new)
            for old, new in find_leader_changes(self.states.history(PartitionState, *partition))
            if begin <= new.at <= end
        ]
        brokers = {one for old, new in moves for one in (*old.replicas, *new.replicas)}
        held = self.states.history(PartitionState, *partition).as_of(event.at)
        brokers |= set(held.replicas) if held is not None else set()
        lost = [one for one in self.losses if begin <= one.at <= end and one.broker in brokers]
        cut = [
            one
            for one in self.truncations.get((event.key.topic, event.key.partition), [])
            if begin <= one.at <= end
            and self._certain(one)
            and not is_recreated(self.states, partition, one.since, one.at)
        ]
        hidden = [one for one in self.spells if one.hides(event.key.group, event.began, event.at)]
        # What comes late across a step of the clock cannot be told from what the new clock dates.
        set_back = any(
            (event.hit.before_position < step.after and step.before < event.hit.position)
            or 0 <= event.hit.time - step.old <= LATENESS_MS
            for step in self.clock.steps
        )
        more = {
            "after_session_loss": any(one.at <= event.at for one in lost),
            "after_leader_move": any(new.start <= event.at for _, new in moves),
            "after_truncation": any(one.at <= event.at for one in cut),
            "over_a_gap": bool(hidden),
            "clock_set_back": set_back,
        }
        labels += [label for label, holds in more.items() if holds]
        return Verdict(event, tuple(labels), records, tuple(lost), tuple(moves), tuple(cut), tuple(hidden))

    def _certain(self, cut: Truncation) -> bool:
        """Whether it is no mere confusion of readings dated before and after a step of the clock."""
        return all(cut.at <= step.new or cut.since >= step.old for step in self.clock.steps)
