"""Queries about leader changes as causes of a rewind: whether one can have moved the reader to where it went."""

from collections.abc import Iterator
from itertools import islice, pairwise
from operator import attrgetter

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.engine.rule import ELECTION, CauseCheck
from agent.model.observations.kafka import ClusterSettings, Commit, LogOffsets, PartitionState
from agent.model.text import day_of, instant
from agent.rules.queries.partitions import CLOCK_SLACK_MS, has_unclean_election, is_recreated, leader_of
from agent.rules.queries.rewinds import Move, Offset, find_decreases, find_later, find_truncation
from agent.rules.queries.unread import log_end_at

_RECENT_MS = 600_000
"""How long before a rewind a leader change may be its cause."""

_REPEATED_MS = 3_600_000
"""How long before a rewind an earlier one of the reader may have the same cause."""

_OTHERS = 12
"""How many of a group's partitions are looked at for what they have in common."""

_BY_DURATION_VERSION = 4
"""The major Kafka version that introduced auto.offset.reset=by_duration (KIP-1106)."""

_SURGE = 5
"""How many times faster than its pace since a reader may have been at first, or the log may have grown."""


def check_election(facts: Facts, move: Move, log_start: int | None, min_records: int) -> Iterator[CauseCheck]:
    """Yield what speaks against recent leader changes as causes of a rewind.

    A new leader without the position resets a reader by auto.offset.reset to the log start or the log end, or, since
    Kafka 2.1, to the divergence point of a truncated log. A reader that had rewound before the leader changed, and has
    not caught up since, may be reset again for the same reason; one that rewinds on other partitions as well has a
    reason that they share. Nothing if the log was truncated, or if the pace of the
    reader or of the log is unknown. log_start: at the move. Since Kafka 4.0 auto.offset.reset may also be by_duration
    (KIP-1106), which leads anywhere: then it remains possible.
    """
    before, after = move
    begin = after.start - _RECENT_MS
    elected_at = _last_election(facts, move, begin)
    if (
        elected_at is None
        or find_truncation(facts, move) is not None
        or has_unclean_election(facts, move.partition, begin, after.at)
    ):
        return
    earlier = _find_earlier(facts, move)
    if earlier is not None and earlier.at < elected_at:
        when = instant(earlier.at, day_of(after.at))
        yield CauseCheck(ELECTION, doubt=f"{earlier.group} had rewound before the leader changed, after {when}")
        return
    other = _find_rewind_elsewhere(facts, move, begin, min_records)
    if other is not None:
        where = f"{other.topic}[{other.partition}]"
        yield CauseCheck(ELECTION, doubt=f"{other.group} rewound on {where} too, whose leader had not changed")
        return
    later = find_later(facts, move)
    if later is None or log_start is None:
        return
    old, new = before.offset or 0, after.offset or 0
    interval = later.at - after.at
    went_after = after.start - 2 * interval  # a commit shows the reader up to an interval late
    read = ((later.offset or 0) - new) / interval * (after.at - went_after)
    log = facts.history(LogOffsets, *move.partition)
    ends = [log_end_at(log, at) for at in (went_after, after.at)]
    if None in ends:
        return
    written = (ends[1] or 0) - (ends[0] or 0)
    if new - log_start > _SURGE * read + min_records and old - new > _SURGE * written + min_records:
        far = f"at {new:,} it was far from the log start {log_start:,} and the log end"
        if _may_reset_by_duration(facts, after):
            yield CauseCheck(ELECTION, doubt=f"only with auto.offset.reset=by_duration: {far}")
        else:
            yield CauseCheck(ELECTION, evidence=far)


def _last_election(facts: Facts, move: Move, begin: int) -> int | None:
    """Return when the partition last had another leader or leader epoch than before, since that moment, or None."""
    states = facts.history(PartitionState, *move.partition)
    known = [states.as_of(begin), *states.between(begin, move.after.at + CLOCK_SLACK_MS)]
    changes = pairwise(state for state in known if state is not None)
    elections = (new.at for old, new in changes if _term(old) != _term(new))
    return max(elections, default=None)


def _term(state: PartitionState) -> tuple[int | None, int | None]:
    return leader_of(state), state.leader_epoch


def _may_reset_by_duration(facts: Facts, after: Offset) -> bool:
    """Return whether consumers of the cluster may be reset by_duration, if its version is known."""
    settings = facts.history(ClusterSettings, after.cluster).as_of(after.at + LATENESS_MS)
    major = "" if settings is None else (settings.version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= _BY_DURATION_VERSION


def _find_rewind_elsewhere(facts: Facts, move: Move, begin: int, min_records: int) -> Commit | None:
    """Return a rewind of the group at the same time on a partition whose state has not changed since `begin`, or None.

    A few of its partitions are enough: they have leaders on other brokers.
    """
    before, after = move
    if not isinstance(before, Commit) or not isinstance(after, Commit):
        return None
    for history in islice(facts.histories(Commit, cluster=after.cluster, group=after.group), _OTHERS):
        first = history.changes[0]
        states = facts.history(PartitionState, first.cluster, first.topic, first.partition).changes
        if not states or (len(states) > 1 and states[-1].at > begin):
            continue
        meanwhile = history.between(before.at - 1, after.at + CLOCK_SLACK_MS)
        _, low = next(find_decreases(meanwhile, lambda _: min_records), (None, None))
        if isinstance(low, Commit):
            return low
    return None


def _find_earlier(facts: Facts, move: Move) -> Commit | None:
    """Return from where the reader first moved backwards within the hour, if it has not regained that position."""
    before = move.before
    if not isinstance(before, Commit):
        return None
    peaks = [
        peak
        for peak in facts.peaks(before)
        if (peak.offset or 0) > (before.offset or 0)
        and peak.at > before.at - _REPEATED_MS
        and not is_recreated(facts, move.partition, peak.at, before.at)
    ]
    return min(peaks, key=attrgetter("at"), default=None)
