"""Queries about committed offsets as positions: which ones the log can have had, which records were read before."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from agent.engine.condition_rule import intervals_where
from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, History
from agent.engine.ordinary import CommitProgress
from agent.engine.partition_columns import NEVER
from agent.engine.suspensions import suspensions
from agent.model.batches import Flags
from agent.model.observations.base import Availability, Unavailable
from agent.model.observations.flink import Position
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS, find_truncations, is_recreated, may_have_happened_in

_BURST = 10
"""How many times faster than ever observed a log may have grown between two readings."""

_SLOW_GROWTH = 1.0
"""Records per ms that any log may grow by, however slow its observed growth."""

_NEAR_END = round(_SLOW_GROWTH * CLOCK_SLACK_MS)
"""Records beyond the last known log end that any log may have gained since."""

_SAME_POLL_MS = 500
"""How far apart one poll reads the offsets of a group and those of the log."""


def drop_foreign(facts: Facts, commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yield the commits of offsets that the log may have had."""
    return (commit for commit in commits if not is_foreign_offset(facts, commit))


def is_foreign_offset(facts: Facts, commit: Commit) -> bool:
    """Return whether the log never had the committed offset: no reader can have reached it.

    An application that mixes up two partitions commits such offsets. Unknown, thus False, if the log end offset was not
    read before the commit, or could not be read after it. A log end that does not change in the next minute, or until
    it can no longer be read, stands still.
    """
    if not is_beyond_usual_growth(facts, commit):
        return False
    partition = (commit.cluster, commit.topic, commit.partition)
    later = facts.history(LogOffsets, *partition).between(commit.at, commit.at + LATENESS_MS)
    if any(reading.log_end >= (commit.offset or 0) for reading in later):
        return False
    unread_since = _unread_since(facts, partition, commit.at + LATENESS_MS)
    if not later and unread_since is not None and unread_since <= commit.at + _SAME_POLL_MS:
        return False
    return is_beyond_growth(facts, commit) or not _may_be_truncated(facts, commit, later)


def is_beyond_usual_growth(facts: Facts, commit: Commit) -> bool:
    """Return whether the committed offset is beyond what the log can have gained at ten times its observed rates."""
    return _is_beyond(facts, commit, 0)


def is_near_log_end(progress: CommitProgress) -> Flags:
    """Return the commits of which `is_beyond_usual_growth` is False for certain. Cheap: called with every commit."""
    is_unread = progress.logs.log_end == NEVER
    is_near: Flags = is_unread | (progress.offset <= progress.logs.log_end + _NEAR_END)
    return is_near


def is_beyond_growth(facts: Facts, commit: Commit) -> bool:
    """Return whether the log cannot have grown up to the committed offset by then, as far as was known by then."""
    return _is_beyond(facts, commit, _SLOW_GROWTH)


def _is_beyond(facts: Facts, commit: Commit, least_growth: float) -> bool:
    """Return whether the offset is beyond what the log may hold. least_growth: records per ms that it may gain."""
    readings = facts.history(LogOffsets, commit.cluster, commit.topic, commit.partition)
    last = readings.as_of(commit.at)
    if commit.offset is None or last is None or commit.offset <= last.log_end + _NEAR_END:
        return False
    known = [reading for reading in readings if reading.at <= commit.at]
    rates = [(after.log_end - before.log_end) / max(after.at - before.at, 1) for before, after in pairwise(known)]
    # A log that has not changed for long was read since then: only changes are kept.
    unread_since = _unread_since(facts, (commit.cluster, commit.topic, commit.partition), commit.at)
    read_at = commit.at - LATENESS_MS if unread_since is None else min(commit.at - LATENESS_MS, unread_since)
    elapsed = commit.at - max(last.at, read_at) + CLOCK_SLACK_MS
    growth = max([least_growth, *(_BURST * rate for rate in rates)]) * elapsed
    if commit.offset <= max(reading.log_end for reading in known) + growth:
        return False
    return not is_recreated(facts, (commit.cluster, commit.topic, commit.partition), last.at, commit.at)


