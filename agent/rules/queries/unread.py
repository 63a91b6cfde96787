"""Queries about how far behind a group is: unread records, their age, and whether anybody reads the group."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from agent.engine.condition_rule import intervals_where
from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AGO, History
from agent.engine.rule import Scope
from agent.engine.suspensions import is_suspended, suspensions
from agent.model.observations.agent import AGENT, AgentPart, name_of_source
from agent.model.observations.base import Availability, Observation, Unavailable
from agent.model.observations.kafka import Commit, GroupState, LastStableOffset, LogOffsets, PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS, commit_intervals, drop_unmoved, is_rebalancing, leader_of

T = TypeVar("T", bound=Observation)

REGULAR = 4
"""How many moves of an offset make a rhythm."""

RHYTHM = 20
"""Over how many of the last moves the longest interval is measured."""

_SOURCE = "kafka"
_PATIENCE_MS = 60_000
_MINUTE_MS = 60_000

MARKER = 1
"""How many offsets at the log end may be a transaction marker rather than a record, whenever they were written."""

MARKERS = 10
"""How many offsets at the log end may be markers of several producers, or of aborted records, where a group rests."""

RESTING_MS = LATENESS_MS
"""How long after a group's last move such markers may be written: it read their records before they were committed."""


def first_not_final(facts: Facts, history: History[T]) -> T:
    """Return what held at the beginning of the time whose findings may still change: rules revisit all of that time."""
    return history.as_of(facts.now - FINALIZATION_MS) or history.changes[0]


def has_unread(facts: Facts, commit: Commit) -> bool:
    """Return whether there are records to read after the committed offset, as last observed. Cheap.

    commit: the last that moved the offset.
    """
    log = facts.history(LogOffsets, commit.cluster, commit.topic, commit.partition)
    if commit.offset is None or log.last is None or log.last.log_end <= commit.offset + MARKER:
        return False
    is_near = log.last.log_end <= commit.offset + MARKERS
    return not is_near or log.last.log_end > end_of_markers(remembered(log), commit)


def end_of_markers(readings: list[LogOffsets], commit: Commit) -> int:
    """Return up to which offset a group that has read everything may find transaction markers rather than records.

    A group whose applications commit the offset after their last record rests before the markers that follow it: one of
    each producer, and aborted records. They are there within a minute; what is written later are records, but for a
    single offset. commit: the last that moved the offset. readings: of the log, oldest first, at least one.
    """
    offset, until = commit.offset or 0, commit.at + RESTING_MS
    end = [readings[0], *(reading for reading in readings if reading.start <= until)][-1].log_end
    return end if MARKER < end - offset <= MARKERS else offset + MARKER


def was_observed(facts: Facts, series: tuple[str, str, str, int], at: int) -> bool:
    """Return whether the group, its offset and the partition's log were observed at that moment.

    Time that passes without observations shows nothing: Backflow was suspended, or Kafka could not be read.
    """
    if at > max(history.confirmed for history in _histories(facts, series)):
        return False
    return not any(_was_unread(report, at) for report in _reports(facts, series))


def _was_unread(report: History[Any], at: int) -> bool:
    """Return whether it could not be read at that moment, also if that was noticed only later."""
    if _is_unread(report.as_of(at)):
        return True
    following = next(iter(report.after(at)), None)
    return following is not None and _is_unread(following) and following.start <= at


def _is_unread(report: Observation | None) -> bool:
    """Return whether by this report something cannot be read, or is read late: what has happened is not known yet."""
    return isinstance(report, Unavailable) or (isinstance(report, AgentPart) and report.problem is not None)


def first_observed(facts: Facts, series: tuple[str, str, str, int], at: int) -> int | None:
    """Return when the group was first observed at that moment or after it, ms; None if it has not been."""
    last_reports = (report.last for report in _reports(facts, series))
    if any(last is not None and _is_unread(last) and last.start <= at for last in last_reports):
        return None
    times = (
        next((change.seen for change in history.after(at - 1)), history.confirmed)
        for history in _histories(facts, series)
        if history.confirmed >= at
    )
    return min(times, default=None)


def _histories(facts: Facts, series: tuple[str, str, str, int]) -> tuple[History[Any], ...]:
    cluster, group, topic, partition = series
    return (
        facts.history(Commit, *series),
        facts.history(LogOffsets, cluster, topic, partition),
        facts.history(GroupState, cluster, group),
    )


