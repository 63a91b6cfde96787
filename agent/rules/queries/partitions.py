"""Queries about partitions: incarnations, replicas, leaders, truncations, and the commits and groups on them."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, LONG_AFTER, LONG_AGO, History
from agent.model.observations.base import Observation
from agent.model.observations.kafka import ClusterSettings, Commit, GroupState, LogOffsets, PartitionState
from agent.model.topic_ids import is_czxid, is_other_incarnation

CLOCK_SLACK_MS = 5_000
"""How far the clocks of two sources may differ, and how long the log end must stay lower to count as truncated."""

_RESTART_MS = 300_000
"""How long a broker may be away that is restarted in order."""

_MAJOR_VERSION = re.compile(r"\d+")
_ELR_VERSION = 4
"""The major Kafka version that introduced eligible leader replicas (KIP-966)."""


class IncarnationEnd(NamedTuple):
    """The end of a partition's incarnation: its topic was deleted, and perhaps created again.

    first: the state that shows the end. new: the first state of the next incarnation, or None if none was seen.
    is_certain: whether the ids or the log prove it; else the partition was only missing from the metadata.
    """

    old_id: str | None
    first: PartitionState
    new: PartitionState | None
    is_certain: bool


class Election(NamedTuple):
    """An unclean election: the last state with an ISR before it, the first one after it.

    Certain at `known_at` (ms): at once, or where the log decides, when that has stayed truncated.
    """

    before: PartitionState
    after: PartitionState
    known_at: int


class Truncation(NamedTuple):
    """A decrease of the log end offset within one incarnation, certain at `known_at` (ms)."""

    before: LogOffsets
    after: LogOffsets
    known_at: int


def earliest(*times: int | None) -> int | None:
    """Return the earliest of the times; None if there is none."""
    return min((at for at in times if at is not None), default=None)


def may_have_happened_in(change: Observation, begin: int, end: int) -> bool:
    """Return whether the change may have happened in [begin, end], with clock slack."""
    return change.start - CLOCK_SLACK_MS <= end and begin <= change.at + CLOCK_SLACK_MS


# Incarnations of a topic


def find_replicas(facts: Facts, partition: tuple[str, str, int], at: int) -> dict[str, int]:
    """Return how many replicas the partition had, as `replicas`; empty if unknown."""
    state = facts.history(PartitionState, *partition).as_of(at)
    return {} if state is None or state.is_deleted else {"replicas": len(state.replicas)}


def find_leader(facts: Facts, partition: tuple[str, str, int], at: int) -> dict[str, int]:
    """Return the broker that led the partition last, as `led_by`; empty if unknown."""
    states = [state for state in facts.history(PartitionState, *partition) if state.at <= at]
    leader = next((leader for state in reversed(states) if (leader := leader_of(state)) is not None), None)
    return {} if leader is None else {"led_by": leader}


def find_incarnation_ends(facts: Facts, partition: tuple[str, str, int]) -> Iterator[IncarnationEnd]:
    """Yield the ends of the partition's incarnations, oldest first.

    Deletion always changes the topic's id. A partition that was missing from the metadata and has its old id is the
    same, however long it was missing. If an id is unknown, the log decides: one that continues was not deleted.
    """
    known_id: str | None = None
    deleted: PartitionState | None = None
    for state in facts.history(PartitionState, *partition):
        if state.is_deleted:
            deleted = deleted or state
            continue
        if is_other_incarnation(known_id, state.topic_id):
            yield IncarnationEnd(known_id, deleted or state, state, is_certain=True)
        elif deleted is not None and (known_id is None or known_id != state.topic_id):
            continues = _log_continues(facts, partition, deleted, state.at + LATENESS_MS)
            if not continues:
                yield IncarnationEnd(known_id, deleted, state, is_certain=continues is False)
        known_id, deleted = state.topic_id or known_id, None
    if deleted is not None and not _log_continues(facts, partition, deleted, LONG_AFTER):
        yield IncarnationEnd(known_id, deleted, None, is_certain=False)


def _log_continues(facts: Facts, partition: tuple[str, str, int], deleted: PartitionState, until: int) -> bool | None:
    """Return whether the log ends up to `until` continue those before the deletion; None if no reading shows it."""
    history = facts.history(LogOffsets, *partition)
    before, readings = history.as_of(deleted.start), history.between(deleted.at, until)
    if before is None:
        return None
    if any(reading.log_end < before.log_end for reading in readings):
        return False
    # The deleted log may still have been read by a clock that is ahead.
    return True if readings and readings[-1].at > deleted.at + CLOCK_SLACK_MS else None


def is_recreated(facts: Facts, partition: tuple[str, str, int], before: int, now: int) -> bool:
    """Return whether the partition at `now` may be gone, or of another incarnation than at `before`."""
    known_by = now + LATENESS_MS
    return any(
        end.new is None or end.new.at > known_by or before <= end.new.at + CLOCK_SLACK_MS
        for end in find_incarnation_ends(facts, partition)
        if end.first.start - CLOCK_SLACK_MS <= now and end.first.at <= known_by
    )


def find_deletion(facts: Facts, partition: tuple[str, str, int], after: int) -> int | None:
    """Return when the partition was deleted or re-created after that moment, or None.

    Findings about the old incarnation are over then.
    """
    ends = find_incarnation_ends(facts, partition)
    return next((end.first.at for end in ends if end.first.at > after), None)


# Replicas and leaders


def infer_reassignments(history: History[PartitionState]) -> History[PartitionState]:
    """Return the history with `adding` set to the added replicas that have not been in sync yet.

    Where no source lists reassignments (KIP-455), the replica set still shows them: a broker that joins it and not the
    ISR is copying the log.
    """
    inferred: History[PartitionState] = History(history.subject)
    before: PartitionState | None = None
    copying: set[int] = set()
    for state in history:
        if before is None or before.is_deleted or is_other_incarnation(before.topic_id, state.topic_id):
            copying = set()
        else:
            copying |= set(state.replicas) - set(before.replicas)
        copying = ((copying | set(state.adding)) & set(state.replicas)) - set(state.isr)
        inferred.changes.append(replace(state, adding=tuple(sorted(copying))))
        before = state
    return inferred


def leader_of(state: PartitionState) -> int | None:
    """Return the leader's broker id, or None if there is no leader (Kafka writes -1)."""
    return None if state.leader is None or state.leader < 0 else state.leader


