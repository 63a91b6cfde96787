"""The last number of each key of several changelogs, in bounded memory. Pure.

`KeyTable` is a hash table that grows and shrinks in place, with 16 bytes a slot. A key's home is a bucket of 16 slots,
computed from the upper half of its hash so that homes rise with hashes; if it is full, the key is in the first of the
following buckets that is not (linear probing). Keys are only removed by `rebuild`, so a key is absent if a bucket on
its way has a free slot.

`LastNumbers` holds a table for each changelog, and one for each hour of windows. If memory is full, the changelog that
takes the most gives way. If windows take more than half of its memory, it drops the oldest windows; a few of its keys
may have none. Otherwise it keeps a sample of its keys; a few of them may look like those of windows. Sampling by hash
keeps each partition's share, so that a task that lost its store is detected whichever it is, and a key is either
followed for good or not at all, however often it occurs.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]
Numbers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

NO_NUMBER = -(2**63)
"""The number of a key that has none, as after a tombstone. No number is lower, so none that follows is a decrease."""

SLOT_BYTES = 16
MIN_BUCKETS = 256
"""The buckets of a new table."""

_SLOTS = 16
_SPILL = 32  # buckets after the last home: even a table that is nearly full has far fewer keys to put there
_LOAD = 0.8
_CHUNK = 1024  # buckets rebuilt at a time, which takes about 4 MB temporarily
_HALF = np.uint64(32)
_ALL_KEYS = 2**32
_LEAST_TABLES = 3  # of a changelog: of an hour of windows, of the next one, and of keys without windows
_EMPTY = np.empty(0, np.int64)


class KeyTable:
    """Numbers by 64-bit key hash. Arrays of hashes are passed in sorted and without duplicates.

    used: how many keys it holds, those with NO_NUMBER included.
    """

    def __init__(self, buckets: int = MIN_BUCKETS) -> None:
        self.used = 0
        self.buckets = buckets
        self._hashes: Hashes = np.zeros((buckets + _SPILL, _SLOTS), np.uint64)  # 0: a free slot
        self._numbers: Numbers = np.zeros((buckets + _SPILL, _SLOTS), np.int64)

    @property
    def size(self) -> int:
        """Bytes."""
        return table_bytes(self.buckets)

    @property
    def room(self) -> int:
        """How many more keys fit without a rebuild."""
        return int(self.buckets * _SLOTS * _LOAD) - self.used

    def find(self, hashes: Hashes) -> NDArray[np.int64]:
        """Return the slot of each key, -1 if it is absent."""
        found = np.full(len(hashes), -1)
        searching = np.arange(len(hashes))
        bucket = self._homes(hashes)
        while len(searching):
            rows = self._hashes[bucket]
            is_same = rows == hashes[searching, None]
            slot = is_same.argmax(axis=1)
            is_here = is_same[np.arange(len(searching)), slot]
            found[searching[is_here]] = bucket[is_here] * _SLOTS + slot[is_here]
            continues = ~is_here & (rows[:, -1] != 0)
            searching, bucket = searching[continues], bucket[continues] + 1
        return found

    def numbers(self, slots: NDArray[np.int64]) -> Numbers:
        """Return the numbers in slots that `find` returned."""
        return self._numbers.reshape(-1)[slots]

    def overwrite(self, slots: NDArray[np.int64], numbers: Numbers) -> None:
        """Replace the numbers in slots that `find` returned."""
        self._numbers.reshape(-1)[slots] = numbers

    def add(self, hashes: Hashes, numbers: Numbers) -> None:
        """Add absent keys, for which there must be room."""
        self._insert(hashes, numbers, 0, len(self._hashes))
        self.used += len(hashes)

    def count_deleted(self) -> int:
        """Return how many keys have NO_NUMBER. Scans the whole table."""
        return int(((self._numbers == NO_NUMBER) & (self._hashes != 0)).sum())

    def rebuild(self, buckets: int, sample_below: int) -> None:
        """Resize to so many buckets and keep only keys that have a number and are in the sample (see `is_sampled`).

        Scans from the end towards which keys move, so that no second table is needed: what has been moved is never
        met again.
        """
        is_growing = buckets > self.buckets
        old, rows = len(self._hashes), buckets + _SPILL
        self.buckets, self.used = buckets, 0
        if is_growing:
            self._resize(rows)
        starts = range(0, old, _CHUNK)
        postponed: list[tuple[Hashes, Numbers]] = []
        for begin in reversed(starts) if is_growing else starts:
            end = min(begin + _CHUNK, old)
            hashes, numbers = self._hashes[begin:end].ravel(), self._numbers[begin:end].ravel()  # views
            keep = np.flatnonzero((hashes != 0) & (numbers != NO_NUMBER) & is_sampled(hashes, sample_below))
            keep = keep[np.argsort(hashes[keep], kind="stable")]
            hashes, numbers = hashes[keep], numbers[keep]
            self._hashes[begin:end] = 0
            low, high = (begin, rows) if is_growing else (0, min(end, rows))
            postponed.append(self._insert(hashes, numbers, low, high))
            self.used += len(hashes)
        if not is_growing:
            self._resize(rows)
        for hashes, numbers in postponed:
            self._insert(hashes, numbers, 0, rows)

    def _resize(self, rows: int) -> None:
        for array in (self._hashes, self._numbers):
            array.resize((rows, _SLOTS), refcheck=False)  # realloc, which moves pages and copies nothing

    def _homes(self, hashes: Hashes) -> NDArray[np.int64]:
        return (((hashes >> _HALF) * np.uint64(self.buckets)) >> _HALF).astype(np.int64)

    def _insert(self, hashes: Hashes, numbers: Numbers, low: int, high: int) -> tuple[Hashes, Numbers]:
        """Put keys into buckets from `low` up to `high` and return those that do not belong there."""
        bucket = self._homes(hashes)
        is_outside = bucket < low
        outside = [(hashes[is_outside], numbers[is_outside])]
        hashes, numbers, bucket = hashes[~is_outside], numbers[~is_outside], bucket[~is_outside]
        while len(hashes):
            is_outside = bucket >= high
            if is_outside.any():
                outside.append((hashes[is_outside], numbers[is_outside]))
                hashes, numbers, bucket = hashes[~is_outside], numbers[~is_outside], bucket[~is_outside]
                continue
            taken = np.count_nonzero(self._hashes[bucket], axis=1)
            begins = np.flatnonzero(np.diff(bucket, prepend=-1))
            first = np.repeat(begins, np.diff(begins, append=len(bucket)))  # the first key for the same bucket
            slot = taken + np.arange(len(bucket)) - first
            fits = slot < _SLOTS
            self._hashes[bucket[fits], slot[fits]] = hashes[fits]
            self._numbers[bucket[fits], slot[fits]] = numbers[fits]
            hashes, numbers, bucket = hashes[~fits], numbers[~fits], bucket[~fits] + 1
        return np.concatenate([keys for keys, _ in outside]), np.concatenate([values for _, values in outside])


def table_bytes(buckets: int) -> int:
    """Return the bytes that a table of so many buckets takes."""
    return (buckets + _SPILL) * _SLOTS * SLOT_BYTES


def is_sampled(hashes: Hashes, sample_below: int) -> Flags:
    """Return which keys are in the sample: those whose hash's lower half is below this. 2**32: all."""
    return (hashes & np.uint64(0xFFFFFFFF)) < np.uint64(sample_below)