def readable_since(facts: Facts, series: tuple[str, str, str, int], begin: int, wait: int) -> int | None:
    """Return from when, at `begin` or later, the partition had a leader and was observed for `wait` ms, or None."""
    cluster, _, topic, partition = series
    leaders = facts.history(PartitionState, cluster, topic, partition)
    outages: list[tuple[int, int | None]] = [*suspensions(facts), *_outages(facts, series)]
    outages += [
        (interval.begin.start, None if interval.end is None else interval.end.at)
        for interval in intervals_where(leaders, lambda state: leader_of(state) is None)
    ]
    for since, until in sorted(outages, key=lambda outage: outage[0]):
        if since < begin + wait and (until is None or until > begin):
            if until is None:
                return None
            begin = until
    return begin


def _outages(facts: Facts, series: tuple[str, str, str, int]) -> Iterator[tuple[int, int | None]]:
    """Yield from when until when, ms, the group or the partition could not be read; None if it still cannot be."""
    for report in _reports(facts, series):
        for interval in intervals_where(report, _is_unread):
            yield interval.begin.start, None if interval.end is None else interval.end.at


def _reports(facts: Facts, series: tuple[str, str, str, int]) -> list[History[Any]]:
    """Return what is known of whether the group and the partition can be read, and in time."""
    cluster, group, topic, partition = series
    places = ((None, None, None), (group, None, None), (group, topic, partition), (None, topic, partition))
    availability = [facts.history(Availability, _SOURCE, cluster, *place) for place in places]
    return [*availability, facts.history(AgentPart, AGENT, name_of_source(cluster, _SOURCE))]


def remembered(history: History[LogOffsets]) -> list[LogOffsets]:
    """Return all readings of a log that are still known, oldest first: sparser, the older.

    Where others have been thinned out, the log may have changed at any time since the reading before.
    """
    if not history.older:
        return [*history.changes]
    readings = [*history.older, *history.changes]
    for index in range(len(history.older), 0, -1):
        readings[index] = replace(readings[index], since=readings[index - 1].at)
    return readings


def log_end_at(history: History[LogOffsets], at: int) -> float | None:
    """Return the log end offset at that moment, interpolated between readings; None before the first."""
    changes, older = history.changes, history.older
    index = history.count_until(at)
    if index == len(changes):
        return changes[-1].log_end if changes else None
    after = changes[index]
    if index:
        before = changes[index - 1]
        begin = before.at if after.since is None else after.start
    else:  # what was last read before `after` may have been thinned out since
        index = older.bisect(at, bisect_right) if older else 0
        if not older or not index:
            return None
        before = older[index - 1]
        after, begin = older[index] if index < len(older) else after, before.at
    share = max(at - begin, 0) / max(after.at - begin, 1)
    return before.log_end + (after.log_end - before.log_end) * share


def first_unread(readings: list[LogOffsets], offset: int) -> tuple[int | None, int] | None:
    """Return when the record at the offset was written: after the first moment, at the latest at the second.

    The first moment is None if no reading reaches that far back. None if the log has not reached beyond the offset.
    """
    around = _readings_around(readings, offset)
    if around is None:
        return None
    below, after = around
    if below is None:
        return None, after.at
    return (after.start if after.since is not None else below.at), after.at


def written_at(readings: list[LogOffsets], offset: int) -> tuple[float, bool] | None:
    """Return about when the record at the offset was written, ms, and whether it may have been any time before that.

    Interpolated between two readings, which are far apart where others have been thinned out. None if the log has not
    reached beyond the offset.
    """
    around = _readings_around(readings, offset)
    if around is None:
        return None
    below, after = around
    if below is None:
        return after.at, True
    if after.since is None:
        return below.at, False
    share = (offset - below.log_end) / (after.log_end - below.log_end)
    return after.start + share * (after.at - after.start), False


def _readings_around(readings: list[LogOffsets], offset: int) -> tuple[LogOffsets | None, LogOffsets] | None:
    """Return the last reading of a log that ended at or below the offset, None if none did, and the one after it."""
    # A log end may have decreased in between (a truncation): only what followed is about this record.
    last_below = next((index for index in range(len(readings) - 1, -1, -1) if readings[index].log_end <= offset), -1)
    if last_below + 1 >= len(readings):
        return None
    return (readings[last_below] if last_below >= 0 else None), readings[last_below + 1]


