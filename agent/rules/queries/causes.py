"""Queries about causes of a moved offset: what rules them out, or why they remain possible; why Kafka forgot it.

And until when a disturbance, such as a leader change, can have made a reader move.
"""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from statistics import median
from typing import Any

from agent.engine.facts import Facts
from agent.engine.history import FLOOR, LATENESS_MS, LONG_AGO, History
from agent.engine.rule import CauseCheck
from agent.engine.suspensions import suspensions
from agent.model.observations.base import Unavailable
from agent.model.observations.flink import Position
from agent.model.observations.kafka import ClusterSettings, Commit, GroupState, LogOffsets, PartitionState
from agent.model.text import count, day_of, instant, span
from agent.rules.queries.operators import (
    find_advances,
    find_forgotten,
    find_latest_advances,
    histories_of_group,
    is_empty,
)
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.rules.queries.unread import MARKER, first_unread, remembered

OPERATOR_RESET, EXPIRY, RECREATION = "operator_reset", "after_expiry", "topic_recreation"

FORGOTTEN = "expired or was deleted"
EXPIRED = "expired"
DELETED = "was deleted"

_RESTART_MS = 10_000
"""How long it takes at least to stop a group, reset its offsets and start it again."""

_EXPIRY_BY_GROUP = (2, 1)
"""The first Kafka version that keeps the offsets of a group with members (KIP-211)."""

_STALE_LEADER_MS = 15_000
"""How long a leader that has lost its partitions may still serve readers that do not know of it."""

_SAME_POLL_MS = 500
"""How far apart one poll reads a group's offsets and the logs."""

_FETCH_MS = 60_000
"""How long a reader may wait for a broker that hangs before it asks another one (request.timeout.ms and retries)."""

_NORMAL_MS = 60_000
"""How long a reader must read on to show that nothing is wrong: records fetched before are used up by then."""

_STEPS = 3
"""How many times its offset must advance meanwhile."""

_PAUSE_MS = 10_000
"""How long a reader may always pause between two offsets."""

_TO_PREVENT = {
    EXPIRED: "Set offsets.retention.minutes longer than the longest pause of {reader}.",
    DELETED: "Find out who or what deleted the committed offsets of {reader}.",
    FORGOTTEN: "Find out whether the offsets of {reader} were deleted or offsets.retention.minutes is too short.",
}


def prevent_forgetting(reason: str) -> str:
    """Return the advice that prevents it, as a template. reason: as `why_forgotten` returns it."""
    return _TO_PREVENT.get(reason, _TO_PREVENT[FORGOTTEN])


def check_commit_causes(facts: Facts, before: Commit, after: Commit, labels: Iterable[str]) -> Iterator[CauseCheck]:
    """Yield whether an operator, an expired offset and a new incarnation of the topic are ruled out for a move.

    labels: of the finding; a cause that it has is left out. A reader without an offset needs no operator to move.
    """
    labels = set(labels)
    if EXPIRY not in labels:
        if OPERATOR_RESET not in labels:
            yield _check_operator_reset(facts, before, after)
        yield _check_expiry(facts, before, after)
    yield check_recreation(facts, (after.cluster, after.topic, after.partition), before.at, after.at)


