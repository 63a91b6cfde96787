"""The commits of groups that make ordinary progress, in columns: without an object for each series or commit.

A series is a group's committed offset of a partition. Here it has at least the commits that a `History` would keep, in
a ring of KEPT. A series that has more of them, or that a rule looks into, has a `History` instead.
"""

from array import array
from collections.abc import Sequence
from sys import intern
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from agent.engine.history import FLOOR, RETENTION_MS
from agent.engine.partition_columns import NumbersByKeys, PartitionColumns
from agent.model.batches import UNKNOWN, CommitKey, Flags, Integers
from agent.model.observations.base import Subject
from agent.model.observations.kafka import Commit

KEPT = 96
"""The most commits of a series: enough for one every 3.4 s."""

_ROW = np.dtype([("at", "<u4"), ("offset", "<u4"), ("apart", "<u4")])
"""A commit. at, offset: above those of the series' first. apart: how long after at it was seen, ms; with _SINCE, how
long before at the value before it was seen last.
"""

_MOST = (1 << 32) - 1
_SINCE = 1 << 31
_ROWS = 256


class Progress(NamedTuple):
    """Commits of different series, in rows."""

    ids: Integers
    at: Integers
    seen_at: Integers
    since: Integers
    offsets: Integers
    leader_epochs: Integers

    def select(self, rows: Flags) -> "Progress":
        """Return these rows."""
        return self if rows.all() else Progress(*(column[rows] for column in self))


