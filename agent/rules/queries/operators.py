"""Whether an operator moved a group's offsets, rather than its consumers. Rules judge."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.model.observations import Commit, GroupState, Observation, StreamsApplication
from agent.rules.queries.partitions import CLOCK_SLACK_MS, intervals
from agent.rules.queries.subjects import partitions_of

_TOGETHER_MS = 5_000
_SAME_POLL_MS = 500
"""How far apart one poll reads a group's offsets and its state."""

_DELETED_MS = 5_000
"""How long after it has moved the offsets StreamsResetter's deletions have been seen."""

_RHYTHM = 9
_SAMPLE = 5


def by_operator(facts: Facts, before: Commit, after: Commit, min_records: int) -> bool:
    """Whether an operator moved the group (kafka-consumer-groups --reset-offsets) rather than its consumers.

    All that moved back, moved within 5 s or between the same two sightings, and nobody consumed: a group that has had
    members is Empty in the readings before and after; one never seen with members committed nothing for ten of its
    intervals before and two after. Or an operator has reset a Kafka Streams application, which deletes its changelogs.
    """
    if _stores_deleted(facts, before, after):
        nobody_consumed = True
    elif facts.had_members(after.cluster, after.group, after.at):
        nobody_consumed = _empty_around(facts, before, after)
    else:
        nobody_consumed = _silent_around(facts, after)
    return nobody_consumed and _moved_together(facts, after, min_records)


def sure_at(facts: Facts, after: Commit) -> int:
    """When it is known whether an operator made a move: of a Kafka Streams application with stores a little later."""
    known = facts.history(StreamsApplication, after.cluster, after.group).as_of(after.at)
    return after.seen + (_DELETED_MS if known is not None and known.stores else 0)


def _stores_deleted(facts: Facts, before: Commit, after: Commit) -> bool:
    """Whether a Kafka Streams application lost changelogs with its move: StreamsResetter deletes them right after it.

    A store that went long before, while the old offset stood, has nothing to do with it.
    """
    history = facts.history(StreamsApplication, after.cluster, after.group)
    begin = max(before.at, after.start - LATENESS_MS)
    known = history.as_of(begin)
    there = {store for store, _ in known.stores} if known is not None else set()
    return any(there - dict(one.stores).keys() for one in history.between(begin, after.at + LATENESS_MS))


def _moved_together(facts: Facts, move: Commit, min_records: int) -> bool:
    begin, end = move.at - LATENESS_MS, move.at + LATENESS_MS
    for history in _series(facts, move):
        known = [one for one in (history.as_of(begin), *history.between(begin, end)) if one and one.offset is not None]
        for before, after in pairwise(known):
            if after.at < begin or (before.offset or 0) - (after.offset or 0) < min_records:
                continue
            same_sightings = move.since is not None and overlapping(after, move)
            if abs(after.at - move.at) > _TOGETHER_MS and not same_sightings:
                return False
    return True


def _series(facts: Facts, move: Commit) -> Iterator[History[Commit]]:
    """The commits of the group on each of its partitions, the moved one first."""
    yield facts.history(Commit, move.cluster, move.group, move.topic, move.partition)
    for topic, partition in partitions_of(facts, move.cluster, move.group):
        if (topic, partition) != (move.topic, move.partition):
            yield facts.history(Commit, move.cluster, move.group, topic, partition)


def overlapping(first: Observation, second: Observation) -> bool:
    """Whether both changes can have happened at the same moment."""
    return first.start <= second.at and second.start <= first.at


def _empty_around(facts: Facts, before: Commit, after: Commit) -> bool:
    history = facts.history(GroupState, after.cluster, after.group)
    reading = history.as_of(min(after.at - 1, after.start + _SAME_POLL_MS))
    if reading is None or consuming(reading):
        return False
    # A state read later tells of this moment when it may have begun by now; without `since` clocks are given slack. The
    # poll that shows the move has read the state just before it.
    return not any(
        consuming(one)
        for one in history.after(reading.at)
        if one.at <= after.at + LATENESS_MS
        if (one.at - CLOCK_SLACK_MS if one.since is None else one.since + _SAME_POLL_MS) <= after.at
        and one.at > before.at
    )


def stopped(facts: Facts, commit: Commit) -> bool:
    """Whether the group has had members, and had none when the commit was made."""
    state = facts.history(GroupState, commit.cluster, commit.group).as_of(commit.at)
    return state is not None and not consuming(state) and facts.had_members(commit.cluster, commit.group, commit.at)


def consuming(state: GroupState) -> bool:
    """Whether the group has members or is getting them."""
    return bool(state.members) or state.state not in ("Empty", "Dead")


def _silent_around(facts: Facts, move: Commit) -> bool:
    rhythms = (intervals(history.before(move.start, _RHYTHM)) for history in _series(facts, move))
    rhythm = [one for some in islice((some for some in rhythms if some), _SAMPLE) for one in some]
    interval = median(rhythm) if rhythm else 0
    # The two intervals after must pass while a finding may still change: of a slower committer nothing can be told.
    if not 0 < interval <= 0.75 * LATENESS_MS:
        return False
    begin, end = move.start - 10 * interval, move.at + 2 * interval
    for number, history in enumerate(_series(facts, move)):
        last = next(iter(history.before(move.start, 1)), None)
        together = move.at if number == 0 else move.at + _TOGETHER_MS
        after = history.between(together, math.ceil(end) - 1)
        if (last is not None and last.at > begin) or any(not overlapping(one, move) for one in after):
            return False
    return True
