"""Queries about rewinds: where a reader was reset to, and since when.

`auto.offset.reset` knows earliest, latest, none and by_duration (KIP-1106). A reset to the divergence point (KIP-320)
needs brokers of 2.1 or later and a truncated log, and ends at the truncation point.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, History
from agent.model.observations.flink import Position
from agent.model.observations.kafka import ClusterSettings, Commit, GroupState, LogOffsets, PartitionState
from agent.model.observations.logs import LogLine, whole_number
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    Truncation,
    find_truncations,
    find_unclean_elections,
    leader_of,
    may_have_happened_in,
)
from agent.rules.queries.positions import drop_foreign, is_foreign_offset, log_end

Offset: TypeAlias = Commit | Position

_TRUNCATION_DETECTED = "truncation_detected"
_CAUSES = ("fetch_offset_out_of_range", _TRUNCATION_DETECTED)
"""The patterns of lines that say why a reader is reset: out of range, auto.offset.reset decides where to."""

_READERS = ("consumer", "librdkafka")
"""The components that log where a reader is reset to."""

_PACE_MS = 3_000
"""Over how long a reader's pace is measured, unless it catches up before."""

_SECOND_MS = 1_000
"""Over how long a pace is measured at least: commits may come in bunches."""

READINGS = 5
"""From how many readings a pace is estimated."""

_ANSWERED_MS = 2_000
"""A reading is dated by when its request was sent: it may show what the log became until the broker answered."""

_SHARE = 4
"""A reader that may have been reset to the log start was, if it is within this share of what it had read."""

_CACHED_MS = 60_000
"""Flink never reports an older position; 40 s were seen after an idle time."""

_PREDICTABLE_MS = 86_400_000

_DETECTS_TRUNCATION = (2, 1)
"""The first Kafka version whose consumers can ask for the divergence point (KIP-320)."""


class Move(NamedTuple):
    """A reader's move backwards: the highest reading before it, and the one that shows it."""

    before: Offset
    after: Offset

    @property
    def partition(self) -> tuple[str, str, int]:
        """(cluster, topic, partition)."""
        return self.after.cluster, self.after.topic, self.after.partition


class Pace(NamedTuple):
    """How fast a reader reads on after a rewind, in records per second, and when it will have caught up, ms."""

    rate: float
    caught_up_at: int


class _Target(NamedTuple):
    """The lowest and the highest offset that a reader may have gone to.

    cause: the pattern of the line in the reader's log that says why; None if no line does.
    """

    low: float
    high: int
    cause: str | None = None


class Rhythm(NamedTuple):
    """The last reading before a move, the reader's highest pace until then in records per ms, the interval of readings.

    A batch job's average pace would be that of its pauses.
    """

    last: Offset
    pace: float
    interval: int


class _LoggedReset(NamedTuple):
    """A reset in the reader's log. cause: as in `_Target`. to: where it went, as written; None if no line says so."""

    line: LogLine
    cause: str | None
    to: str | None


def find_reset_label(
    facts: Facts,
    move: Move,
    min_records: int,
    *,
    log_start: int | None,
    truncation: Truncation | None,
) -> str | None:
    """Return `to_earliest` or `to_divergence` if the evidence decides where the reader was reset to, else None.

    log_start: at the move. truncation: that may explain it.
    """
    is_out_of_range = truncation is not None and not _detects_truncation(facts, move.after)
    since = truncation.before.at if truncation is not None and is_out_of_range else None
    target = _find_target(facts, move, min_records, log_start, since)
    if target.cause == _TRUNCATION_DETECTED:
        return "to_divergence"
    old = move.before.offset or 0
    may_be_earliest = log_start is not None and target.low <= log_start and target.high - log_start <= old - target.high
    may_be_divergence = (
        truncation is not None
        and target.cause is None
        and not is_out_of_range
        and (target.low <= truncation.after.log_end or _may_have_followed(facts, move, truncation))
        and target.high >= _lowest_divergence(facts, move, truncation, min_records)
    )
    if may_be_earliest == may_be_divergence:
        return None
    if may_be_divergence:
        return "to_divergence"
    # From further away, a reader that fast may have come from anywhere, unless auto.offset.reset decided where from.
    is_near = _SHARE * (target.high - (log_start or 0)) <= old - (log_start or 0)
    return "to_earliest" if is_near or is_out_of_range else None


