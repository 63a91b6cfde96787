"""Queries about commits out of order: an older commit that arrives late is no rewind."""

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.model.observations.kafka import Commit
from agent.rules.queries.partitions import may_have_unclean_election
from agent.rules.queries.rewinds import READINGS, Move, find_following, find_rhythm, find_truncation

_RHYTHM = 3
"""How many commits a group's order is judged by at least."""

_MAX_RATE = 1_000_000
"""Records per second that no consumer can read from one partition."""


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
    """Return whether the reader was at the lower offset in the last minute, and nothing happened to the log."""
    # Consumers give up a commit after default.api.timeout.ms, 60 s.
    low = move.after.offset or 0
    recent = facts.history_of(move.after).before(move.after.at, READINGS)
    if len(recent) < _RHYTHM or any(state.offset is None for state in recent) or (recent[0].offset or 0) > low:
        return False
    overtaken_by = next((state.at for state in recent if (state.offset or 0) > low), move.after.at)
    has_happened = may_have_unclean_election(facts, move.partition, move.before.at, move.after.at)
    is_recent = move.after.start <= overtaken_by + LATENESS_MS
    return is_recent and not has_happened and find_truncation(facts, move) is None
