"""Queries about commits out of order: an older commit that arrives late is no rewind."""

from collections.abc import Sequence
from itertools import pairwise

from agent.engine.facts import LATENESS_MS, Facts
from agent.model.observations.kafka import Commit
from agent.rules.queries.partitions import may_have_unclean_election
from agent.rules.queries.rewinds import READINGS, Move, Offset, find_following, find_rhythm, find_truncation

_RHYTHM = 3
"""How many commits a group's order is judged by at least."""

_MAX_RATE = 1_000_000
"""Records per second that no consumer can read from one partition."""

_GAP = 1.5
"""From how many intervals between two commits on there may have been another that was not seen."""


def is_reordered(facts: Facts, move: Move) -> bool:
    """Return whether the reader did not move, but an older commit arrived late: the next one is above both again.

    Asynchronous commits overtake each other. Either the next commit is there sooner than any consumer reads the records
    in between, or the older commit may be one of the last minute and nothing happened to the log.
    """
    following = find_following(facts, move)
    if following is None or (following.offset or 0) < (move.before.offset or 0):
        return False
    took = max(following.at - move.after.start, 1)
    is_too_fast = ((following.offset or 0) - (move.after.offset or 0)) * 1000 > _MAX_RATE * took
    return isinstance(move.after, Commit) and (is_too_fast or _may_be_late(facts, move))


def order_known_at(facts: Facts, move: Move) -> int:
    """Return when it is known whether an older commit arrived late, in ms: with the next one, if it looks like that."""
    if not _may_be_late(facts, move):
        return move.after.seen
    following = find_following(facts, move)
    if following is not None:
        return max(move.after.seen, following.seen)
    return move.after.seen + min(2 * find_rhythm(facts, move).interval, LATENESS_MS)


def _may_be_late(facts: Facts, move: Move) -> bool:
    """Return whether the reader may have committed this in the last minute, and nothing happened to the log."""
    # Consumers give up a commit after default.api.timeout.ms, 60 s.
    low = move.after.offset or 0
    recent = facts.history_of(move.after).before(move.after.at, READINGS)
    if len(recent) < _RHYTHM or any(state.offset is None for state in recent) or (recent[0].offset or 0) > low:
        return False
    overtaken_by = next((state.at for state in recent if (state.offset or 0) > low), move.after.at)
    has_happened = may_have_unclean_election(facts, move.partition, move.before.at, move.after.at)
    is_recent = move.after.start <= overtaken_by + LATENESS_MS and _may_have_committed(recent, low)
    return is_recent and not has_happened and find_truncation(facts, move) is None


def _may_have_committed(recent: Sequence[Offset], offset: int) -> bool:
    """Return whether the reader may have committed the offset between these readings, or did.

    Polls that also read unchanged offsets show every commit of a reader that keeps its rhythm.
    """
    steps = list(pairwise(recent))
    shortest = min(after.at - before.at for before, after in steps)
    for before, after in steps:
        if (before.offset or 0) <= offset < (after.offset or 0):
            is_all_seen = all(later.start > earlier.at for earlier, later in steps)
            is_gap = after.at - before.at >= _GAP * shortest
            return not is_all_seen or is_gap or before.offset == offset
    return True
