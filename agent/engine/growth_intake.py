"""Takes in the log offsets of partitions that only grow, without an object for each."""

from collections.abc import Container, Hashable, Sequence

import numpy as np

from agent.engine.compact_list import packed_rows
from agent.engine.facts import Facts
from agent.engine.rule import Rule
from agent.model.batches import LogOffsetsBatch
from agent.model.observations.kafka import LogOffsets


def absorb_growth(
    batch: LogOffsetsBatch, facts: Facts, rules: Sequence[Rule], dependents: Container[Hashable]
) -> LogOffsetsBatch:
    """Add log offsets of different partitions to their histories; return those that a rule may look into, or new ones.

    rules: those that observe log offsets. dependents: the keys of what evaluations have read.
    """
    if facts.is_indexed(LogOffsets) or not all(rule.ignores_growth for rule in rules):
        return batch
    columns = facts.partitions
    found = [columns.find((batch.cluster, *batch.keys[number])) for number in batch.numbers.tolist()]
    ids, ends = np.array([-1 if number is None else number for number in found], np.int64), batch.log_ends
    is_growth = (ids >= 0) & (batch.log_starts == columns.log_start[ids]) & (ends >= columns.log_end[ids])
    is_growth &= ends >= columns.furthest[ids]
    is_changed = is_growth & (ends > columns.log_end[ids])
    times = batch.at.tolist()
    rows = packed_rows(LogOffsets, batch.fields())
    for place in np.flatnonzero(is_growth).tolist():
        at, history = times[place], facts.logs[int(ids[place])]
        if at < history.confirmed or (is_changed[place] and history.subject in dependents):
            is_growth[place] = False
        elif is_changed[place]:
            history.add_row(at, rows[place])
        else:
            history.confirmed = at
    is_changed &= is_growth
    columns.grow(ids[is_changed], batch.at[is_changed], ends[is_changed])
    return batch.select(~is_growth)
