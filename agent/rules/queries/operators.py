"""Queries about operator resets: whether an operator moved a group's offsets rather than its consumers."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, LONG_AGO, History
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState
from agent.model.observations.streams import StreamsApplication
from agent.rules.queries.partitions import CLOCK_SLACK_MS, commit_intervals, find_incarnation_ends

_TOGETHER_MS = 5_000
"""How close together one command moves all partitions of a group."""

_SAME_POLL_MS = 500
"""How far apart one poll reads a group's offsets and its state."""

_DELETION_MS = 5_000
"""How long after it moved the offsets the deletions of StreamsResetter have been seen."""

_VISIT_MS = 5_000
"""How long a consumer is in an Empty group at least: group.initial.rebalance.delay.ms is 3 s."""

_INTERVALS = 9
_SAMPLE = 5
_MOST_PARTITIONS = 50
"""How many partitions of a group show whether anybody commits."""

_MOST_UNSEEN = 1
"""How often a partition of a group whose members show when they are there may advance without any: by an operator."""


def is_moved_by_operator(facts: Facts, before: Commit, after: Commit) -> bool:
    """Return whether an operator moved the group (kafka-consumer-groups --reset-offsets), not its consumers.

    The group is Empty in the readings before and after the move, less than a minute apart, and no consumer commits. A
    group that only advances while it has members shows that by being Empty. Any other has consumers that do not show
    as members (assign(), Flink, a batch job between polls): it has not advanced for ten of its intervals before, nor
    in the minute after. Or an operator reset a Kafka Streams application, which deletes its changelogs.

    Not: a group whose offset had been forgotten, which may have started again by itself.
    """
    if _is_streams_reset(facts, before, after):
        return True
    if find_forgotten(facts, before, after) is not None or not _is_empty_around(facts, before, after):
        return False
    had_members = facts.had_members(after.cluster, after.group, after.at)
    return (had_members and not _has_unseen_consumers(facts, before, after)) or _is_silent_around(facts, after)


def is_change_by_operator(facts: Facts, commits: History[Commit], at: int) -> bool:
    """Return whether an operator made the change of an idle group's committed offset at that moment (ms)."""
    before, after = next(iter(commits.before(at, 1)), None), commits.as_of(at)
    if before is None or after is None or not _is_empty_around(facts, before, after):
        return False
    return is_moved_by_operator(facts, before, after)


def may_be_moved_by_operator(facts: Facts, cluster: str, group: str, start: int, at: int) -> bool:
    """Return whether an operator may have made the group's move, in (start, at] (ms), as far as known by now. Cheap."""
    reading = _reading_before(facts, cluster, group, start, at)
    is_streams = facts.history(StreamsApplication, cluster, group).last is not None
    return is_streams or (reading is not None and is_empty(reading))


def operator_known_at(facts: Facts, after: Commit) -> int:
    """Return when it is known whether an operator made a move, in ms.

    5 s later for a Kafka Streams application with stores: until then its changelogs may be deleted.
    """
    known = facts.history(StreamsApplication, after.cluster, after.group).as_of(after.at)
    return after.seen + (_DELETION_MS if known is not None and known.stores else 0)


def is_small_step_without_members(facts: Facts, before: Commit, after: Commit) -> bool:
    """Return whether the offset of a group without members moved back by no more than it advances at a time.

    Such offsets are a tool's (MirrorMaker translates those of another cluster), or a consumer by assign() repeats its
    last records, as after any restart.
    """
    advances = [new - old for old, new in _moves(facts.history_of(after).before(after.at, _INTERVALS)) if new > old]
    is_small = bool(advances) and (before.offset or 0) - (after.offset or 0) <= median(advances)
    return is_small and _is_empty_around(facts, before, after)