def find_truncation(facts: Facts, move: Move) -> Truncation | None:
    """Return the truncation of the log, to the lowest offset, that the move may be due to, or None.

    A reader may commit what it had fetched until it finds itself out of range: then it has read what was truncated
    before its highest reading.
    """
    before, after = move
    truncations = (
        truncation
        for truncation in find_truncations(facts, move.partition)
        if truncation.after.log_end < (before.offset or 0)
        and truncation.after.at <= after.at + LATENESS_MS
        and truncation.before.at <= after.at
        and (before.at <= truncation.after.at or _was_beyond_end(facts, before, truncation.after.at))
    )
    return min(truncations, key=lambda truncation: truncation.after.log_end, default=None)


def _was_beyond_end(facts: Facts, reading: Offset, begin: int) -> bool:
    """Return whether the log is known not to have reached the reader's offset from `begin` until after the reading."""
    log = facts.history(LogOffsets, reading.cluster, reading.topic, reading.partition)
    known = [*log.between(begin - 1, reading.at), *log.after(reading.at)[:1]]
    return log.confirmed > reading.at and all(offsets.log_end < (reading.offset or 0) for offsets in known)


def find_later(facts: Facts, move: Move) -> Offset | None:
    """Return the reading some seconds after a move that shows the reader's pace, or None.

    If the reader is back where it was before that, the last reading below.
    """
    later: Offset | None = None
    for state in facts.history_of(move.after).between(move.after.at, move.after.at + LATENESS_MS):
        if state.offset is None or not (move.after.offset or 0) < state.offset < (move.before.offset or 0):
            return later
        later = state
        if state.at >= move.after.at + _PACE_MS:
            return later
    return None


# Whether and when the reader moved


def find_pace(facts: Facts, move: Move) -> Pace | None:
    """Return the pace of the first seconds after a rewind; None if it is unknown or does not catch up within a day."""
    later, after, low = find_later(facts, move), move.after, move.after.offset or 0
    if later is None:
        return None
    rate = ((later.offset or 0) - low) * 1000 / (later.at - after.at)
    remaining_ms = round(((move.before.offset or 0) - low) * 1000 / rate)
    return Pace(rate, after.at + remaining_ms) if remaining_ms < _PREDICTABLE_MS else None


def confirmed_at(move: Move, committed: Iterable[Move], readings: History[Commit] | History[Position]) -> int | None:
    """Return when it is certain that a position moved back, or None if it may be an old one from a cache.

    committed: the moves backwards of offsets that were committed in the partition at that time.
    """
    before, after = move
    following = next((reading for reading in readings if reading.at > after.at), None)
    older = readings.as_of(after.at - _CACHED_MS)
    times = [max(commit.after.seen, after.seen) for commit in committed]
    if following is not None and (following.offset or 0) < (before.offset or 0):
        times.append(following.seen)
    if older is not None and (after.offset or 0) < (older.offset or 0):
        times.append(after.seen)
    return min(times, default=None)


def find_decreases(history: Iterable[Offset], least: Callable[[Offset], int]) -> Iterator[tuple[Offset, Offset]]:
    """Yield (the highest before, the one after) of decreases, oldest first. Small steps add up.

    least: the smallest decrease that counts, by the highest reading before.
    """
    highest: Offset | None = None
    for state in history:
        if state.offset is None:
            continue
        if highest is None or state.offset >= (highest.offset or 0):
            highest = state
        elif (highest.offset or 0) - state.offset >= least(highest):
            yield highest, state
            highest = state


