"""Queries about a reader's progress: since when it had read on normally."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from agent.engine.facts import FLOOR, LATENESS_MS, Facts, History
from agent.model.observations.flink import Position
from agent.model.observations.kafka import Commit, LogOffsets
from agent.rules.queries.unread import first_unread, remembered

_STALE_LEADER_MS = 15_000
"""How long a leader that has lost its partitions may still serve readers that do not know of it."""

_SAME_POLL_MS = 500
"""How far apart one poll reads a group's offsets and the logs."""

_NORMAL_MS = 60_000
"""How long a reader must read on to show that nothing is wrong: records fetched before are used up by then."""

_STEPS = 3
"""How many times its offset must advance meanwhile."""

_PAUSE_MS = 10_000
"""How long a reader may always pause between two offsets."""


def undisturbed_since(history: History[Commit] | History[Position], moved_at: int) -> int | None:
    """Return since when a reader had read on normally for a minute before it moved, by its offsets; None if unknown.

    Nothing before that made it move: a reader that loses its position fails, waits or moves within seconds. The minute
    may have been followed by a pause; then the cause may lie in the pause.
    """
    # No further back than histories reach until the finding is final.
    begin = moved_at - LATENESS_MS
    recent: list[Commit | Position] = [*history.before(begin, FLOOR), *history.between(begin - 1, moved_at - 1)]
    known = [state for state in recent if state.offset is not None]
    steps = [(before.at, after.at, (after.offset or 0) - (before.offset or 0)) for before, after in pairwise(known)]
    gaps = [end - begin for begin, end, advance in steps[-FLOOR:] if advance > 0]
    longest = max(_PAUSE_MS, 3 * median(gaps)) if gaps else 0
    run: list[int] = []
    for begin, end, advance in reversed(steps):
        if advance <= 0 or end - begin > longest:
            run = []
            continue
        run = [*(run or [end]), begin]
        if _is_normal(run):
            return begin
    return None


def fetched_since(facts: Facts, before: Commit | Position, after: Commit | Position) -> int | None:
    """Return after when a reader has fetched before it moved: its last record was written later. None if unknown.

    It fetched them from a leader whose log still had them when the old offset was last seen: no election before that
    put it out of range.
    """
    readings = remembered(facts.history(LogOffsets, before.cluster, before.topic, before.partition))
    known = [reading for reading in readings if reading.at <= after.start + _SAME_POLL_MS]
    written = first_unread(known, (before.offset or 0) - 1)
    return None if written is None or written[0] is None else written[0] - _STALE_LEADER_MS


def _is_normal(run: Sequence[int]) -> bool:
    return len(run) > _STEPS and run[0] - run[-1] >= _NORMAL_MS