class CommitColumns:
    """Series by their ids. last_at, last_offset: of the last commit. confirmed: when it was last seen to hold, ms."""

    def __init__(self, partitions: PartitionColumns) -> None:
        self.partitions = partitions
        self.keys: list[CommitKey | None] = []
        self.clusters: list[str] = []
        self._ids: dict[str, dict[CommitKey, int]] = {}
        self._by_keys = NumbersByKeys()
        self._free: list[int] = []
        self._of_group: dict[tuple[str, str], array[int]] = {}
        self._of_partition: dict[int, array[int]] = {}
        self.last_at, self.last_offset, self.confirmed = (np.zeros(_ROWS, np.int64) for _ in range(3))
        self._first_at, self._first_offset = (np.zeros(_ROWS, np.int64) for _ in range(2))
        self._longest_pause = np.zeros(_ROWS, np.int64)  # or longer than that, if that commit is no longer kept
        self.leader_epoch, self.partition = (np.zeros(_ROWS, np.int32) for _ in range(2))
        self._written = np.zeros(_ROWS, np.int64)
        self._number = np.zeros(_ROWS, np.int64)
        self._rows = np.zeros((KEPT, _ROWS), _ROW)  # what is not used takes no memory

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self.keys) - len(self._free)

    # --- finding series

    def ids_of(self, cluster: str, keys: Sequence[CommitKey], numbers: Integers) -> Integers:
        """Return the ids of the series of keys, each named once by its number in `keys`; -1 of one that is not here."""
        ids = self._by_keys.of(cluster, keys)
        found = ids[numbers]
        unsure = np.flatnonzero((found < 0) | (self._number[found] != numbers))
        if len(unsure):
            asked, find = numbers[unsure], self._ids.get(cluster, {}).get
            answers = np.array([find(keys[number], -1) for number in asked.tolist()], np.int64)
            found[unsure] = ids[asked] = answers
            self._number[answers[answers >= 0]] = asked[answers >= 0]
        return found

    def find(self, subject: Subject) -> int | None:
        """Return the id of the series with this subject, or None."""
        ids = self._ids.get(cast("str", subject[1]))
        return None if ids is None else ids.get(cast("CommitKey", subject[2:]))

    def subject(self, number: int) -> Subject:
        """Return the subject of a series."""
        return (Commit.subject_kind, self.clusters[number], *cast("CommitKey", self.keys[number]))

    def group(self, number: int) -> tuple[str, str]:
        """Return the cluster and the group of a series."""
        return self.clusters[number], cast("CommitKey", self.keys[number]).group

    @property
    def groups(self) -> set[tuple[str, str]]:
        """The cluster and group of all series."""
        return set(self._of_group)

    def used(self) -> Integers:
        """Return the ids of all series."""
        return np.flatnonzero(self._written[: len(self.keys)])

    def of_partition(self, cluster: str, topic: str, partition: int) -> Integers:
        """Return the ids of the series of a partition."""
        number = self.partitions.find((cluster, topic, partition))
        return np.array(self._of_partition.get(-1 if number is None else number, ()), np.int64)

    def matching(self, fields: dict[str, Any]) -> list[int]:
        """Return the ids of the series with these values of key fields."""
        names = fields.keys()
        if names >= {"cluster", "topic", "partition"}:
            ids: Sequence[int] = self.of_partition(fields["cluster"], fields["topic"], fields["partition"]).tolist()
        elif names >= {"cluster", "group"}:
            ids = self._of_group.get((fields["cluster"], fields["group"]), ())
        else:
            ids = self.used().tolist()
        wanted = {name: value for name, value in fields.items() if name != "cluster"}
        return [
            number
            for number in ids
            if fields.get("cluster", self.clusters[number]) == self.clusters[number]
            and all(getattr(self.keys[number], name) == value for name, value in wanted.items())
        ]

    # --- commits

    def fit(self, rows: Progress) -> Flags:
        """Return which commits can be added to their series."""
        at, offset = rows.at - self._first_at[rows.ids], rows.offsets - self._first_offset[rows.ids]
        apart = self._apart(rows)
        fits: Flags = (
            (at >= 0) & (at <= _MOST) & (offset >= 0) & (offset <= _MOST) & (apart >= 0) & (apart < _SINCE)
            & ((rows.seen_at == UNKNOWN) | (rows.since == UNKNOWN))
            & (rows.leader_epochs == self.leader_epoch[rows.ids])
        )  # fmt: skip
        return fits & ~self._is_full(rows)

    def _is_full(self, rows: Progress) -> Flags:
        """Return whether the commit that would be overwritten has to be kept."""
        written = self._written[rows.ids]
        kept_at = self._first_at[rows.ids] + self._rows["at"][(written + FLOOR) % KEPT, rows.ids]
        full: Flags = (written >= KEPT) & (kept_at >= rows.at - RETENTION_MS)
        return full

    def add(self, rows: Progress) -> None:
        """Add a commit that fits to each of different series."""
        ids = rows.ids
        self._rows[self._written[ids] % KEPT, ids] = self._pack(rows)
        self._written[ids] += 1
        self._longest_pause[ids] = np.maximum(self._longest_pause[ids], rows.at - self.last_at[ids])
        self.last_at[ids] = self.confirmed[ids] = rows.at
        self.last_offset[ids] = rows.offsets
        self.partitions.commit(self.partition[ids].astype(np.int64), rows.offsets)

    def _pack(self, rows: Progress) -> NDArray[Any]:
        packed = np.empty(len(rows.ids), _ROW)
        packed["at"] = rows.at - self._first_at[rows.ids]
        packed["offset"] = rows.offsets - self._first_offset[rows.ids]
        packed["apart"] = self._apart(rows) + np.where(rows.since == UNKNOWN, 0, _SINCE)
        return packed

    @staticmethod
    def _apart(rows: Progress) -> Integers:
        """Return how long before a commit the one before it was seen last, else how long after it it was seen, ms."""
        seen = np.where(rows.seen_at == UNKNOWN, 0, rows.seen_at - rows.at)
        return np.where(rows.since == UNKNOWN, seen, rows.at - rows.since)

    def recent_moves(self, ids: Integers, count: int) -> tuple[Integers, Integers, Flags]:
        """Return how long the last moves of series took, ms, how far they went, and which of them exist.

        count: how many moves of each, below KEPT; newest first.
        """
        written, steps = self._written[ids][:, None], np.arange(1, count + 2)
        rows = self._rows[(written - steps) % KEPT, ids[:, None]]
        at, offsets = rows["at"].astype(np.int64), rows["offset"].astype(np.int64)
        return at[:, :-1] - at[:, 1:], offsets[:, :-1] - offsets[:, 1:], steps[1:] <= written

    def has_paused(self, ids: Integers, limit: int) -> Flags:
        """Return which series have at least `limit` ms between two commits that are kept."""
        paused: Flags = self._longest_pause[ids] >= limit
        took, _, exists = self.recent_moves(ids[paused], KEPT - 1)
        self._longest_pause[ids[paused]] = np.where(exists, took, 0).max(axis=1)
        return self._longest_pause[ids] >= limit

    def oldest_offsets(self, ids: Integers) -> Integers:
        """Return the offset of the first commit that is kept of each series."""
        slots = np.maximum(self._written[ids] - KEPT, 0) % KEPT
        oldest: Integers = self._first_offset[ids] + self._rows["offset"][slots, ids]
        return oldest

    def rows_of(self, number: int) -> list[tuple[int, int | None, int | None, int, int | None]]:
        """Return the commits of a series, oldest first: at, seen_at, since, offset, leader epoch. From any thread."""
        packed, written = self._rows[:, number].tolist(), int(self._written[number])
        slots = [index % KEPT for index in range(max(written - KEPT, 0), written)]
        first_at, first_offset, epoch = (
            int(column[number]) for column in (self._first_at, self._first_offset, self.leader_epoch)
        )
        leader_epoch = None if epoch == UNKNOWN else epoch
        return [
            (
                first_at + at,
                first_at + at + apart if 0 < apart < _SINCE else None,
                first_at + at + _SINCE - apart if apart >= _SINCE else None,
                first_offset + offset,
                leader_epoch,
            )
            for at, offset, apart in map(packed.__getitem__, slots)
        ]

    # --- series

    def put(self, commits: Sequence[Commit], confirmed: int) -> bool:
        """Keep a series, of up to KEPT commits, as columns if it fits: it only advanced, with one leader epoch."""
        first = commits[0]
        if any(commit.offset is None or commit.leader_epoch != first.leader_epoch for commit in commits):
            return False
        fields = [(commit.at, commit.seen_at, commit.since, commit.offset) for commit in commits]
        columns = np.array([[UNKNOWN if value is None else value for value in row] for row in fields], np.int64).T
        at, seen_at, since, offsets = columns
        if (np.diff(offsets) <= 0).any():
            return False
        number = self._free.pop() if self._free else self._append()
        self._first_at[number], self._first_offset[number] = at[0], offsets[0]
        self.leader_epoch[number] = UNKNOWN if first.leader_epoch is None else first.leader_epoch
        ids = np.full(len(commits), number)
        rows = Progress(ids, at, seen_at, since, offsets, self.leader_epoch[ids].astype(np.int64))
        self._written[number] = 0
        if not self.fit(rows).all():
            self._free.append(number)
            return False
        packed = self._pack(rows)
        self._rows[: len(commits), number] = packed
        self._written[number] = len(commits)
        self.last_at[number], self.last_offset[number] = at[-1], offsets[-1]
        self._longest_pause[number] = np.diff(at).max(initial=0)
        self.confirmed[number] = confirmed
        self._register(number, first)
        return True

    def _register(self, number: int, commit: Commit) -> None:
        key = CommitKey(intern(commit.group), intern(commit.topic), commit.partition)
        self.keys[number], self.clusters[number] = key, commit.cluster
        self._ids.setdefault(commit.cluster, {})[key] = number
        partition = self.partitions.number_of((commit.cluster, commit.topic, commit.partition))
        self.partition[number] = partition
        self._of_group.setdefault((commit.cluster, commit.group), array("q")).append(number)
        self._of_partition.setdefault(partition, array("q")).append(number)

    def _append(self) -> int:
        number = len(self.keys)
        self.keys.append(None)
        self.clusters.append("")
        if number == len(self.last_at):
            self._grow()
        return number

    def _grow(self) -> None:
        """Make room for a quarter more series."""
        more = len(self.last_at) // 4 + _ROWS
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and column is not self._rows:
                setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))
        count, used = self._rows.shape[1], min(int(self._written.max()), KEPT)
        rows = np.zeros((KEPT, count + more), _ROW)
        rows[:used, :count] = self._rows[:used]
        self._rows = rows

    def remove(self, number: int) -> None:
        """Forget a series."""
        cluster, key = self.clusters[number], cast("CommitKey", self.keys[number])
        del self._ids[cluster][key]
        self._remove_from(self._of_group, (cluster, key.group), number)
        self._remove_from(self._of_partition, int(self.partition[number]), number)
        self.keys[number] = None
        self._written[number], self._number[number] = 0, -1
        self._free.append(number)

    @staticmethod
    def _remove_from(index: dict[Any, "array[int]"], name: object, number: int) -> None:
        index[name].remove(number)
        if not index[name]:
            del index[name]