def find_last_return(facts: Facts, cluster: str, group: str, at: int) -> int | None:
    """Return when the group was last known to be without members before members joined it, by `at` (ms), or None."""
    states = facts.history(GroupState, cluster, group)
    returns = (state.start for idle, state in pairwise(states) if is_empty(idle) and state.has_consumers)
    return max((returned for returned in returns if returned <= at), default=None)


def is_stopped(facts: Facts, commit: Commit) -> bool:
    """Return whether the group has had members but had none when the commit was made."""
    state = facts.history(GroupState, commit.cluster, commit.group).as_of(commit.at)
    had_members = facts.had_members(commit.cluster, commit.group, commit.at)
    return state is not None and is_empty(state) and had_members


def is_empty(state: GroupState) -> bool:
    """Return whether the group has no members, and none is joining it. Not if it was deleted."""
    return state.state == "Empty" and not state.members


def find_end_of_absence(facts: Facts, cluster: str, group: str, at: int) -> GroupState | None:
    """Return the first state after that moment in which the group is Dead or has consumers again, or None."""
    states = facts.history(GroupState, cluster, group).after(at)
    return next((state for state in states if state.is_gone or state.has_consumers), None)


def find_forgotten(facts: Facts, before: Commit, after: Commit) -> Commit | None:
    """Return when Kafka had forgotten the offset between two commits of a partition, as it was first seen, or None."""
    between = facts.history_of(after).between(before.at - 1, after.at - 1)
    return next((commit for commit in between if commit.offset is None), None)


def find_advances(history: History[Commit], begin: int, end: int) -> Iterator[Commit]:
    """Yield the commits in (begin, end] that advanced the offset, oldest first."""
    within = [commit for commit in history.between(begin, end) if commit.offset is not None]
    if within:
        first = next((commit for commit in history.backwards(begin) if commit.offset is not None), within[0])
        yield from (after for before, after in pairwise([first, *within]) if (after.offset or 0) > (before.offset or 0))


def find_latest_advances(history: History[Commit], begin: int, end: int) -> Iterator[Commit]:
    """Yield the commits in (begin, end] that advanced the offset, newest first."""
    after: Commit | None = None
    for commit in history.backwards(end):
        if commit.offset is not None:
            if after is not None and (after.offset or 0) > commit.offset:
                yield after
            after = commit
        if commit.at <= begin:
            return


def histories_of_group(facts: Facts, commit: Commit) -> Iterator[History[Commit]]:
    """Yield the commits of the group on its partitions, at most 50 of them, the commit's own first."""
    own = facts.history_of(commit)
    others = facts.histories(Commit, cluster=commit.cluster, group=commit.group)
    yield own
    yield from islice((history for history in others if history is not own), _MOST_PARTITIONS - 1)


def may_coincide(first: Observation, second: Observation) -> bool:
    """Return whether both changes may have happened at the same moment: each after its `since`, by its `at`."""
    return first.at == second.at or (first.start < second.at and second.start < first.at)


def _moves(commits: list[Commit]) -> Iterator[tuple[int, int]]:
    return pairwise(commit.offset for commit in commits if commit.offset is not None)


def _is_streams_reset(facts: Facts, before: Commit, after: Commit) -> bool:
    """Return whether a Kafka Streams application lost changelogs with the move: StreamsResetter deletes them after it.

    A store that was removed long before, while the old offset was still committed, is unrelated. An application that
    starts at once creates its changelogs again, perhaps between two readings: their topic ids are others then.
    """
    history = facts.history(StreamsApplication, after.cluster, after.group)
    begin, end = max(before.at, after.start - LATENESS_MS), after.at + LATENESS_MS
    known = history.as_of(begin)
    if known is None:
        return False
    stores = dict(known.stores).keys()
    if any(stores - dict(application.stores).keys() for application in history.between(begin, end)):
        return True
    changelogs = ((after.cluster, known.changelog(store), 0) for store in stores)
    ends = (incarnation for changelog in changelogs for incarnation in find_incarnation_ends(facts, changelog))
    return any(incarnation.is_certain and begin < incarnation.first.at <= end for incarnation in ends)


