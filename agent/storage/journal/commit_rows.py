"""Commits in columns as Arrow columns, without an object for each."""

import numpy as np
import pyarrow as pa

from agent.model.commit_batch import UNKNOWN, CommitBatch, Integers
from agent.model.observations.kafka import Commit
from agent.storage.journal.columns import Columns

_COLUMNS = Columns(Commit)


def to_arrow(position: int, commits: CommitBatch) -> pa.RecordBatch:
    """Return the rows of the journal, the first at this position."""
    keys, numbers = commits.keys, commits.numbers
    columns = {
        "position": np.arange(position, position + len(commits)),
        "at": commits.at,
        "seen_at": _nullable(commits.seen_at),
        "since": _nullable(commits.since),
        "cluster": pa.repeat(commits.cluster, len(commits)),
        "group": pa.array([key.group for key in keys], pa.string()).take(pa.array(numbers)),
        "topic": pa.array([key.topic for key in keys], pa.string()).take(pa.array(numbers)),
        "partition": np.array([key.partition for key in keys], np.int64)[numbers],
        "offset": _nullable(commits.offsets),
        "leader_epoch": _nullable(commits.leader_epochs),
    }
    schema = _COLUMNS.schema
    return pa.record_batch([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


def _nullable(values: Integers) -> pa.Array:
    return pa.array(values, mask=values == UNKNOWN)