def find_leader_changes(history: History[PartitionState]) -> Iterator[tuple[PartitionState, PartitionState]]:
    """Yield (last state under the old leader, first under the new one) within one incarnation, oldest first.

    A time without a leader in between is skipped.
    """
    old: PartitionState | None = None
    for state in history:
        if state.is_deleted:
            old = None
        elif leader_of(state) is not None:
            changed = old is not None and leader_of(old) != leader_of(state)
            if old is not None and changed and not is_other_incarnation(old.topic_id, state.topic_id):
                yield old, state
            old = state


def find_unclean_elections(facts: Facts, partition: tuple[str, str, int]) -> Iterator[Election]:
    """Yield the elections of a leader outside the ISR and the ELR, oldest first.

    Kafka elects such a leader only when no in-sync replica is alive, and its ISR is then itself alone. If the replicas
    differ, it is a reassignment. Where a replica may have been elected cleanly, having caught up without being seen in
    the ISR, the log decides: it was truncated, or there was no such election.
    """
    for before, led_since, after in _find_elections_outside_isr(facts, partition):
        known_at = _find_certainty(facts, partition, before, led_since, after)
        if known_at is not None:
            yield Election(before[0], after, known_at)


def _find_elections_outside_isr(
    facts: Facts, partition: tuple[str, str, int]
) -> Iterator[tuple[list[PartitionState], int, PartitionState]]:
    """Yield (states before, since when the old leader led, state after) of leaders outside the ISR as last seen."""
    before: list[PartitionState] = []
    led_since = LONG_AGO
    for state in facts.history(PartitionState, *partition):
        if state.is_deleted:
            before = []
        elif not state.isr:
            before = [*before, state] if before else []
        else:
            if before and _is_outside_isr(before[0], state):
                yield before, led_since, state
            if before and leader_of(before[0]) != leader_of(state):
                led_since = state.at
            before = [state]


def _is_outside_isr(before: PartitionState, after: PartitionState) -> bool:
    if leader_of(after) is None or is_other_incarnation(before.topic_id, after.topic_id):
        return False
    is_outside = leader_of(after) not in (leader_of(before), *before.isr)
    return is_outside and set(before.replicas) == set(after.replicas)


def _may_have_caught_up(
    facts: Facts, partition: tuple[str, str, int], before: list[PartitionState], after: PartitionState
) -> bool:
    """Return whether the new leader may have been in the ISR without being seen there.

    It may if an old in-sync replica is in the new ISR: then states in between were missed, in which either of them can
    have joined the other. Likewise if no state was read for a minute, or between two polls if the replica had been in
    sync within the last five minutes: in a rolling restart, each broker stops as soon as the one before is back. If
    the partition was seen without a leader, the old one must have led again as well, which takes more than 5 s.
    before: as in `_find_certainty`.
    """
    if set(before[0].isr) & set(after.isr):
        return True
    unseen = max(state.at - state.start for state in (*before[1:], after))
    if unseen > LATENESS_MS:
        return True
    recent = facts.history(PartitionState, *partition).between(after.at - _RESTART_MS, after.at - 1)
    earlier = facts.history(PartitionState, *partition).as_of(after.at - _RESTART_MS)
    was_in_sync = any(leader_of(after) in state.isr for state in (earlier, *recent) if state is not None)
    least = 0 if leader_of(before[-1]) is not None else CLOCK_SLACK_MS
    return unseen > least and was_in_sync


def _find_certainty(
    facts: Facts,
    partition: tuple[str, str, int],
    before: list[PartitionState],
    led_since: int,
    after: PartitionState,
) -> int | None:
    """Return when it is certain that the new leader lacked committed records, ms; None if it may have had all.

    It had all if it was in the ELR. In doubt, the log decides. before: the last state with an ISR, and those without
    one since. led_since: when its leader was elected, ms.
    """
    known = [state.elr for state in before if state.elr is not None]
    if any(leader_of(after) in elr for elr in known):
        return None
    may_have_caught_up = _may_have_caught_up(facts, partition, before, after)
    if may_have_caught_up or (not known and _may_have_elr(facts, partition[0], before, after)):
        return _find_decrease(facts, partition, led_since, after)
    return after.seen


