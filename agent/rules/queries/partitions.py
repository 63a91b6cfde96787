"""What several rules ask of the facts: incarnations, moves, truncations, rebalances, rhythms. Rules judge."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.model.observations import Commit, GroupState, LogOffsets, Observation, PartitionState

CLOCK_SLACK_MS = 5_000
"""How far the clocks of two sources may stand apart, and how long an end may stay low before it is a truncation."""

_FLAP_MS = 30_000

T = TypeVar("T", bound=Observation)


def overlap(first: Observation, begin: int, end: int) -> bool:
    """Whether the change can have happened in [begin, end], clocks considered."""
    return first.start - CLOCK_SLACK_MS <= end and begin <= first.at + CLOCK_SLACK_MS


def deleted(state: PartitionState) -> bool:
    """Whether the partition no longer exists."""
    return not state.replicas


def another(old: str | None, new: str | None) -> bool:
    """Whether two topic ids tell of two incarnations: both known, both czxids or both UUIDs (2.8 gives new ones)."""
    return bool(old and new and old != new) and _is_czxid(old) == _is_czxid(new)


def _is_czxid(topic_id: str | None) -> bool:
    return (topic_id or "").startswith("czxid:")


class Ending(NamedTuple):
    """An incarnation of a partition ended. first: the state that shows it; new: the first of the next one, if seen."""

    old_id: str | None
    first: PartitionState
    new: PartitionState | None


def endings(history: History[PartitionState]) -> Iterator[Ending]:
    """The endings of a partition's incarnations, oldest first. One soon back under its old id had never gone."""
    known: str | None = None
    gone: PartitionState | None = None
    for state in history:
        if deleted(state):
            gone = gone or state
            continue
        back = gone is not None and known == state.topic_id is not None and state.at <= gone.at + _FLAP_MS
        if another(known, state.topic_id) or (gone is not None and not back):
            yield Ending(known, gone or state, state)
        known, gone = state.topic_id or known, None
    if gone is not None:
        yield Ending(known, gone, None)


def recreated(facts: Facts, partition: tuple[str, str, int], before: int, now: int) -> bool:
    """Whether the partition at `now` may be of another incarnation than the one at `before`, or may be gone."""
    known_by = now + LATENESS_MS
    return any(
        one.new is None or one.new.at > known_by or before <= one.new.at + CLOCK_SLACK_MS
        for one in endings(facts.history(PartitionState, *partition))
        if one.first.start - CLOCK_SLACK_MS <= now and one.first.at <= known_by
    )


def earliest(times: Iterable[int], other: int | None) -> int | None:
    """The first of the times or the other, whichever came earlier; None where there is neither."""
    return min([*islice(times, 1), *([] if other is None else [other])], default=None)


def end_of(facts: Facts, partition: tuple[str, str, int], after: int) -> int | None:
    """When the partition was deleted or re-created after that moment: what was said of the old one is over then."""
    return next(
        (one.first.at for one in endings(facts.history(PartitionState, *partition)) if one.first.at > after), None
    )


def spells(history: History[T], condition: Callable[[T], bool]) -> Iterator[tuple[T, T | None]]:
    """(first change for which the condition held, first after which it did not, None while it lasts), oldest first."""
    begin: T | None = None
    for one in history:
        if condition(one):
            begin = begin or one
        elif begin is not None:
            yield begin, one
            begin = None
    if begin is not None:
        yield begin, None


def leader_of(state: PartitionState) -> int | None:
    """The leading broker; None where nobody leads (Kafka writes -1)."""
    return None if state.leader is None or state.leader < 0 else state.leader


def leader_moves(history: History[PartitionState]) -> Iterator[tuple[PartitionState, PartitionState]]:
    """(the last state under the old leader, the first under the new one) within one incarnation, oldest first.

    A time without a leader in between is skipped.
    """
    old: PartitionState | None = None
    for state in history:
        if deleted(state):
            old = None
        elif leader_of(state) is not None:
            if old is not None and leader_of(old) != leader_of(state) and not another(old.topic_id, state.topic_id):
                yield old, state
            old = state


def unclean_elections(history: History[PartitionState]) -> Iterator[tuple[PartitionState, PartitionState]]:
    """(state before, state after) of elections of a leader that was not in the ISR, oldest first.

    Only when no in-sync replica lives is such a leader elected, and its ISR is then itself alone. Where an old in-sync
    replica stands in the new ISR, or the replicas are others (a reassignment), states in between were not seen:
    replicas have caught up and led, no unclean election.
    """
    for before, after in pairwise(one for one in history if one.isr or deleted(one)):
        if leader_of(after) is None or deleted(before) or deleted(after) or another(before.topic_id, after.topic_id):
            continue
        outside = leader_of(after) not in (leader_of(before), *before.isr)
        if outside and not set(before.isr) & set(after.isr) and set(before.replicas) == set(after.replicas):
            yield before, after


def unclean_near(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> bool:
    """Whether an unclean election of the partition can have happened in [begin, end]."""
    return any(
        overlap(after, begin, end) and after.at <= end + LATENESS_MS
        for _, after in unclean_elections(facts.history(PartitionState, *partition))
    )


def end_falls(facts: Facts, partition: tuple[str, str, int]) -> Iterator[tuple[LogOffsets, LogOffsets, int]]:
    """(reading before, lower reading, when it is sure) of falls of the log's end within one incarnation, oldest first.

    Sure at once after an unclean election; else when no reading of the next 5 s has regained the old end: before 2.2
    (KIP-207) the high watermark falls for a moment on clean leader changes.
    """
    history = facts.history(LogOffsets, *partition)
    for before, after in pairwise(history):
        if after.log_end >= before.log_end or recreated(facts, partition, before.at, after.at):
            continue
        begin = after.start if after.since is not None else before.at
        known_at = sure_low(facts, partition, before.log_end, begin, after)
        if known_at is not None:
            yield before, after, known_at


def sure_low(facts: Facts, partition: tuple[str, str, int], offset: int, begin: int, low: LogOffsets) -> int | None:
    """When it is sure that the end read in `low` lies below `offset` for good; None where it came back within 5 s."""
    # A broker that has just started says for a moment that the log ends where it starts (seen on 0.11).
    if low.log_end > low.log_start and unclean_near(facts, partition, begin, low.at):
        return low.seen
    readings = facts.history(LogOffsets, *partition).after(low.at)
    if any(one.log_end >= offset for one in readings if one.at <= low.at + CLOCK_SLACK_MS):
        return None
    return low.seen + CLOCK_SLACK_MS


def rebalancing(state: GroupState) -> bool:
    """Whether the group is in a rebalance: PreparingRebalance or CompletingRebalance."""
    return "Rebalance" in state.state


def moves(commits: Iterable[Commit]) -> list[Commit]:
    """The commits that moved the offset, forgotten ones left out, oldest first."""
    known = [one for one in commits if one.offset is not None]
    return known[:1] + [after for before, after in pairwise(known) if after.offset != before.offset]


def intervals(commits: list[Commit]) -> list[int]:
    """The times between successive commits, ms."""
    return [after.at - before.at for before, after in pairwise(commits)]
