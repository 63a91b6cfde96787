"""Where the agent's clock was set back, as its ticks show, and the times of what it observed while it was ahead."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute

from agent.model.batches import Integers
from agent.storage.journal.columns import INSTANT
from agent.storage.journal.segments import UNREADABLE

LEAST_MS = 1_000
"""The smallest step that `read_steps` returns: less is within the allowed lateness."""

_TIMES = ("at", "seen_at", "since")


class ClockStep(NamedTuple):
    """The agent's clock was set back between two ticks. before, after: their positions; old, new: their times, ms."""

    before: int
    after: int
    old: int
    new: int


def find_steps(positions: Integers, times: Integers) -> list[ClockStep]:
    """Return the steps between ticks, given in order of position."""
    set_back = np.flatnonzero(np.diff(times) < 0)
    return [ClockStep(*positions[at : at + 2].tolist(), *times[at : at + 2].tolist()) for at in set_back]


def read_steps(batches: Iterable[pa.RecordBatch]) -> list[ClockStep]:
    """Return the steps between the ticks of record batches, given in any order. Skips damaged ones."""
    columns = []
    for batch in batches:
        with suppress(*UNREADABLE):
            columns.append([batch.column(name).cast(pa.int64()).to_numpy() for name in ("position", "at")])
    if not columns:
        return []
    positions, times = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(positions)
    steps = find_steps(positions[order], times[order])
    return [step for step in steps if step.old - step.new >= LEAST_MS]


def date_back(batch: pa.RecordBatch, steps: Sequence[ClockStep]) -> pa.RecordBatch:
    """Return observations of any kind with the times that a clock which was ahead had by the size of its step.

    Their order remains. Between the two ticks, what is nearer to the second one was observed after the step.
    """
    schema = batch.schema
    times = [field for field in schema if field.name in _TIMES and field.type == INSTANT]
    if not steps or not times or pa.field("position", pa.int64()) not in schema:
        return batch
    position = batch.column("position")
    for step in steps:
        for field in times:
            time = batch.column(field.name).view(pa.int64())
            least = compute.if_else(compute.less_equal(position, step.before), step.new, (step.old + step.new) // 2)
            is_ahead = compute.and_(compute.less(position, step.after), compute.greater(time, least))
            dated = compute.if_else(is_ahead, compute.subtract(time, step.old - step.new), time)
            batch = batch.set_column(schema.get_field_index(field.name), field, dated.view(field.type))
    return batch