def _may_have_elr(facts: Facts, cluster: str, before: list[PartitionState], after: PartitionState) -> bool:
    settings = facts.history(ClusterSettings, cluster).as_of(after.at + LATENESS_MS)
    version = _MAJOR_VERSION.match(settings.version or "") if settings is not None else None
    if version is not None:
        return int(version[0]) >= _ELR_VERSION
    # Since topic ids are UUIDs (2.8), an ISR becomes empty only if there is an ELR.
    return len(before) > 1 and after.topic_id is not None and not is_czxid(after.topic_id)


def _find_decrease(
    facts: Facts, partition: tuple[str, str, int], led_since: int, election: PartitionState
) -> int | None:
    """Return when it is certain that the election truncated the log, ms; None if the log end offset stays.

    The higher log end offset was still read under the old leader, elected at `led_since`: else that election did it.
    """
    history, begin = facts.history(LogOffsets, *partition), election.start - CLOCK_SLACK_MS
    reading, end = history.as_of(begin), election.at + LATENESS_MS - CLOCK_SLACK_MS
    readings = [*([] if reading is None else [reading]), *history.between(begin, end)]
    decreases = (
        max(election.seen, low.seen + CLOCK_SLACK_MS)
        for high, low in pairwise(readings)
        if low.log_end < high.log_end and _last_read(high, low) >= led_since + CLOCK_SLACK_MS
        if _stays_below(history, high.log_end, low)
    )
    return next(decreases, None)


def _last_read(reading: LogOffsets, following: LogOffsets) -> int:
    """Return when the offsets of the reading were last read, ms."""
    return following.start if following.since is not None else reading.at


def _stays_below(history: History[LogOffsets], offset: int, low: LogOffsets) -> bool:
    """Return whether no reading of the 5 s after `low` is back at `offset`."""
    soon = (reading for reading in history.after(low.at) if reading.at <= low.at + CLOCK_SLACK_MS)
    return all(reading.log_end < offset for reading in soon)


def has_unclean_election(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> bool:
    """Return whether an unclean election of the partition may have happened in [begin, end]."""
    return bool(_elections_known_at(facts, partition, begin, end))


def may_have_unclean_election(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> bool:
    """Return whether a leader may have been elected in [begin, end] that was outside the ISR when that was last seen.

    Unlike `has_unclean_election`, it does not ask whether the leader may have caught up in between.
    """
    elections = _find_elections_outside_isr(facts, partition)
    return any(may_have_happened_in(after, begin, end) for _, _, after in elections)


def _elections_known_at(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> list[int]:
    return [
        election.known_at
        for election in find_unclean_elections(facts, partition)
        if may_have_happened_in(election.after, begin, end) and election.after.at <= end + LATENESS_MS
    ]


# Truncations


def find_truncations(facts: Facts, partition: tuple[str, str, int]) -> Iterator[Truncation]:
    """Yield the truncations of the partition's log within one incarnation, oldest first."""
    for before, after in pairwise(facts.history(LogOffsets, *partition)):
        if after.log_end >= before.log_end or is_recreated(facts, partition, before.at, after.at):
            continue
        known_at = confirm_truncation(facts, partition, before.log_end, _last_read(before, after), after)
        if known_at is not None:
            yield Truncation(before, after, known_at)


def confirm_truncation(
    facts: Facts, partition: tuple[str, str, int], offset: int, begin: int, low: LogOffsets
) -> int | None:
    """Return when it is certain that the log was truncated below `offset`, or None if it was not.

    Certain with an unclean election since `begin`, else if no reading of the next 5 s is back at `offset`: before Kafka
    2.2 (KIP-207) the high watermark drops for a moment on clean leader changes.
    low: the reading whose log end offset is below `offset`.
    """
    # A broker that has just started reports for a moment that the log ends where it starts (seen on 0.11).
    elections = _elections_known_at(facts, partition, begin, low.at) if low.log_end > low.log_start else []
    if elections:
        return max(low.seen, min(elections))
    return low.seen + CLOCK_SLACK_MS if _stays_below(facts.history(LogOffsets, *partition), offset, low) else None


# Groups and their commits


def is_rebalancing(state: GroupState) -> bool:
    """Return whether the group is in PreparingRebalance or CompletingRebalance."""
    return "Rebalance" in state.state


def drop_unmoved(commits: Iterable[Commit]) -> list[Commit]:
    """Return the commits that moved the offset, oldest first, without forgotten offsets."""
    moved: list[Commit] = []
    last: int | None = None
    for commit in commits:
        if commit.offset not in (None, last):
            moved.append(commit)
            last = commit.offset
    return moved


def commit_intervals(commits: list[Commit]) -> list[int]:
    """Return the times between successive commits, in ms."""
    return [after.at - before.at for before, after in pairwise(commits)]
