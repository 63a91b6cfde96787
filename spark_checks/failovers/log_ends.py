"""Positions on two clusters compared by time: which log end offsets the clusters had when. Plain numpy.

An offset of a log and an offset of its mirror cannot be compared. But a log end says which records had been written by
then, so two log ends at the same time differ by no more than the mirror's delay.
"""

from typing import NamedTuple

import numpy as np

from agent.rules.queries.partitions import CLOCK_SLACK_MS
from spark_checks.failovers.positions import Comparison
from spark_checks.offsets.arrays import Ints

EVIDENCE_MS = 21_600_000
"""How long before the earlier position the logs are compared to see whether one mirrors the other, and how late."""

EVIDENCE_RECORDS = 10
"""The least growth in that time that shows it."""

_USUAL = 0.98
_SHORTEST_MS, _STEP = 4_000, 1.25
"""From which delay on, and in which steps, it is examined whether a constant delay may be hidden."""

_LARGEST_SHARE = 10
"""A delay of more than a tenth of the time compared is none: the logs grow independently, or too differently."""


class LogEnds(NamedTuple):
    """Log start and end offsets over time (ms), in order; none decreases. A reading counts until the next."""

    time: Ints
    start: Ints
    end: Ints

    @classmethod
    def of(cls, at: Ints, since: Ints, start: Ints, end: Ints) -> "LogEnds":
        """Return the readings of a log, in any order. since: when the values before were last read; -1 if unknown.

        What was read before a truncation or a re-creation of the topic is left out.
        """
        order = np.argsort(at, kind="stable")
        at, since, start, end = at[order], since[order], start[order], end[order]
        # A decrease that is over after seconds is one of clocks: of two agents, or of a leader and the next.
        later = np.searchsorted(at, at + CLOCK_SLACK_MS)
        lowest = np.append(np.minimum.accumulate(end[::-1])[::-1], np.iinfo(np.int64).max)
        cuts = np.flatnonzero(lowest[later] < end)
        first = int(cuts[-1]) + 1 if cuts.size else 0
        at, since, start, end = at[first:], since[first:], start[first:], np.maximum.accumulate(end[first:])
        known = np.flatnonzero(since[1:] > at[:-1]) + 1
        time = np.concatenate((at, since[known]))
        order = np.argsort(time, kind="stable")
        parts = (np.concatenate((column, column[known - 1]))[order] for column in (start, end))
        return cls(time[order], *parts)

    def before(self, at: int) -> int | None:
        """Return the index of the last reading up to a time, if any."""
        index = int(np.searchsorted(self.time, at, "right")) - 1
        return index if index >= 0 else None

    def after(self, at: int) -> int | None:
        """Return the index of the first reading from a time on, if any."""
        index = int(np.searchsorted(self.time, at))
        return index if index < self.time.size else None

    def at(self, index: int | None) -> int | None:
        """Return the log end offset of a reading; None for none."""
        return None if index is None else int(self.end[index])

    def written_until(self, offset: int) -> int | None:
        """Return a time until which only records below the offset were written, None if none is known.

        The last such time; if the log ended at the offset, the first: by then a mirror may get records from elsewhere.
        """
        index = int(np.searchsorted(self.end, offset))
        if index < self.time.size and self.end[index] == offset:
            return int(self.time[index])
        return int(self.time[index - 1]) if index else None

    def written_from(self, offset: int) -> int | None:
        """Return a time from which on only records at or above the offset were written: the first that is known."""
        index = int(np.searchsorted(self.end, offset))
        return int(self.time[index]) if index < self.time.size else None


class Measured(NamedTuple):
    """What a move repeats or skips on a partition, in records of the target.

    repeated, skipped: at least. most_repeated, most_skipped: at most; None if unknown. read_at: by when the records
    that the group had read on the origin were written, continued_at: by when those before its position on the target
    were; ms. span: how long writing the repeated records took at least, ms. delay: what the mirror was allowed, ms.
    resume_at: an offset on the target before which the group had read everything; None if unknown. beyond: records by
    which the position on the target is beyond the log end. is_early: without a committed offset there, the group began
    before the log end.
    """

    repeated: int
    most_repeated: int | None
    skipped: int
    most_skipped: int | None
    read_at: int
    continued_at: int | None
    span: int
    delay: int
    resume_at: int | None
    beyond: int
    is_early: bool