def _reading_before(facts: Facts, cluster: str, group: str, start: int, at: int) -> GroupState | None:
    """Return the group's state in the reading before a move in (start, at]."""
    return facts.history(GroupState, cluster, group).as_of(min(at - 1, start + _SAME_POLL_MS))


def _is_empty_around(facts: Facts, before: Commit, after: Commit) -> bool:
    """Return whether the group is Empty in the readings before and after the move."""
    if after.at - after.start > LATENESS_MS:
        return False  # in a longer time without readings, consumers may have come and gone
    reading = _reading_before(facts, after.cluster, after.group, after.start, after.at)
    if reading is None or not is_empty(reading):
        return False
    # A later state counts if it may have begun by the move; without `since`, with clock slack. The poll that shows the
    # move has read the state just before it.
    return all(
        is_empty(state)
        for state in facts.history(GroupState, after.cluster, after.group).after(reading.at)
        if state.at <= after.at + LATENESS_MS
        if (state.at - CLOCK_SLACK_MS if state.since is None else state.since + _SAME_POLL_MS) <= after.at
        and state.at > before.at
    )


def _has_unseen_consumers(facts: Facts, before: Commit, move: Commit) -> bool:
    """Return whether consumers may commit in the group while the readings show no members.

    Its offsets advance then, other than at the time of the move. If members show when the group advances otherwise, an
    operator may have moved a partition ahead once. If not, what moved it ahead between two readings is unknown, unless
    no consumer can have joined and left in between.
    """
    states = facts.history(GroupState, move.cluster, move.group)
    most, is_visible = 0, False
    for history in histories_of_group(facts, move):
        unseen = 0
        for commit in find_advances(history, LONG_AGO, move.at + LATENESS_MS):
            if abs(commit.at - move.at) <= _TOGETHER_MS or (move.since is not None and may_coincide(commit, move)):
                continue
            around = _states_around(states, commit)
            unseen += bool(around) and all(map(is_empty, around))
            is_visible = is_visible or (bool(around) and all(state.members for state in around))
        if unseen > _MOST_UNSEEN:
            return True
        most = max(most, unseen)
    can_have_read = (move.offset or 0) > (before.offset or 0) and move.at - move.start > _VISIT_MS
    return not is_visible and (most > 0 or can_have_read)


def _states_around(states: History[GroupState], commit: Commit) -> list[GroupState]:
    """Return the group's states when the commit can have been made, with clock slack; none if not known throughout."""
    first = states.as_of(commit.start - CLOCK_SLACK_MS)
    if first is None:
        return []
    later = states.after(first.at)
    return [first, *(state for state in later if min(state.start, state.at - CLOCK_SLACK_MS) <= commit.at)]


def _is_silent_around(facts: Facts, move: Commit) -> bool:
    histories = list(histories_of_group(facts, move))
    intervals = (commit_intervals(history.before(move.start, _INTERVALS)) for history in histories)
    sample = [ms for series in islice(filter(None, intervals), _SAMPLE) for ms in series]
    interval = median(sample) if sample else 0
    # Four intervals must pass in the minute after the move: slower groups cannot be judged.
    if not 0 < interval <= LATENESS_MS / 4:
        return False
    begin, end = math.floor(move.start - 10 * interval), move.at + LATENESS_MS
    return not any(_is_advanced_by_consumers(history, move, begin, end) for history in histories)


def _is_advanced_by_consumers(history: History[Commit], move: Commit, begin: int, end: int) -> bool:
    """Return whether the offset advanced in (begin, end] other than by a command: that moves it once, or not at all."""
    is_moved = False
    for commit in find_advances(history, begin, end):
        if not may_coincide(commit, move):
            if is_moved or abs(commit.at - move.at) > _TOGETHER_MS:
                return True
            is_moved = True
    return False
