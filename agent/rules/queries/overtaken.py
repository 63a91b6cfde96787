"""Queries about a log start offset that passes what a group has committed: whether it may have read the rest before."""

from itertools import pairwise

from agent.engine.history import LATENESS_MS, LONG_AGO, History
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.rules.queries.partitions import CLOCK_SLACK_MS, drop_unmoved
from agent.rules.queries.unread import REGULAR, log_end_at, longest_interval

_LONGEST_STEP_MS = 2 * LATENESS_MS + CLOCK_SLACK_MS
"""How long the steps of a group may take, to be waited for."""

_HASTE, _HASTE_BEHIND = 3, 1.5
"""How many times faster a reader may be than it was: if it read all there was, and if it was behind already."""


def find_overtaken(
    history: History[Commit],
    states: History[GroupState],
    log: History[LogOffsets],
    before: LogOffsets,
    after: LogOffsets,
) -> Commit | None:
    """Return the group's last commit below the log start offset when that passed it, or None.

    What the same poll read a moment later may have been committed before. A commit within the log that may have been
    made before the rise was seen shows that nothing is lost, unless no consumer of this pace can have read so far.
    """
    if after.log_start <= before.log_start:
        return None
    commits = history.before(after.at + LATENESS_MS + 1, len(history.changes))
    low = next(
        (
            index
            for index in range(len(commits) - 1, -1, -1)
            if commits[index].at <= after.at and (commits[index].offset or 0) < after.log_start
        ),
        None,
    )
    while low is not None and low + 1 < len(commits) and _still_below(commits[low], commits[low + 1], after):
        low += 1
    if low is None or commits[low].offset is None or (commits[low].offset or 0) < before.log_start:
        return None
    following = next((commit for commit in commits[low + 1 :] if (commit.offset or 0) >= after.log_start), None)
    if following is None or following.start > after.at:
        return commits[low]
    if following.at <= before.at or _deletes_what_it_read(following):
        return None
    joined = _last_without_members(states, following.at)
    moves = drop_unmoved(commits[: low + 1])
    return None if _can_have_read(moves, log, following.start, joined, after) else commits[low]


def _still_below(commit: Commit, following: Commit, rise: LogOffsets) -> bool:
    """Return whether the group may have committed this too, within the log, before its start offset rose."""
    is_same_poll = following.start <= rise.at and following.at <= rise.at + CLOCK_SLACK_MS
    return is_same_poll and (commit.offset or 0) < (following.offset or 0) < rise.log_start


def _last_without_members(states: History[GroupState], until: int) -> int:
    """Return when the group was last seen without members before it got some, until then at the latest."""
    joined = (
        after.start for before, after in pairwise(states) if after.members and not before.members and after.at <= until
    )
    return max(joined, default=LONG_AGO)


def _deletes_what_it_read(commit: Commit) -> bool:
    """Return whether the group is the Kafka Streams application whose repartition topic this is (KIP-204)."""
    return commit.topic.startswith(f"{commit.group}-") and commit.topic.endswith("-repartition")


def _can_have_read(
    moves: list[Commit], log: History[LogOffsets], unmoved_until: int, joined: int, rise: LogOffsets
) -> bool:
    """Return whether a reader that committed these moves may have read all before it was deleted.

    unmoved_until: when it had committed nothing more: it may have read for an interval between two commits by then.
    joined: it did not read before that, as it had no members.
    """
    if len(moves) < REGULAR or (_has_rewound(moves) and joined < moves[-1].at):
        return True
    pace = max(_best_pace(log, before, after) for before, after in pairwise(moves))
    begin = max(max(moves[-1].at, unmoved_until) - longest_interval(moves), joined)
    return (moves[-1].offset or 0) + pace * (rise.at - begin) >= rise.log_start


def _has_rewound(moves: list[Commit]) -> bool:
    """Return whether the last move was a rewind: the reader may now read faster than it ever had to."""
    return (moves[-1].offset or 0) < (moves[-2].offset or 0)


def _best_pace(log: History[LogOffsets], before: Commit, after: Commit) -> float:
    """Return how many records per ms a reader that made this move can read: more than it did, if it had caught up."""
    read = (after.offset or 0) - (before.offset or 0)
    log_end = log_end_at(log, after.at)
    is_behind = log_end is not None and log_end - (after.offset or 0) > read
    return (_HASTE_BEHIND if is_behind else _HASTE) * read / max(after.at - before.at, 1)


def unclear_until(history: History[Commit], commit: Commit, after: LogOffsets) -> int | None:
    """Return until when the next commit may show that nothing was lost, ms; None if it does.

    If the next step comes as soon as ever and goes hardly further, what was deleted may have been read before: by a
    consumer that had not committed it yet, or by what a tool such as MirrorMaker commits for.
    """
    moves = drop_unmoved([known for known in history if known.at <= commit.at])
    interval = longest_interval(moves)
    if len(moves) < REGULAR or interval > _LONGEST_STEP_MS:
        return after.at
    due = moves[-1].at + interval * 3 // 2
    step = max((new.offset or 0) - (old.offset or 0) for old, new in pairwise(moves))
    later = history.between(after.at, due)
    following = next((known for known in later if (known.offset or 0) >= after.log_start), None)
    if following is None:
        return max(due, after.at)
    is_usual = (following.offset or 0) - (commit.offset or 0) <= step * 3 // 2
    return None if is_usual or _has_rewound(moves) else following.seen