class Coverage(NamedTuple):
    """Known keys of a changelog. total: how many keys it has, an estimate if not all are known."""

    keys: int
    total: int


class Update(NamedTuple):
    """What an update of last numbers changed.

    positions: of numbers that are lower than the key's number before, ascending. before: those numbers.
    changes: by how much each number changed the sum of all last numbers, a key without one counting as 0 (modulo
    2**64). None if unknown, because not all keys are followed.
    """

    positions: NDArray[np.int64]
    before: Numbers
    changes: Numbers | None


class _ChangelogTables:
    """Tables of one changelog by hour of its windows (0: of the keys without one).

    Kept are keys without windows and windows from `earliest_hour` on, of both the sample of keys `sample_below`.
    """

    def __init__(self) -> None:
        self.by_hour: dict[int, KeyTable] = {}
        self.earliest_hour = 0
        self.sample_below = _ALL_KEYS

    @property
    def size(self) -> int:
        return sum(table.size for table in self.by_hour.values())

    @property
    def is_complete(self) -> bool:
        return self.sample_below == _ALL_KEYS and not self.earliest_hour


class LastNumbers:
    """The last number of each key, by changelog and key hash."""

    def __init__(self, memory: int, changelogs: Iterable[str]) -> None:
        """memory: bytes; a few MB more are needed temporarily. Raises ValueError if it is too small."""
        self._memory = memory
        self._tables = {changelog: _ChangelogTables() for changelog in changelogs}
        least = _LEAST_TABLES * table_bytes(MIN_BUCKETS) * len(self._tables)
        if memory < least:
            msg = f"expected at least {least} bytes for the last values of keys, got {memory}"
            raise ValueError(msg)

    @property
    def size(self) -> int:
        """Bytes in use."""
        return sum(tables.size for tables in self._tables.values())

    def forget(self, changelog: str) -> None:
        """Drop all keys of a changelog."""
        self._tables[changelog] = _ChangelogTables()

    def coverage(self, changelog: str) -> Coverage:
        """Return how many of a changelog's keys are known, dropped windows left run_in_thread."""
        tables = self._tables[changelog]
        keys = sum(table.used for table in tables.by_hour.values())
        return Coverage(keys, keys * _ALL_KEYS // max(tables.sample_below, 1))

    def earliest_hour(self, changelog: str) -> int:
        """Return the hour (since the epoch) from which on windows are kept, 0 while all are."""
        return self._tables[changelog].earliest_hour

    def update(
        self, changelog: str, hashes: Hashes, numbers: Numbers, hours: NDArray[np.int64] | None = None
    ) -> Update:
        """Store numbers in the order of the log and return what changed.

        numbers: NO_NUMBER for a tombstone. hours: of the keys' windows, 0 for a key without one; a key whose hour
        changes counts as another.
        """
        if hours is None or not hours.any():
            return self._update_hour(changelog, 0, hashes, numbers)
        positions, before = [_EMPTY], [_EMPTY]
        changes = np.zeros(len(numbers), np.int64)
        for hour in np.unique(hours):
            of_hour = np.flatnonzero(hours == hour)
            update = self._update_hour(changelog, int(hour), hashes[of_hour], numbers[of_hour])
            positions.append(of_hour[update.positions])
            before.append(update.before)
            changes[of_hour] = 0 if update.changes is None else update.changes
        unordered = np.concatenate(positions)
        order = np.argsort(unordered)
        is_complete = self._tables[changelog].is_complete
        return Update(unordered[order], np.concatenate(before)[order], changes if is_complete else None)

    def _update_hour(self, changelog: str, hour: int, hashes: Hashes, numbers: Numbers) -> Update:
        hashes = np.maximum(hashes, np.uint64(1))
        order = np.argsort(hashes, kind="stable")
        tables = self._tables[changelog]
        while True:  # until there is room
            if 0 < hour < tables.earliest_hour:
                return Update(_EMPTY, _EMPTY, None)
            table = self._get_table(tables, hour)
            if tables.sample_below != _ALL_KEYS:
                order = order[is_sampled(hashes[order], tables.sample_below)]
            ordered, now = hashes[order], numbers[order]
            is_first = np.diff(ordered, prepend=np.uint64(0)) != 0
            is_last = np.append(is_first[1:], True) if len(is_first) else is_first
            keys, latest = ordered[is_first], now[is_last]
            slots = table.find(keys)
            is_known = slots >= 0
            is_new = ~is_known & (latest != NO_NUMBER)
            if table.room >= np.count_nonzero(is_new):
                break
            self._make_room(tables, table)
        before = np.full(len(now), NO_NUMBER)
        before[1:] = now[:-1]
        before[is_first] = np.where(is_known, table.numbers(slots), NO_NUMBER)
        table.overwrite(slots[is_known], latest[is_known])
        table.add(keys[is_new], latest[is_new])
        is_decrease = (now < before) & (now != NO_NUMBER)
        positions, values = order[is_decrease], before[is_decrease]
        ascending = np.argsort(positions)
        changes = _changes(order, before, now) if tables.is_complete else None
        return Update(positions[ascending], values[ascending], changes)

    def _get_table(self, tables: _ChangelogTables, hour: int) -> KeyTable:
        """Return the changelog's table of this hour, created if there is none."""
        while hour not in tables.by_hour:
            if self._memory - self.size >= table_bytes(MIN_BUCKETS):
                tables.by_hour[hour] = KeyTable()
            else:
                self._free_memory(tables, None)
        return tables.by_hour[hour]

    def _make_room(self, tables: _ChangelogTables, table: KeyTable) -> None:
        """Take one step towards room for more keys."""
        if table.count_deleted() * 4 > table.used:
            table.rebuild(table.buckets, tables.sample_below)
            return
        available = (self._memory - self.size + table.size) // (_SLOTS * SLOT_BYTES) - _SPILL
        buckets = min(table.buckets * 2, available)
        if buckets >= table.buckets * 1.1:
            table.rebuild(buckets, tables.sample_below)
        else:
            self._free_memory(tables, table)

    def _free_memory(self, requesting: _ChangelogTables, table: KeyTable | None) -> None:
        """Take memory from the changelog that has the most."""
        largest = max(self._tables.values(), key=lambda tables: (tables.size, tables is requesting))
        hours = largest.by_hour.keys() - {0}
        if len(hours) > 1 and sum(largest.by_hour[hour].size for hour in hours) * 2 > largest.size:
            oldest = min(hours)
            del largest.by_hour[oldest]
            largest.earliest_hour = oldest + 1
            return
        largest.sample_below = largest.sample_below * 3 // 4
        for shrinking in largest.by_hour.values():
            buckets = shrinking.buckets if shrinking is table else max(shrinking.buckets * 3 // 4, MIN_BUCKETS)
            shrinking.rebuild(buckets, largest.sample_below)


def _changes(order: NDArray[np.int64], before: Numbers, now: Numbers) -> Numbers:
    """Return by how much each number changed, at its position before they were ordered."""
    changes = np.empty_like(now)
    changes[order] = np.where(now == NO_NUMBER, 0, now) - np.where(before == NO_NUMBER, 0, before)
    return changes