def check_recreation(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> CauseCheck:
    """Return whether the topic is known not to have been re-created in [begin, end]: by one id before and after."""
    states = facts.history(PartitionState, *partition)
    old, new = (state.topic_id if state else None for state in map(states.as_of, (begin + CLOCK_SLACK_MS, end)))
    if old is None or new is None:
        return CauseCheck(RECREATION, doubt="topic ids are unknown")
    if old != new:  # of another type since an upgrade to Kafka 2.8, or the rule would not compare the offsets
        return CauseCheck(RECREATION, doubt="the topic ids before and after differ")
    return CauseCheck(RECREATION, evidence="same topic id")


def why_forgotten(facts: Facts, before: Commit, after: Commit) -> str:
    """Return why Kafka forgot the offset between two commits, as a predicate; empty if it did not.

    EXPIRED, DELETED, or FORGOTTEN if that is not known: an offset expires offsets.retention.minutes after its commit,
    since Kafka 2.1 not while a member reads the topic.
    """
    gone = find_forgotten(facts, before, after)
    if gone is None:
        return ""
    settings = _settings(facts, before, gone.at)
    if settings is None:
        return FORGOTTEN
    committed_from, read_until = _first_known(facts, before), _last_read(facts, before, gone)
    keeps_read = _version(settings) >= _EXPIRY_BY_GROUP
    kept_from = [time for time in (committed_from, read_until if keeps_read else None) if time is not None]
    if kept_from and gone.at < max(kept_from) + settings.offsets_retention_ms:
        return DELETED
    expires = max(before.at, read_until or before.at) + settings.offsets_retention_ms
    return EXPIRED if gone.at >= expires else FORGOTTEN


def _check_operator_reset(facts: Facts, before: Commit, after: Commit) -> CauseCheck:
    """Return whether the group's consumers were active before and after the move, so that no operator made it.

    Kafka refuses to reset a group that has members. A consumer that does not show as one overwrites the reset with its
    own position.
    """
    group, day = after.group, day_of(after.at)
    begin, end = instant(after.start, day), instant(after.at, day)
    states = facts.history(GroupState, after.cluster, group)
    reading = states.as_of(after.start)
    if reading is not None:
        later = [state for state in states.after(reading.at) if state.start <= after.at]
        around = [reading, *(state for state in later if state.at <= after.at + LATENESS_MS)]
        stayed = set.intersection(*({member.id for member in state.members} for state in around))
        if stayed:
            members = count(len(stayed), "member")
            when = f"at {end}" if begin == end else f"from {begin} to {end}"
            return CauseCheck(OPERATOR_RESET, evidence=f"{group} had {members} {when}")
    following = next(find_advances(next(histories_of_group(facts, after)), after.at, after.at + LATENESS_MS), None)
    if following is not None and (following.offset or 0) < (before.offset or 0):
        advanced_at = (commit.start for commit in _last_advances(facts, after))
        last = next((start for start in advanced_at if following.at - start <= _RESTART_MS), None)
        if last is not None:
            evidence = f"{group} kept committing from {instant(last, day)} to {instant(following.at, day)}"
            return CauseCheck(OPERATOR_RESET, evidence=evidence)
    return CauseCheck(OPERATOR_RESET, doubt=_doubt_members(reading, group, begin, end))


def _last_advances(facts: Facts, move: Commit) -> Iterator[Commit]:
    for history in histories_of_group(facts, move):
        yield from islice(find_latest_advances(history, move.start - LATENESS_MS, move.start), 1)


def _doubt_members(reading: GroupState | None, group: str, begin: str, end: str) -> str:
    if reading is None:
        return f"the members of {group} are unknown"
    if is_empty(reading):
        return f"{group} had no members, so who commits is unknown"
    if not reading.members:
        return f"the members of {group} cannot be read (state {reading.state})"
    return f"all members of {group} left or changed between {begin} and {end}"


def _check_expiry(facts: Facts, before: Commit, after: Commit) -> CauseCheck:
    """Return whether the offset is known not to have been forgotten before the move."""
    day = day_of(after.at)
    settings, committed_from = _settings(facts, before, after.at), _first_known(facts, before)
    if settings is not None and committed_from is not None:
        kept = settings.offsets_retention_ms
        if after.at < committed_from + kept:
            evidence = f"committed at {instant(before.at, day)}, kept for {span(kept)}"
            return CauseCheck(EXPIRY, evidence=evidence)
    begin = before.at if after.since is None else after.since
    begun, end = instant(begin, day), instant(after.at, day)
    is_unread = _was_unavailable(facts, after, begin) if after.since is None else after.at - begin > LATENESS_MS
    if is_unread:
        return CauseCheck(EXPIRY, doubt=f"the offset was not read between {begun} and {end}")
    return CauseCheck(EXPIRY, evidence=f"read at {begun} and {end}")


def _was_unavailable(facts: Facts, move: Commit, begin: int) -> bool:
    """Return whether the group's commits could not be read at some time from `begin` to the move."""
    if any(since < move.at and until > begin for since, until in suspensions(facts)):
        return True
    for history in facts.histories(Unavailable, source="kafka", cluster=move.cluster):
        group, topic = history.changes[0].group, history.changes[0].topic
        if topic is not None or group not in (None, move.group):
            continue
        known = (history.as_of(begin), *history.between(begin, move.at))
        if any(isinstance(report, Unavailable) for report in known):
            return True
    return False


def _settings(facts: Facts, commit: Commit, at: int) -> ClusterSettings | None:
    return facts.history(ClusterSettings, commit.cluster).as_of(at + LATENESS_MS)


def _first_known(facts: Facts, commit: Commit) -> int | None:
    """Return the earliest time of a commit; None if it may be older than what was observed first."""
    history = facts.history_of(commit)
    return commit.start if history.before(commit.at, 1) else None


def _last_read(facts: Facts, before: Commit, gone: Commit) -> int | None:
    """Return until when at least a member of the group was assigned a partition of the topic, as far as observed."""
    states = facts.history(GroupState, before.cluster, before.group).between(LONG_AGO, gone.at)
    ends = [*(max(later.start, state.at) for state, later in pairwise(states)), gone.at]
    readers = (
        end
        for state, end in zip(states, ends, strict=False)
        if any(topic == before.topic for member in state.members for topic, _ in member.partitions)
    )
    return max(readers, default=None)


def _version(settings: ClusterSettings) -> tuple[int, ...]:
    numbers = (settings.version or "").split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())