def find_own_decreases(
    facts: Facts, history: History[Commit] | History[Position], least: Callable[[Offset], int]
) -> list[tuple[Offset, Offset]]:
    """Return the decreases as `find_decreases` does, leaving out commits of offsets that the log never had."""
    decreases = list(find_decreases(history, least))
    if any(isinstance(before, Commit) and is_foreign_offset(facts, before) for before, _ in decreases):
        own = drop_foreign(facts, (offset for offset in history if isinstance(offset, Commit)))
        return list(find_decreases(own, least))
    return decreases


def find_following(facts: Facts, move: Move) -> Offset | None:
    """Return the next reading within a minute, or None."""
    later = facts.history_of(move.after).between(move.after.at, move.after.at + LATENESS_MS)
    return next((state for state in later if state.offset is not None), None)


def find_return(facts: Facts, after: Commit) -> int | None:
    """Return when the group was last known to be without members before the commit, or its `since` if that is later.

    That Kafka has forgotten an offset is observed once, maybe days before the group commits again.
    """
    states = facts.history(GroupState, after.cluster, after.group)
    returns = [
        state.start
        for idle, state in pairwise(states)
        if not idle.members and state.members and state.start <= after.at
    ]
    return None if after.since is None else max([after.since, *returns])


# Where the reader went


def _find_target(facts: Facts, move: Move, min_records: int, log_start: int | None, since: int | None) -> _Target:
    """Return where the reader may have gone: as its log says, else by its pace since, else within `min_records`.

    since: when it may have gone at the earliest, ms, if that is known: its commits may have failed for a while after.
    """
    after, new = move.after, move.after.offset or 0
    rhythm = find_rhythm(facts, move)
    begin = _find_begin(facts, move, rhythm)
    if since is not None:
        begin = min(begin, max(since, rhythm.last.start))
    logged = _find_logged_reset(facts, move, begin)
    cause = None if logged is None else logged.cause
    if logged is not None:
        begin = min(max(begin, logged.line.at), after.at)
        named = {"BEGINNING": 0, "END": move.before.offset}.get(logged.to or "", whole_number(logged.to))
        if named is not None:
            return _Target(named, named, cause)
    read = rhythm.pace * (after.at - begin)
    later = find_later(facts, move)
    if later is None:
        # A batch job that commits every few minutes never shows the pace at which it reads.
        is_slow = rhythm.interval > LATENESS_MS and log_start is not None
        near = ((move.before.offset or 0) - (log_start or 0)) / 20 if is_slow else min_records
        return _Target(new - max(read, near, min_records), new, cause)
    pace = ((later.offset or 0) - new) / (later.at - after.at)
    return _Target(new - max(read, pace * (after.at - begin)), new, cause)


def _find_begin(facts: Facts, move: Move, rhythm: Rhythm) -> int:
    """Return since when the reader may have moved, ms."""
    after, begin = move.after, move.after.start
    if isinstance(after, Commit):  # it shows the reader up to the interval between two commits later
        returned_at = find_return(facts, after) or begin
        begin = returned_at if returned_at > begin else max(rhythm.last.start, begin - rhythm.interval)
    return begin


def find_rhythm(facts: Facts, move: Move) -> Rhythm:
    """Return the reader's rhythm before the move; its interval from the next reading, if there is one soon."""
    history = facts.history_of(move.after)
    earlier = [state for state in history.before(move.after.at, READINGS) if state.offset is not None] or [move.before]
    first, last = earlier[0], earlier[-1]
    took = last.at - first.at
    paces = (
        ((later.offset or 0) - (state.offset or 0)) / max(later.at - max(state.at, later.since or 0), _SECOND_MS)
        for state, later in pairwise(earlier)
    )
    following = find_following(facts, move)
    interval = took / max(len(earlier) - 1, 1) if following is None else following.at - move.after.at
    return Rhythm(last, max([0, *paces]), round(interval))


def is_logged_as_reset(facts: Facts, move: Move) -> bool:
    """Return whether the reader's log says why it was reset: out of range, or beyond the end of a truncated log."""
    logged = _find_logged_reset(facts, move, _find_begin(facts, move, find_rhythm(facts, move)))
    return logged is not None and logged.cause is not None


