"""Takes in the log offsets of partitions that only grow, without an object for each."""

from collections.abc import Container, Hashable, Sequence
from itertools import compress

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
    ids, ends = columns.find_all(batch.cluster, batch.keys, batch.numbers), batch.log_ends
    is_growth = (ids >= 0) & (batch.log_starts == columns.log_start[ids]) & (ends >= columns.log_end[ids])
    is_growth &= ends >= columns.furthest[ids]
    is_changed = is_growth & (ends > columns.log_end[ids])
    rows = packed_rows(LogOffsets, batch.fields())
    values = zip(range(len(batch)), batch.at.tolist(), ids.tolist(), is_changed.tolist(), rows, strict=True)
    for place, at, number, changed, row in compress(values, is_growth.tolist()):
        history = facts.logs[number]
        if at < history.confirmed or (changed and history.subject in dependents):
            is_growth[place] = False
        elif changed:
            history.add_row(at, row)
        else:
            history.confirmed = at
    is_changed &= is_growth
    columns.grow(ids[is_changed], batch.at[is_changed], ends[is_changed])
    return batch.select(~is_growth)
