"""Queries about leader changes as causes of a rewind: whether one can have moved the reader to where it went."""

from collections.abc import Iterator

from agent.engine.facts import Facts
from agent.engine.rule import ELECTION, CauseCheck
from agent.model.observations.kafka import LogOffsets, PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS, has_unclean_election, leader_of
from agent.rules.queries.rewinds import Move, find_later, find_truncation
from agent.rules.queries.unread import log_end_at, remembered

_RECENT_MS = 600_000
"""How long before a rewind a leader change may be its cause."""

_SURGE = 5
"""How many times faster than its pace since a reader may have been at first, or the log may have grown."""


def check_election(facts: Facts, move: Move, log_start: int | None, min_records: int) -> Iterator[CauseCheck]:
    """Yield that no recent leader change moved the reader, if it went to neither end of the log.

    A new leader without the position resets a reader by auto.offset.reset to the log start or the log end, or, since
    Kafka 2.1, to the divergence point of a truncated log. Nothing if the pace of the reader or of the log is unknown,
    or if the log was truncated. log_start: at the move. A reset by_duration (KIP-1106) is not distinguished.
    """
    before, after = move
    later = find_later(facts, move)
    begin = after.start - _RECENT_MS
    if later is None or log_start is None or not _has_elections(facts, move, begin):
        return
    if find_truncation(facts, move) is not None or has_unclean_election(facts, move.partition, begin, after.at):
        return
    old, new = before.offset or 0, after.offset or 0
    interval = later.at - after.at
    went_after = after.start - 2 * interval  # a commit shows the reader up to an interval late
    read = ((later.offset or 0) - new) / interval * (after.at - went_after)
    readings = remembered(facts.history(LogOffsets, *move.partition))
    ends = [log_end_at(readings, at) for at in (went_after, after.at)]
    if None in ends:
        return
    written = (ends[1] or 0) - (ends[0] or 0)
    if new - log_start > _SURGE * read + min_records and old - new > _SURGE * written + min_records:
        yield CauseCheck(ELECTION, evidence=f"at {new:,} it was far from the log start {log_start:,} and the log end")


def _has_elections(facts: Facts, move: Move, begin: int) -> bool:
    states = facts.history(PartitionState, *move.partition)
    known = [states.as_of(begin), *states.between(begin, move.after.at + CLOCK_SLACK_MS)]
    return len({(leader_of(state), state.leader_epoch) for state in known if state is not None}) > 1
