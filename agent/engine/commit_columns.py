"""The commits of groups that make ordinary progress, in columns: without an object for each series or commit.

A series is a group's committed offset of a partition. Here it has at least the commits that a `History` would keep, in
`CommitRings`. A series that has more of them, or that a rule looks into, has a `History` instead.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from agent.engine.commit_rings import LENGTHS, CommitRings, Steps, with_room
from agent.engine.compact_list import CompactList
from agent.engine.history import FLOOR, RETENTION_MS, History
from agent.engine.partition_columns import NumbersByKeys, PartitionColumns
from agent.model.batches import UNKNOWN, CommitKey, Flags, Integers
from agent.model.observations.base import Subject
from agent.model.observations.kafka import Commit

_Group: TypeAlias = tuple[str, str]
"""A cluster and a group."""

_NO_GROUP: _Group = ("", "")

_UNPACKED_AT_ONCE = 1 << 11
"""Of how many series all commits are unpacked together."""

_NONE = np.zeros(0, np.int64)

_ID_BITS = 32


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


class Mark(NamedTuple):
    """A series at some moment: how many commits it had had, and when (ms) and of which offset the last one was."""

    written: int
    at: int
    offset: int


class CommitColumns:
    """Series by their ids.

    last_at, last_offset: of the last commit. confirmed: when it was last seen to hold, ms. longest_at_most: no time
    between two commits that are kept is longer, ms.
    """

    def __init__(self, partitions: PartitionColumns) -> None:
        self.partitions = partitions
        self._groups: list[_Group] = []
        self._by_keys = NumbersByKeys(np.int64)
        self._free: dict[int, list[int]] = {length: [] for length in LENGTHS}
        self._of_group: dict[_Group, array[int]] = {}
        self._of_partition: dict[int, array[int]] = {}
        self.last_at, self.last_offset, self.confirmed = (np.zeros(0, np.int64) for _ in range(3))
        self._oldest_offset = np.zeros(0, np.int64)
        self._floor_at = np.zeros(0, np.int64)  # of the commit after the FLOOR oldest ones
        self.longest_at_most = np.zeros(0, np.int64)
        self.leader_epoch, self.partition = (np.zeros(0, np.int32) for _ in range(2))
        self._generation = np.zeros(0, np.int32)  # how many series have had this id before
        self._rings = CommitRings()
        self._add_block(LENGTHS[0])

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._groups) - sum(map(len, self._free.values()))

    # --- finding series

    def ids_of(self, cluster: str, keys: Sequence[CommitKey], numbers: Integers) -> Integers:
        """Return the ids of the series of keys, each named once by its number in `keys`; -1 of one that is not here."""
        remembered = self._by_keys.of(cluster, keys)  # ids, and above _ID_BITS whose they were then
        known = remembered[numbers]
        found = known.astype(np.int32).astype(np.int64)
        unsure = np.flatnonzero(self._generation[found] != known >> _ID_BITS)  # also what is not known: -1
        if len(unsure):
            asked = numbers[unsure]
            answers = self._find_all(cluster, [keys[number] for number in asked.tolist()])
            found[unsure] = answers
            generations = self._generation[answers].astype(np.int64) << _ID_BITS
            remembered[asked] = np.where(answers < 0, -1, answers | generations)
        return found

    def _find_all(self, cluster: str, keys: Iterable[CommitKey]) -> Integers:
        """Return the ids of the series of keys, a group's at once where they follow each other; -1 of one not here."""
        find, parts = self.partitions.find, [_NONE]
        for group, of_group in groupby(keys, key=attrgetter("group")):
            found = [find((cluster, key.topic, key.partition)) for key in of_group]
            partitions = [-1 if number is None else number for number in found]
            parts.append(self._of_group_in((cluster, group), partitions))
        return np.concatenate(parts)

    def _of_group_in(self, group: _Group, partitions: Sequence[int]) -> Integers:
        """Return the ids of a group's series of partitions, by their numbers; -1 of one that is not here."""
        ids = np.array(self._of_group.get(group, ()), np.int64)
        if not len(ids):
            return np.full(len(partitions), -1)
        of_ids = self.partition[ids]
        order = np.argsort(of_ids)
        places = order[np.searchsorted(of_ids, partitions, sorter=order).clip(max=len(ids) - 1)]
        return np.where(of_ids[places] == partitions, ids[places], -1)

    def find(self, subject: Subject) -> int | None:
        """Return the id of the series with this subject, or None."""
        _, cluster, group, topic, partition = cast("tuple[str, str, str, str, int]", subject)
        place = self.partitions.find((cluster, topic, partition))
        found = -1 if place is None else int(self._of_group_in((cluster, group), [place])[0])
        return None if found < 0 else found

    def subject(self, number: int) -> Subject:
        """Return the subject of a series."""
        _, topic, partition = self.partitions.names[self.partition[number]]
        return (Commit.subject_kind, *self._groups[number], topic, partition)

    def group(self, number: int) -> _Group:
        """Return the cluster and the group of a series."""
        return self._groups[number]

    def newest_of(self, cluster: str, group: str) -> int:
        """Return when a group that has series committed last in any of them, ms."""
        return int(self.last_at[np.array(self._of_group[cluster, group])].max())

    @property
    def groups(self) -> set[_Group]:
        """The cluster and group of all series."""
        return set(self._of_group)

    def used(self) -> Integers:
        """Return the ids of all series."""
        return np.flatnonzero(self._rings.written[: len(self._groups)])

    def of_partition(self, cluster: str, topic: str, partition: int) -> Integers:
        """Return the ids of the series of a partition."""
        number = self.partitions.find((cluster, topic, partition))
        return np.array(self._of_partition.get(-1 if number is None else number, ()), np.int64)

    def matching(self, fields: dict[str, Any]) -> list[int]:
        """Return the ids of the series with these values of key fields."""
        names = fields.keys()
        if names >= {"cluster", "topic", "partition"}:
            ids = self.of_partition(fields["cluster"], fields["topic"], fields["partition"]).tolist()
        elif names >= {"cluster", "group"}:
            ids = list(self._of_group.get((fields["cluster"], fields["group"]), ()))
        else:
            ids = self.used().tolist()
        wanted = [(1 + Commit.key.index(name), value) for name, value in fields.items()]
        return [number for number in ids if all(self.subject(number)[place] == value for place, value in wanted)]

    # --- commits

    def fit(self, rows: Progress) -> Flags:
        """Return which commits can be added to their series."""
        ids = rows.ids
        fits = self._follow(rows, self.last_at[ids], self.last_offset[ids], self.leader_epoch[ids].astype(np.int64))
        # Whether the commit that would be overwritten has to be kept.
        is_full = self._rings.written[ids] >= self._rings.lengths(ids)
        return fits & ~(is_full & (self._floor_at[ids] >= rows.at - RETENTION_MS))

    @staticmethod
    def _follow(rows: Progress, at: Integers, offsets: Integers, leader_epochs: Integers) -> Flags:
        """Return which commits only advance a commit like that, and have at most one of seen_at and since."""
        follow: Flags = (
            (rows.at >= at) & (rows.offsets >= offsets) & (rows.leader_epochs == leader_epochs)
            & ((rows.seen_at == UNKNOWN) | ((rows.since == UNKNOWN) & (rows.seen_at >= rows.at)))
            & (rows.since <= rows.at)
        )  # fmt: skip
        return follow

    def add(self, rows: Progress) -> None:
        """Add a commit that fits to each of different series."""
        ids = rows.ids
        steps = self._steps(rows, self.last_at[ids], self.last_offset[ids])
        self._rings.add(ids, steps)
        overwritten = self._rings.written[ids].astype(np.int64) - self._rings.lengths(ids)
        for column, numbers, name in (
            (self._floor_at, overwritten + FLOOR, "took"),
            (self._oldest_offset, overwritten, "advance"),
        ):
            moves = numbers > 0
            column[ids[moves]] += getattr(self._rings.steps(ids[moves], numbers[moves]), name)
        self.longest_at_most[ids] = np.maximum(self.longest_at_most[ids], steps.took)
        self.last_at[ids] = self.confirmed[ids] = rows.at
        self.last_offset[ids] = rows.offsets
        self.partitions.commit(self.partition[ids].astype(np.int64), rows.offsets)

    @staticmethod
    def _steps(rows: Progress, at: Integers, offsets: Integers) -> Steps:
        """Return the steps to commits from those with these times and offsets."""
        seen_after = np.where(rows.seen_at == UNKNOWN, 0, rows.seen_at - rows.at)
        is_since = rows.since != UNKNOWN
        apart = np.where(is_since, rows.at - rows.since, seen_after)
        return Steps(rows.at - at, rows.offsets - offsets, apart, is_since)

    def recent_moves(self, ids: Integers, count: int) -> tuple[Integers, Integers, Flags]:
        """Return how long the last moves of series took, ms, how far they went, and which of them exist.

        count: how many moves of each; newest first.
        """
        written, back = self._rings.written[ids][:, None].astype(np.int64), np.arange(1, count + 1)
        steps = self._rings.steps(ids[:, None], written - back)
        return steps.took, steps.advance, back < np.minimum(written, self._rings.lengths(ids)[:, None])

    def _all_moves(self, ids: Integers) -> tuple[Integers, Integers, Flags]:
        """Return the moves between all commits of series that are kept, see `recent_moves`."""
        return self.recent_moves(ids, int(self._rings.lengths(ids).max()) - 1)

    def has_paused(self, ids: Integers, limit: int) -> Flags:
        """Return which series have at least `limit` ms between two commits that are kept."""
        paused = ids[self.longest_at_most[ids] >= limit]
        for rows, took in self.intervals(paused):
            self.longest_at_most[paused[rows]] = took.max(axis=1).clip(min=0)
        return self.longest_at_most[ids] >= limit

    def intervals(self, ids: Integers) -> Iterator[tuple[slice, Integers]]:
        """Yield the times between the commits that are kept, ms, of some of the series after the other.

        Those of a series are a row, newest first; UNKNOWN where it has no more.
        """
        for begin in range(0, len(ids), _UNPACKED_AT_ONCE):
            rows = slice(begin, begin + _UNPACKED_AT_ONCE)
            took, _, exists = self._all_moves(ids[rows])
            yield rows, np.where(exists, took, UNKNOWN)

    def offsets_as_of(self, ids: Integers, times: Sequence[int]) -> Integers:
        """Return the committed offset of each series at each moment (ms); UNKNOWN before the first that is kept."""
        found = np.empty((len(ids), len(times)), np.int64)
        for begin in range(0, len(ids), _UNPACKED_AT_ONCE):
            rows = slice(begin, begin + _UNPACKED_AT_ONCE)
            took, advance, exists = self._all_moves(ids[rows])
            at = _newest_first(self.last_at[ids[rows]], took)
            offsets = _newest_first(self.last_offset[ids[rows]], advance)
            kept = 1 + exists.sum(axis=1)
            for column, moment in enumerate(times):
                later = (at > moment).sum(axis=1)
                as_of = offsets[np.arange(len(later)), later.clip(max=took.shape[1])]
                found[rows, column] = np.where(later < kept, as_of, UNKNOWN)
        return found

    def first_at(self, ids: Integers) -> Integers:
        """Return when the first commit that is kept of each series was made, ms."""
        found = self.last_at[ids]
        for rows, took in self.intervals(ids):
            found[rows] -= np.where(took == UNKNOWN, 0, took).sum(axis=1)
        return found

    def oldest_offsets(self, ids: Integers) -> Integers:
        """Return the offset of the first commit that is kept of each series."""
        return self._oldest_offset[ids]

    def mark(self, number: int) -> Mark:
        """Return what a series is now, to read its commits by."""
        return Mark(int(self._rings.written[number]), int(self.last_at[number]), int(self.last_offset[number]))

    def rows_of(self, number: int, mark: Mark) -> list[list[int | None]]:
        """Return the commits of a series up to a mark, oldest first: at, seen_at, since, offset, leader epoch.

        From any thread.
        """
        steps = self._rings.series(number, mark.written)
        took, advance = steps.took.cumsum(), steps.advance.cumsum()
        at, offsets = mark.at - (took[-1:] - took), mark.offset - (advance[-1:] - advance)
        seen_at = np.where(steps.is_since | (steps.apart == 0), UNKNOWN, at + steps.apart)
        since = np.where(steps.is_since, at - steps.apart, UNKNOWN)
        leader_epochs = np.full(len(at), self.leader_epoch[number])
        columns = (at, seen_at, since, offsets, leader_epochs)
        return [
            [None if value == UNKNOWN else value for value in row]
            for row in zip(*(column.tolist() for column in columns), strict=True)
        ]

    # --- series

    def put(self, commits: Sequence[Commit], confirmed: int) -> bool:
        """Keep a series as columns if it fits: it only advanced, with one leader epoch, and a ring is long enough."""
        length = next((length for length in LENGTHS if len(commits) <= length), None)
        if length is None or any(commit.offset is None for commit in commits):
            return False
        fields = [(commit.at, commit.seen_at, commit.since, commit.offset, commit.leader_epoch) for commit in commits]
        columns = np.array([[UNKNOWN if value is None else value for value in row] for row in fields], np.int64).T
        free = self._free[length]
        if not free:
            self._add_block(length)
        number = free[-1]
        rows = Progress(np.full(len(commits), number), *columns)
        at, offsets = (np.concatenate([column[:1], column[:-1]]) for column in (rows.at, rows.offsets))
        if not self._follow(rows, at, offsets, rows.leader_epochs[:1]).all() or (np.diff(rows.offsets) == 0).any():
            return False
        free.pop()
        self._rings.begin(number, self._steps(rows, at, offsets))
        self.last_at[number], self.last_offset[number] = rows.at[-1], rows.offsets[-1]
        self._floor_at[number] = rows.at[max(len(commits) - length + FLOOR, 0)]
        self._oldest_offset[number], self.leader_epoch[number] = rows.offsets[0], rows.leader_epochs[0]
        self.longest_at_most[number] = np.diff(rows.at).max(initial=0)
        self.confirmed[number] = confirmed
        self._register(number, commits[0])
        return True

    def _register(self, number: int, commit: Commit) -> None:
        partition = self.partitions.number_of((commit.cluster, commit.topic, commit.partition))
        self.partition[number] = partition
        group = (commit.cluster, commit.group)
        ids = self._of_group.get(group)
        if ids is None:
            ids = self._of_group[group] = array("i")
        else:
            group = self._groups[ids[0]]  # one object for all
        ids.append(number)
        self._groups[number] = group
        self._of_partition.setdefault(partition, array("i")).append(number)

    def _add_block(self, length: int) -> None:
        """Make room for more series with rings of this length."""
        numbers = self._rings.add_block(length)
        self._free[length].extend(reversed(numbers))
        self._groups += [_NO_GROUP] * len(numbers)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, with_room(column, numbers.stop))

    def remove(self, number: int) -> None:
        """Forget a series."""
        self._remove_from(self._of_group, self._groups[number], number)
        self._remove_from(self._of_partition, int(self.partition[number]), number)
        self._groups[number] = _NO_GROUP
        self._rings.end(number)
        self._generation[number] += 1
        self._free[int(self._rings.lengths(number))].append(number)

    @staticmethod
    def _remove_from(index: dict[Any, "array[int]"], name: object, number: int) -> None:
        index[name].remove(number)
        if not index[name]:
            del index[name]


def _newest_first(last: Integers, steps: Integers) -> Integers:
    """Return the values of commits, newest first: the last one, and before each step, newest first, one more."""
    before = np.hstack([np.zeros((len(last), 1), np.int64), steps.cumsum(axis=1)])
    return np.asarray(last[:, None] - before)


class ColumnHistory(History[Commit]):
    """A series in columns, as it is now; other threads may read it."""

    __slots__ = ("_columns", "_mark", "_number")

    def __init__(self, columns: CommitColumns, number: int) -> None:
        self.subject = columns.subject(number)
        self.older = ()
        self.confirmed = int(columns.confirmed[number])
        self._columns, self._number, self._mark = columns, number, columns.mark(number)

    def __getattr__(self, name: str) -> CompactList[Commit]:
        """Unpack the changes when they are first read."""
        if name != "changes":
            raise AttributeError(name)
        changes = CompactList.of_rows(self._columns.rows_of(self._number, self._mark), self.subject[1:], Commit)
        self.changes = changes
        return changes
