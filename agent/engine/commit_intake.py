"""Takes ordinary commits in as columns, and finds the series in columns that rules have to look at again."""

from collections.abc import Iterator, Sequence

import numpy as np

from agent.engine.commit_columns import Progress
from agent.engine.defects import SetAside
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.ordinary import CommitProgress, SeriesAtRest
from agent.engine.rule import Rule
from agent.model.batches import CommitBatch, Flags, Integers, differ_from_before
from agent.model.observations.kafka import Commit

_SERIES_AT_ONCE = 1 << 15
"""How many series are looked at together: what is computed of each takes memory."""


def one_per_key(numbers: Integers) -> Iterator[Integers]:
    """Yield the rows of commits so that those of a key come one after the other: each time one row of each key."""
    order = np.argsort(numbers, kind="stable")
    first = np.flatnonzero(differ_from_before(numbers[order]))
    if len(first) == len(order):
        yield np.arange(len(order))
        return
    turn = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    for number in range(int(turn.max()) + 1):
        yield np.sort(order[turn == number])


def absorb_ordinary(batch: CommitBatch, facts: Facts, rules: Sequence[Rule], set_aside: SetAside) -> CommitBatch:
    """Add commits of different series to the columns; return those that a rule may look into, or not in columns.

    rules: those that observe commits.
    """
    columns = facts.commits
    ids = columns.ids_of(batch.cluster, batch.keys, batch.numbers)
    is_known = ids >= 0
    known = batch if is_known.all() else batch.select(is_known)
    rows = Progress(ids[is_known], known.at, known.seen_at, known.since, known.offsets, known.leader_epochs)
    is_later = rows.at >= columns.confirmed[rows.ids]
    is_same = is_later & (rows.offsets == columns.last_offset[rows.ids])
    is_same &= rows.leader_epochs == columns.leader_epoch[rows.ids]
    columns.confirmed[rows.ids[is_same]] = rows.at[is_same]
    is_progress = is_later & (rows.offsets > columns.last_offset[rows.ids])
    is_progress[is_progress] = columns.fit(rows.select(is_progress))
    made = rows.select(is_progress)
    logs = facts.partitions.as_of(columns.partition[made.ids].astype(np.int64), made.at, facts.logs)
    progress = CommitProgress(columns, made, logs)
    for rule in rules:
        if len(progress):
            ignored = _ignored(rule, progress, facts, set_aside)
            is_progress[is_progress], progress = ignored, progress.select(ignored)
    columns.add(rows.select(is_progress))
    is_remaining = ~is_known
    is_remaining[is_known] = is_later & ~is_same & ~is_progress
    return batch.select(is_remaining)


def _ignored(rule: Rule, progress: CommitProgress, facts: Facts, set_aside: SetAside) -> Flags:
    try:
        return rule.ignores_progress(progress, facts)
    except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
        set_aside(f"rule {rule.kind}", error)
        return np.zeros(len(progress), np.bool_)


def series_to_revisit(facts: Facts, rules: Sequence[Rule], set_aside: SetAside) -> Iterator[History[Commit]]:
    """Yield the series in columns that not all rules ignore, as of then. rules: those that revisit commits."""
    columns = facts.commits
    used = columns.used()
    for begin in range(0, len(used), _SERIES_AT_ONCE):
        ids = used[begin : begin + _SERIES_AT_ONCE]
        ignored = np.ones(len(ids), np.bool_)
        series = SeriesAtRest(columns, ids, facts.now)
        for rule in rules:
            try:
                ignored &= rule.ignores_series(series, facts)
            except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
                set_aside(f"rule {rule.kind}", error)
                ignored[:] = False
        for subject in list(map(columns.subject, ids[~ignored].tolist())):
            history = facts.history(Commit, *subject[1:])
            if history.subject:  # it may have been forgotten since
                yield history