def find_delay(origin: LogEnds, target: LogEnds, begin: int, end: int) -> int | None:
    """Return how late records were in the target at most, in [begin, end], ms; None if it is no mirror of the origin.

    The offsets of a mirror differ from those of its origin by a number that hardly changes: by the difference of the
    log ends when the mirror had caught up.
    """
    begin, end = max(begin, int(origin.time[0]), int(target.time[0])), min(end, int(origin.time[-1]))
    chosen = (target.time >= begin) & (target.time <= end)
    time, mirrored = target.time[chosen], target.end[chosen]
    if not time.size or mirrored[-1] - mirrored[0] < EVIDENCE_RECORDS:
        return None
    # A mirror is never ahead: the true difference is at least as large as any that is seen.
    differences = mirrored - origin.end[np.searchsorted(origin.time, time)]
    shift = np.max(differences)
    # What is from before the first reading came at least as late as if it had been written then.
    index = np.maximum(np.searchsorted(origin.end, mirrored - shift, "right") - 1, 0)
    longest = (end - begin) // _LARGEST_SHARE
    delay = max(int(np.max(time - origin.time[index])), _hidden_delay(origin, time, _spread(differences), longest))
    return delay if delay <= longest else None


def _hidden_delay(origin: LogEnds, time: Ints, shown: float, longest: int) -> int:
    """Return the longest constant delay that the logs do not rule out, up to `longest`, ms.

    A mirror that is always late by the same time lacks what was written in that time: more when more is written. If
    that varies by more than the difference of the log ends does (`shown`), the mirror is not so late.
    """
    growth = np.diff(origin.end[np.searchsorted(origin.time, time)])
    noise = float(np.quantile(growth, _USUAL)) if growth.size else 0.0
    hidden, delay = 0, _SHORTEST_MS
    while delay * _STEP <= longest:
        moments = time[time >= time[0] + delay]
        last, first = (np.searchsorted(origin.time, at, "right") - 1 for at in (moments, moments - delay))
        if not moments.size or _spread(origin.end[last] - origin.end[first]) <= shown + noise:
            hidden = int(delay * _STEP)
        delay = int(delay * _STEP)
    return hidden


def _spread(values: Ints) -> float:
    """Return by how much values vary, without the few that a gap in the readings distorts."""
    low, high = np.quantile(values, (1 - _USUAL, _USUAL))
    return float(high - low)


def measure(origin: LogEnds, target: LogEnds, compared: Comparison, least_delay: int) -> Measured | None:
    """Return what a move repeats and skips; None if the logs do not show it. least_delay: allowed in any case, ms."""
    move, left, began = compared
    if not origin.time.size or not target.time.size:
        return None
    # The group had read whatever was written until `done`, and nothing that was written from `ahead` on.
    done, ahead = origin.written_until(left.low), origin.written_from(left.high)
    read_at = ahead = left.at if ahead is None else min(ahead, left.at)
    if move.unseen:
        ahead += max(move.joined - left.at, 0)  # as if it had read on, as fast as records were written
    found = _find_delay(origin, target, min(ahead if done is None else done, ahead), move.joined)
    if found is None:
        return None
    delay = max(found, least_delay)
    low_end = None if done is None else target.at(target.before(done - delay))
    high_end = target.at(target.after(ahead + delay))
    low, high = began.low, began.high
    before_join = target.at(target.before(move.absent_at))
    is_early = low is None and before_join is not None and before_join > high
    if low is None and not is_early:
        low = before_join  # it began at the log end, or reached it before its first commit
    at_join = target.before(move.joined)
    log_start = 0 if at_join is None else int(target.start[at_join])
    repeated = 0 if low_end is None else max(low_end - max(high, log_start), 0)
    reached = target.written_from(high)
    last_reading = int(target.time[-1])
    return Measured(
        repeated=repeated,
        most_repeated=None if high_end is None or low is None else max(high_end - max(low, log_start), 0),
        skipped=0 if high_end is None or low is None else max(low - max(high_end, log_start), 0),
        most_skipped=None if low_end is None else max(high - max(low_end, log_start), 0),
        read_at=read_at,
        continued_at=reached,
        span=max(done - delay - reached, 0) if repeated and done is not None and reached is not None else 0,
        delay=delay,
        resume_at=None if low_end is None else max(low_end, log_start),
        beyond=max(high - int(target.end[-1]), 0) if move.is_projected and last_reading >= began.at else 0,
        is_early=is_early,
    )


def _find_delay(origin: LogEnds, target: LogEnds, first: int, joined: int) -> int | None:
    """Return the delay of what was mirrored from before the earlier position until the move."""
    found = find_delay(origin, target, first - EVIDENCE_MS, joined)
    if found is not None:
        return found
    # Producers may have moved long before the group: what they wrote to the target since does not come from the origin.
    last = origin.before(joined)
    return (
        None
        if last is None
        else find_delay(
            origin, target, first - EVIDENCE_MS, int(origin.time[np.searchsorted(origin.end, origin.end[last])])
        )
    )