def last_moves(history: History[Commit], at: int) -> list[Commit]:
    """Return the moves of an offset until then, oldest first: as many as `longest_interval` measures, or all."""
    count, moves = RHYTHM + 1, list[Commit]()
    while len(moves) <= RHYTHM:
        commits = history.before(at + 1, count)
        moves = drop_unmoved(commits)
        if len(commits) < count:
            break
        count *= 2
    return moves


def longest_interval(commits: list[Commit]) -> int:
    """Return the longest time between the last moves of an offset, ms; 0 if there are fewer than two."""
    return max(commit_intervals(commits[-RHYTHM:]), default=0)


def is_waiting_for_transaction(facts: Facts, partition: tuple[str, str, int], offset: int, at: int) -> bool:
    """Return whether a read_committed consumer has nothing to read: a transaction is open at the offset.

    Once the transaction has ended, last stable offsets are not observed until the next one stands still.
    """
    stable = facts.history(LastStableOffset, *partition).as_of(at)
    return stable is not None and stable.held_back and stable.offset <= offset


def reads_partition(state: GroupState, topic: str, partition: int) -> bool:
    """Return whether the group has members, and as far as known one of them reads the partition."""
    if not state.has_consumers:
        return False
    assigned = {pair for member in state.members for pair in member.partitions}
    return is_rebalancing(state) or not assigned or (topic, partition) in assigned


def read_until(facts: Facts, scope: Scope, at: int) -> int | None:
    """Return until when, at most `at`, the group was seen to read the partition; None if it never was.

    It reads while it has members for it. Without members, as with assign(), until a minute or three of its longest
    intervals after it moved its offset on any partition of the topic.
    """
    cluster, group, topic, partition = scope.series
    states = facts.history(GroupState, cluster, group)
    members_until = max(_members_until(states, topic, partition, at), default=None)
    state = states.as_of(at)
    if state is not None and state.has_consumers and not is_rebalancing(state):
        return members_until
    times = [] if members_until is None else [members_until]
    for history in facts.histories(Commit, cluster=cluster, group=group, topic=topic):
        moves = last_moves(history, at)
        if len(moves) > 1 and (members_until is None or moves[-1].at > members_until + CLOCK_SLACK_MS):
            times.append(min(at, moves[-1].at + max(_PATIENCE_MS, 3 * longest_interval(moves))))
    return max(times, default=None)


def _members_until(history: History[GroupState], topic: str, partition: int, at: int) -> Iterator[int]:
    changes = history.changes
    for index, state in enumerate(changes):
        if state.at <= at and reads_partition(state, topic, partition):
            yield min(at, changes[index + 1].at if index + 1 < len(changes) else at)


def was_written_by(history: History[LogOffsets], offset: int, at: int) -> bool:
    """Return whether the record at the offset is known to have been written by that moment. Cheap."""
    changes = history.changes
    if not changes or changes[-1].log_end <= offset:
        return False
    if changes[0].at > at and changes[0].log_end <= offset:
        return False
    return _log_end_by(history, at) > offset


def is_known_by(history: History[LogOffsets], at: int) -> bool:
    """Return whether the log end was known by that moment. Cheap."""
    return _log_end_by(history, at) != LONG_AGO


def written_by(facts: Facts, at: int, partition: tuple[str, str, int]) -> int:
    """Return an offset from which on `was_written_by` is False for that moment."""
    return _log_end_by(facts.history(LogOffsets, *partition), at)


def never_below(history: History[LogOffsets], at: int) -> int:
    """Return an offset below which the log end was not known to be from that moment on."""
    end = _log_end_by(history, at)
    older = history.older
    decreased = older.find("log_end", lambda log_end: log_end < end, older.bisect(at, bisect_right)) if older else None
    if decreased is None and history.when(at, "log_end", lambda log_end: log_end < end) is None:
        return end
    return min(reading.log_end for reading in remembered(history))


def _log_end_by(history: History[LogOffsets], at: int) -> int:
    """Return the log end as of that moment, however long ago; LONG_AGO if it was not known by then."""
    reading = history.as_of(at)
    if reading is not None:
        return reading.log_end
    index = history.older.bisect(at, bisect_right) if history.older else 0
    return history.older[index - 1].log_end if index else LONG_AGO


def sample_times(facts: Facts) -> list[int]:
    """Return the full minutes, ms, at which rules look at what is never a single change, as far as not final.

    Without those in which Backflow was suspended.
    """
    begin = (facts.now - FINALIZATION_MS) // _MINUTE_MS * _MINUTE_MS + _MINUTE_MS
    return [at for at in range(begin, facts.now + 1, _MINUTE_MS) if not is_suspended(facts, at)]