def _may_be_truncated(facts: Facts, commit: Commit, later: list[LogOffsets]) -> bool:
    """Return whether the log may have had the committed offset in a burst that was truncated before the next reading.

    Not if the log end is not lower than before, and the partition was seen with one leader and ISR.
    later: the readings of the minute after the commit.
    """
    partition = (commit.cluster, commit.topic, commit.partition)
    last = facts.history(LogOffsets, *partition).as_of(commit.at)
    states = facts.history(PartitionState, *partition)
    if last is None or states.as_of(commit.at) is None or is_log_unreadable(facts, partition, commit.at):
        return True
    if any(reading.log_end < last.log_end for reading in later):
        return True
    begin, end = max(last.at, commit.at - LATENESS_MS), later[0].at if later else commit.at + LATENESS_MS
    return any(may_have_happened_in(state, begin, end) for _, state in pairwise(states))


def is_log_unreadable(facts: Facts, partition: tuple[str, str, int], at: int) -> bool:
    """Return whether the log offsets of the partition were not read at that moment: Kafka did not answer for them."""
    return _unread_since(facts, partition, at) is not None


def _unread_since(facts: Facts, partition: tuple[str, str, int], at: int) -> int | None:
    """Return since when the log offsets of the partition were not read at that moment; None if they were."""
    cluster, *place = partition
    reports = [facts.history(Availability, "kafka", cluster, None, *names) for names in ((None, None), tuple(place))]
    begins = [begin for begin, end in suspensions(facts) if begin < at <= end]
    begins += [
        interval.begin.start
        for report in reports
        for interval in intervals_where(report, lambda state: isinstance(state, Unavailable))
        if interval.begin.at <= at and (interval.end is None or interval.end.at > at)
    ]
    return min(begins, default=None)


def read_before(facts: Facts, commit: Commit) -> int:
    """Return the offset up to which the group had read the log before it moved backwards, as of the commit; else 0."""
    partition = (commit.cluster, commit.topic, commit.partition)
    end = log_end(facts.history(LogOffsets, *partition), commit.at)
    return max((_read_until(facts, peak, commit, end) for peak in facts.peaks(commit)), default=0)


def _read_until(facts: Facts, peak: Commit, commit: Commit, end: int) -> int:
    partition = (commit.cluster, commit.topic, commit.partition)
    if is_recreated(facts, partition, peak.at, commit.at):
        return 0
    # Records that were written after a truncation reuse the offsets of those that the group had read.
    truncated_to = [
        truncation.after.log_end
        for truncation in find_truncations(facts, partition)
        if peak.at - CLOCK_SLACK_MS <= truncation.after.at <= commit.at
    ]
    offset = min([peak.offset or 0, *truncated_to])
    return offset if offset <= end else 0  # else foreign


def find_absence(facts: Facts, after: Commit) -> Commit | None:
    """Return the reading without an offset from which the group returned with this commit, or None.

    Consumers that run all the time have their position in memory: they do not return.
    """
    history = facts.history_of(after)
    last = next((commit for commit in reversed(history.changes) if commit.at < after.at), None)
    if last is None or last.offset is not None:
        return None
    states = facts.history(GroupState, after.cluster, after.group)
    state = states.as_of(last.at)
    is_running = state is not None and all(known.has_consumers for known in [state, *states.between(last.at, after.at)])
    return None if is_running else last


def absent_until(facts: Facts, forgotten: Commit, after: Commit) -> int | None:
    """Return until when the group had no offset for certain, or None if its return is dated exactly.

    The absence is observed once, so `after.since` may be days early. Each poll reads the log offsets too: if one of
    them changed without an offset coming back, the offset was still absent.
    """
    if after.since is None or after.since > forgotten.at:
        return after.since
    reading = facts.history(LogOffsets, after.cluster, after.topic, after.partition).as_of(after.at - _SAME_POLL_MS)
    return after.since if reading is None else max(after.since, reading.start)


def log_end(readings: History[LogOffsets], at: int) -> int:
    """Return the log end offset as known at that moment, or 0 if it was not known."""
    reading = readings.as_of(at)
    return 0 if reading is None else reading.log_end


def log_start_of(reading: Commit | Position, facts: Facts) -> int | None:
    """Return the log start offset of the partition as of a reading, or as read soon after it; None if unknown."""
    readings = facts.history(LogOffsets, reading.cluster, reading.topic, reading.partition)
    soon_after = (offsets for offsets in readings if offsets.at <= reading.at + LATENESS_MS)
    offsets = readings.as_of(reading.at) or next(soon_after, None)
    return None if offsets is None else offsets.log_start
