"""What rules are asked of many series at once, so that most commits need no object: which of them they ignore.

A rule stays the only definition of what is wrong. It may ignore only what its `scopes` or `revisit` would return
nothing for; whatever it does not ignore is passed to these.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.engine.commit_columns import CommitColumns, Progress
from agent.engine.partition_columns import LogsThen, Numbers, Partition
from agent.model.batches import UNKNOWN, Flags, Integers


class CommitProgress:
    """Commits of different series in columns, each further than the one before it.

    at: ms. offset: committed. offset_before: the one before. logs: what was known of their logs at `at`.
    """

    def __init__(self, columns: CommitColumns, rows: Progress, logs: LogsThen) -> None:
        self._columns, self._rows, self._ids = columns, rows, rows.ids
        self.at, self.offset, self.logs = rows.at, rows.offsets, logs
        self._since = rows.since
        self.offset_before = columns.last_offset[rows.ids]
        self._partition = columns.partition[rows.ids]

    def __len__(self) -> int:
        """Return the number of commits."""
        return len(self.at)

    def select(self, rows: Flags) -> "CommitProgress":
        """Return these commits."""
        return self if rows.all() else CommitProgress(self._columns, self._rows.select(rows), self.logs.select(rows))

    def of_partition(self, column: Integers) -> Integers:
        """Return what a column of `PartitionColumns` says of the commits' partitions."""
        return column[self._partition]

    def where(self, rows: Flags, holds: Callable[[str, str, int, int], bool]) -> Flags:
        """Return for which of these rows something holds, by cluster, group, start and at; False for the others."""
        found = np.zeros(len(rows), np.bool_)
        for row in np.flatnonzero(rows).tolist():
            at, since = int(self.at[row]), int(self._since[row])
            group = self._columns.group(int(self._ids[row]))
            found[row] = holds(*group, at if since == UNKNOWN else min(since, at), at)
        return found

    def last_moves(self, rows: Flags, count: int) -> tuple[Integers, Integers, Flags]:
        """Return of these rows the moves before the last commit, see `CommitColumns.recent_moves`, and its own.

        The first column is the move to the commit itself.
        """
        ids = self._ids[rows]
        took, advance, exists = self._columns.recent_moves(ids, count - 1)
        own_took = self.at[rows] - self._columns.last_at[ids]
        own_advance = self.offset[rows] - self.offset_before[rows]
        return (
            np.column_stack([own_took, took]),
            np.column_stack([own_advance, advance]),
            np.column_stack([np.ones(len(ids), np.bool_), exists]),
        )


class SeriesAtRest:
    """Series in columns, as of now (ms)."""

    def __init__(self, columns: CommitColumns, ids: Integers, now: int) -> None:
        self.now = now
        self._columns, self._ids = columns, ids

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._ids)

    def select(self, rows: Flags) -> "SeriesAtRest":
        """Return these series."""
        return SeriesAtRest(self._columns, self._ids[rows], self.now)

    @cached_property
    def last_at(self) -> Integers:
        """When each committed last."""
        return self._columns.last_at[self._ids]

    @cached_property
    def last_offset(self) -> Integers:
        """The last committed offset of each."""
        return self._columns.last_offset[self._ids]

    @cached_property
    def oldest_offset(self) -> Integers:
        """The first committed offset that is kept of each."""
        return self._columns.oldest_offsets(self._ids)

    def offsets_as_of(self, times: Sequence[int]) -> Integers:
        """Return the committed offset of each at each of these moments; UNKNOWN before the first that is kept."""
        return self._columns.offsets_as_of(self._ids, times)

    @cached_property
    def log_end(self) -> Integers:
        """The log end offsets of their partitions as known last."""
        return self.of_partition(self._columns.partitions.log_end)

    @cached_property
    def _partition(self) -> Numbers:
        return self._columns.partition[self._ids]

    def of_partition(self, column: Integers) -> Integers:
        """Return what a column of `PartitionColumns` says of the series' partitions."""
        return column[self._partition]

    def by_partition(self, value_of: Callable[[Partition], Any]) -> NDArray[Any]:
        """Return a value of each series' partition, or a row of values."""
        numbers, places = np.unique(self._partition, return_inverse=True)
        names = self._columns.partitions.names
        return np.array([value_of(names[number]) for number in numbers.tolist()])[places]

    def by_group(self, value_of: Callable[[str, str], int], rows: Flags) -> Integers:
        """Return a value, by cluster and group, of the groups of these rows; 0 for the others."""
        found = np.zeros(len(rows), np.int64)
        known: dict[tuple[str, str], int] = {}
        for row in np.flatnonzero(rows).tolist():
            group = self._columns.group(int(self._ids[row]))
            if group not in known:
                known[group] = value_of(*group)
            found[row] = known[group]
        return found

    @property
    def longest_at_most(self) -> Integers:
        """No time between two commits of each that are kept is longer, ms."""
        return self._columns.longest_at_most[self._ids]

    def has_paused(self, rows: Flags, limit: int) -> Flags:
        """Return which of these series have at least `limit` ms between two commits, as far as kept."""
        return self._columns.has_paused(self._ids[rows], limit)

    def where(self, rows: Flags, holds: Callable[[Integers, Integers], Flags]) -> Flags:
        """Return for which of these series something holds, by their places and intervals; False for the others.

        holds: called with some of them at a time. Intervals: as `CommitColumns.intervals` yields them.
        """
        found, places = np.zeros(len(rows), np.bool_), np.flatnonzero(rows)
        for part, intervals in self._columns.intervals(self._ids[places]):
            found[places[part]] = holds(places[part], intervals)
        return found
