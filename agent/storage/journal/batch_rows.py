"""Batches in columns as Arrow columns and back, without an object for each observation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from agent.model.batches import UNKNOWN, CommitBatch, CommitKeys, Integers, LogOffsetsBatch, ObservationBatch
from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.storage.journal.columns import Columns, column_of

BATCHES: Mapping[str, type[ObservationBatch[Any]]] = {
    name: batch for name, kind in KINDS.items() for batch in (CommitBatch, LogOffsetsBatch) if batch.kind is kind
}
"""What can be read as columns, by the names of kinds."""

_columns = cache(Columns)

_ROWS_OF_NEW_KEYS = 1 / 16
"""From how many rows of new keys on, per key, those of all keys are made again: a row takes much longer by itself."""


class BatchRows:
    """Makes rows of batches. What the keys are called is kept in columns as long as batches share their keys."""

    def __init__(self) -> None:
        self._names: dict[tuple[type[Observation], str], _Names] = {}

    def to_arrow(self, position: int, batch: ObservationBatch[Any]) -> pa.RecordBatch:
        """Return the rows of the journal, the first at this position."""
        names = self._names.get((batch.kind, batch.cluster))
        if names is None or names.keys is not batch.keys:
            names = self._names[batch.kind, batch.cluster] = _Names(batch.keys)
        columns: dict[str, Any] = {
            "position": np.arange(position, position + len(batch)),
            "cluster": pa.repeat(batch.cluster, len(batch)),
            **{name: pa.array(values, mask=values == UNKNOWN) for name, values in batch.fields().items()},
            **dict(zip(batch.key._fields, names.of(batch.numbers), strict=True)),
        }
        schema = _columns(batch.kind).schema
        return pa.record_batch([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


class _Names:
    """Keys as columns, which are made again once there have been many rows of keys that came later."""

    def __init__(self, keys: Sequence[Any]) -> None:
        self.keys = keys
        self._columns: list[pa.Array] = []
        self._count = self._since = 0

    def of(self, numbers: Integers) -> list[pa.Array]:
        """Return the columns of rows that are about the keys with these numbers."""
        if numbers.max() >= self._count:
            self._since += len(numbers)
            if self._since < _ROWS_OF_NEW_KEYS * len(self.keys):
                return _in_columns([self.keys[number] for number in numbers.tolist()])
            count = len(self.keys)
            self._columns, self._count, self._since = _all_in_columns(self.keys, count), count, 0
        return [column.take(pa.array(numbers)) for column in self._columns]


def _all_in_columns(keys: Sequence[Any], count: int) -> list[pa.Array]:
    """Return the first keys, which may grow meanwhile, as columns."""
    if not isinstance(keys, CommitKeys):
        return _in_columns(keys[:count])
    groups, partitions = keys.group_numbers()[:count], keys.partition_numbers()[:count]
    topics, numbers = zip(*keys.partitions, strict=True)
    return [
        pa.DictionaryArray.from_arrays(groups, keys.groups[:]),
        pa.DictionaryArray.from_arrays(partitions, pa.array(topics)),
        pa.DictionaryArray.from_arrays(partitions, pa.array(numbers)),
    ]


def _in_columns(keys: Sequence[Any]) -> list[pa.Array]:
    columns = [pa.array([key[place] for key in keys]) for place in range(len(keys[0]))]
    return [column.dictionary_encode() if pa.types.is_string(column.type) else column for column in columns]


def from_arrow(
    kind: type[ObservationBatch[Any]], rows: pa.RecordBatch
) -> Iterator[tuple[Integers, ObservationBatch[Any]]]:
    """Yield positions and observations in columns, those of each cluster apart.

    Raises ValueError, TypeError or KeyError if a column is missing or of another type, or a value does not fit.
    """
    schema = _columns(kind.kind).schema
    times = {name: name for name in ("at", "seen_at", "since")}
    positions = _integers(rows, schema.field("position"))
    fields = {name: _integers(rows, schema.field(field)) for name, field in {**times, **kind.values}.items()}
    for name, required in (("position", positions), ("at", fields["at"])):
        if (required == UNKNOWN).any():
            msg = f"`{name}` has no value"
            raise ValueError(msg)
    (clusters, cluster_of), *encoded = (_encoded(rows, schema.field(name)) for name in ("cluster", *kind.key._fields))
    code: Integers = np.zeros(len(positions), np.int64)
    for values, places in encoded:
        code = code * len(values) + places
    codes, numbers = np.unique(code, return_inverse=True)
    keys: list[list[Any]] = []
    for values, _ in reversed(encoded):
        codes, remainders = np.divmod(codes, len(values))
        keys.append([values[place] for place in remainders.tolist()])
    whole = kind("", [kind.key(*key) for key in zip(*reversed(keys), strict=True)], numbers, **fields)
    for number, cluster in enumerate(clusters):
        chosen = cluster_of == number
        yield positions[chosen], replace(whole.select(chosen), cluster=cluster)


def _encoded(rows: pa.RecordBatch, field: pa.Field) -> tuple[list[Any], Integers]:
    """Return the different values of a column that has a value in each row, and the number of each row's."""
    column = column_of(rows, field.name, field.type)
    if column.null_count:
        msg = f"`{field.name}` has no value"
        raise ValueError(msg)
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _integers(rows: pa.RecordBatch, field: pa.Field) -> Integers:
    """Return a column of integers; UNKNOWN for null, and throughout where an older version wrote none."""
    if rows.schema.get_field_index(field.name) < 0:
        return np.full(len(rows), UNKNOWN, np.int64)
    column = column_of(rows, field.name, field.type).cast(pa.int64())
    values: Integers = column.fill_null(UNKNOWN).to_numpy()
    if np.count_nonzero(values == UNKNOWN) != column.null_count:
        msg = f"`{field.name}` is {UNKNOWN}"
        raise ValueError(msg)
    return values