def _find_logged_reset(facts: Facts, move: Move, begin: int) -> _LoggedReset | None:
    """Return the last reset since `begin` in the reader's log, or None."""
    cluster, topic, partition = move.partition
    lines = (
        line
        for history in facts.histories(LogLine, cluster=cluster, topic=topic, partition=partition)
        for line in history
        if line.component in _READERS and (line.pattern in _CAUSES or "to" in line.values)
        if begin - CLOCK_SLACK_MS <= line.at <= move.after.at + CLOCK_SLACK_MS
    )
    reset: _LoggedReset | None = None
    for line in sorted(lines, key=attrgetter("at", "log", "pattern")):
        to = line.values.get("to")
        is_continued = reset is not None and _origin(line) == _origin(reset.line) and "offset" not in line.values
        if reset is not None and is_continued:
            reset = reset._replace(to=to)
        elif _is_of_reader(line, move):
            reset = _LoggedReset(line, line.pattern if line.pattern in _CAUSES else None, to)
    return reset


def _origin(line: LogLine) -> tuple[str, str | None]:
    return line.log, line.values.get("group")


def _is_of_reader(line: LogLine, move: Move) -> bool:
    """Return whether the reader wrote the line: by its group, else by an offset that it had reached."""
    group = line.values.get("group")
    if group is not None and isinstance(move.after, Commit):
        return group == move.after.group
    offset = whole_number(line.values.get("offset"))
    return offset is not None and offset >= (move.before.offset or 0)


# Where the logs diverge


def _detects_truncation(facts: Facts, after: Offset) -> bool:
    """Return whether consumers of the cluster may detect truncations, as far as its version is known."""
    settings = facts.history(ClusterSettings, after.cluster).as_of(after.at + LATENESS_MS)
    if settings is None or settings.version is None:
        return True
    numbers = [whole_number(part) or 0 for part in settings.version.split(".")]
    return tuple(numbers) >= _DETECTS_TRUNCATION


def _may_have_followed(facts: Facts, move: Move, truncation: Truncation) -> bool:
    """Return whether the reader may have read all that was written since the truncation, however slow it was before.

    At the log end a reader is as fast as what is written, and after an election producers write what has waited. One
    that appears above the truncation point within seconds, nearer to the log end than to it, has kept up since.
    """
    after, cut = move.after, truncation.after
    new, end = after.offset or 0, log_end(facts.history(LogOffsets, *move.partition), after.at)
    return after.start - CLOCK_SLACK_MS <= cut.at <= after.at and cut.log_end <= new and end - new <= new - cut.log_end


def _lowest_divergence(facts: Facts, move: Move, truncation: Truncation, min_records: int) -> float:
    """Return an offset that the truncation point cannot be below.

    A reading shows where the log ends after it has grown again. And a replica in the ISR has everything below the high
    watermark, so the new leader has what was below it when it was last seen in the ISR.
    """
    readings, end = facts.history(LogOffsets, *move.partition), truncation.after.log_end
    known = [*readings.before(truncation.before.at, READINGS - 1), truncation.before]
    pace = (known[-1].log_end - known[0].log_end) / max(known[-1].at - known[0].at, 1)
    lowest = end - max(min_records, pace * (truncation.after.at - truncation.before.at))
    history = facts.history(PartitionState, *move.partition)
    elections = (
        election.after
        for election in find_unclean_elections(facts, move.partition)
        if may_have_happened_in(election.after, truncation.before.at, truncation.after.at)
    )
    # The old leader may be elected again within seconds.
    elected = next(elections, history.as_of(truncation.after.at))
    for state, following in pairwise(history):
        if elected is None or following.at > elected.at or leader_of(elected) not in state.isr:
            continue
        if leader_of(elected) not in following.isr:
            shared = readings.as_of(following.start - _ANSWERED_MS)
            lowest = max(lowest, min(shared.log_end, end)) if shared is not None else lowest
    return lowest
