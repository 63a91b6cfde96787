"""Queries about operator resets: whether an operator moved a group's offsets rather than its consumers."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState
from agent.model.observations.streams import StreamsApplication
from agent.rules.queries.partitions import CLOCK_SLACK_MS, commit_intervals

_TOGETHER_MS = 5_000
"""How close together one command moves all partitions of a group."""

_SAME_POLL_MS = 500
"""How far apart one poll reads a group's offsets and its state."""

_DELETION_MS = 5_000
"""How long after it moved the offsets the deletions of StreamsResetter have been seen."""

_INTERVALS = 9
_SAMPLE = 5


def is_moved_by_operator(facts: Facts, before: Commit, after: Commit, min_records: int) -> bool:
    """Return whether an operator moved the group (kafka-consumer-groups --reset-offsets), not its consumers.

    All partitions that moved back did so within 5 s or between the same two sightings, and no member consumed: a
    group that has had members is Empty in the readings before and after; a group never seen with members committed
    nothing for ten of its intervals before and two after. Or an operator reset a Kafka Streams application, which
    deletes its changelogs.
    """
    if _is_streams_reset(facts, before, after):
        is_idle = True
    elif facts.had_members(after.cluster, after.group, after.at):
        is_idle = _is_empty_around(facts, before, after)
    else:
        is_idle = _is_silent_around(facts, after)
    return is_idle and _moved_together(facts, after, min_records)


def operator_known_at(facts: Facts, after: Commit) -> int:
    """Return when it is known whether an operator made a move, in ms.

    5 s later for a Kafka Streams application with stores: until then its changelogs may be deleted.
    """
    known = facts.history(StreamsApplication, after.cluster, after.group).as_of(after.at)
    return after.seen + (_DELETION_MS if known is not None and known.stores else 0)


def is_stopped(facts: Facts, commit: Commit) -> bool:
    """Return whether the group has had members but had none when the commit was made."""
    state = facts.history(GroupState, commit.cluster, commit.group).as_of(commit.at)
    had_members = facts.had_members(commit.cluster, commit.group, commit.at)
    return state is not None and not has_consumers(state) and had_members


def has_consumers(state: GroupState) -> bool:
    """Return whether the group has members, or members are joining it."""
    return bool(state.members) or state.state not in ("Empty", "Dead")


def may_coincide(first: Observation, second: Observation) -> bool:
    """Return whether both changes may have happened at the same moment."""
    return first.start <= second.at and second.start <= first.at


def _is_streams_reset(facts: Facts, before: Commit, after: Commit) -> bool:
    """Return whether a Kafka Streams application lost changelogs with the move: StreamsResetter deletes them after it.

    A store that was removed long before, while the old offset was still committed, is unrelated.
    """
    history = facts.history(StreamsApplication, after.cluster, after.group)
    begin = max(before.at, after.start - LATENESS_MS)
    known = history.as_of(begin)
    stores = {store for store, _ in known.stores} if known is not None else set()
    return any(
        stores - dict(application.stores).keys() for application in history.between(begin, after.at + LATENESS_MS)
    )


def _moved_together(facts: Facts, move: Commit, min_records: int) -> bool:
    begin, end = move.at - LATENESS_MS, move.at + LATENESS_MS
    for history in _find_histories(facts, move):
        commits = [history.as_of(begin), *history.between(begin, end)]
        known = [commit for commit in commits if commit is not None and commit.offset is not None]
        for before, after in pairwise(known):
            if after.at < begin or (before.offset or 0) - (after.offset or 0) < min_records:
                continue
            is_same_poll = move.since is not None and may_coincide(after, move)
            if abs(after.at - move.at) > _TOGETHER_MS and not is_same_poll:
                return False
    return True


def _find_histories(facts: Facts, move: Commit) -> Iterator[History[Commit]]:
    """Yield the commits of the group on each of its partitions, the moved one first."""
    own = facts.history(Commit, move.cluster, move.group, move.topic, move.partition)
    yield own
    yield from (
        history for history in facts.histories(Commit, cluster=move.cluster, group=move.group) if history is not own
    )


def _is_empty_around(facts: Facts, before: Commit, after: Commit) -> bool:
    history = facts.history(GroupState, after.cluster, after.group)
    reading = history.as_of(min(after.at - 1, after.start + _SAME_POLL_MS))
    if reading is None or has_consumers(reading):
        return False
    # A later state counts if it may have begun by the move; without `since`, with clock slack. The poll that shows the
    # move has read the state just before it.
    return not any(
        has_consumers(state)
        for state in history.after(reading.at)
        if state.at <= after.at + LATENESS_MS
        if (state.at - CLOCK_SLACK_MS if state.since is None else state.since + _SAME_POLL_MS) <= after.at
        and state.at > before.at
    )


def _is_silent_around(facts: Facts, move: Commit) -> bool:
    intervals = (commit_intervals(history.before(move.start, _INTERVALS)) for history in _find_histories(facts, move))
    sample = [ms for series in islice(filter(None, intervals), _SAMPLE) for ms in series]
    interval = median(sample) if sample else 0
    # The two intervals after the move must pass while the finding may still change: slower groups cannot be judged.
    if not 0 < interval <= 0.75 * LATENESS_MS:
        return False
    begin, end = move.start - 10 * interval, move.at + 2 * interval
    for number, history in enumerate(_find_histories(facts, move)):
        last = next(iter(history.before(move.start, 1)), None)
        moved_by = move.at if number == 0 else move.at + _TOGETHER_MS
        later = history.between(moved_by, math.ceil(end) - 1)
        if (last is not None and last.at > begin) or any(not may_coincide(commit, move) for commit in later):
            return False
    return True