# Disturbances before a move: what the reader has shown since


def unmoved_since(facts: Facts, before: Commit | Position, after: Commit | Position) -> int | None:
    """Return since when nothing that happened to the partition can have moved the reader; None if unknown."""
    known = (
        undisturbed_since(facts.history_of(after), after.at),
        fetched_since(facts, before, after),
        waited_since(facts, before, after),
    )
    return max((time for time in known if time is not None), default=None)


def undisturbed_since(history: History[Any], moved_at: int) -> int | None:
    """Return since when a reader had read on normally for a minute before it moved, by its offsets; None if unknown.

    Nothing before that made it move: a reader that loses its position fails, waits or moves within seconds. The minute
    may have been followed by a pause; then the cause may lie in the pause.
    """
    # No further back than histories reach until the finding is final.
    begin = moved_at - LATENESS_MS
    recent: list[Commit | Position] = [*history.before(begin, FLOOR), *history.between(begin - 1, moved_at - 1)]
    known = [state for state in recent if state.offset is not None]
    steps = [(before.at, after.at, (after.offset or 0) - (before.offset or 0)) for before, after in pairwise(known)]
    gaps = [end - begin for begin, end, advance in steps[-FLOOR:] if advance > 0]
    longest = max(_PAUSE_MS, 3 * median(gaps)) if gaps else 0
    count = normal_until = 0
    for begin, end, advance in reversed(steps):
        if advance <= 0 or end - begin > longest:
            count = 0
            continue
        count += 1
        normal_until = end if count == 1 else normal_until
        if count >= _STEPS and normal_until - begin >= _NORMAL_MS:
            return begin
    return None


def fetched_since(facts: Facts, before: Commit | Position, after: Commit | Position) -> int | None:
    """Return after when a reader has fetched before it moved: its last record was written later. None if unknown.

    It fetched them from a leader whose log still had them when the old offset was last seen: no election before that
    put it out of range.
    """
    readings = remembered(facts.history(LogOffsets, before.cluster, before.topic, before.partition))
    known = [reading for reading in readings if reading.at <= after.start + _SAME_POLL_MS]
    written = first_unread(known, (before.offset or 0) - 1)
    return None if written is None or written[0] is None else written[0] - _STALE_LEADER_MS


def waited_since(facts: Facts, before: Commit | Position, after: Commit | Position) -> int | None:
    """Return since when a reader that had read everything waited in range of its log before it moved; None if unknown.

    It had nothing to process, so it would have found itself out of range with one of its next fetches, and committed
    that within an interval, which the readings after the move show.
    """
    reading = facts.history(LogOffsets, before.cluster, before.topic, before.partition).as_of(after.start)
    if after.since is None or reading is None or not 0 <= reading.log_end - (before.offset or 0) <= MARKER:
        return None
    following = facts.history_of(after).between(after.at, after.at + LATENESS_MS + CLOCK_SLACK_MS)[:_STEPS]
    intervals = [later.at - state.at for state, later in pairwise([after, *following])]
    return after.since - _FETCH_MS - 2 * max(intervals) if intervals else None
