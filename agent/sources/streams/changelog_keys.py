"""The last number of each key of several changelogs, in bounded memory. Pure. One table of them: changelog_table.

Where memory is full, the changelog that takes the most gives way: of a windowed store its oldest windows go, of any
other a sample of its keys is kept. The sample is drawn by hash, so that each partition keeps its share and a task
whose store is lost is seen whichever it is; and a key is followed for good or not at all, however often keys come.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.sources.streams.key_table import (
    NOTHING,
    SMALLEST,
    Hashes,
    Numbers,
    Table,
    buckets_in,
    sampled,
    table_bytes,
)

ALL = 2**32
_NONE = np.empty(0, np.int64)


class Coverage(NamedTuple):
    """keys: whose last number is known. total: how many there are, an estimate where not all are known."""

    keys: int
    total: int


class Taken(NamedTuple):
    """What taking numbers showed. positions: which of them fell, rising; before: what stood there.

    changes: by how much each changed the sum of all last numbers, a key without one counting as 0 (modulo 2**64). None
    where it is not known: not all of the keys are followed.
    """

    positions: NDArray[np.int64]
    before: Numbers
    changes: Numbers | None


class _Log:
    """What is known of one changelog: a table for each hour of windows (0: no windows), and what of it is kept: windows
    from `earliest` on, and the sample `below`.
    """

    def __init__(self) -> None:
        self.tables: dict[int, Table] = {}
        self.earliest = 0
        self.below = ALL

    @property
    def size(self) -> int:
        return sum(table.size for table in self.tables.values())

    @property
    def whole(self) -> bool:
        """Whether nothing had to go yet."""
        return self.below == ALL and not self.earliest


class LastNumbers:
    """By changelog and key hash. memory: bytes; a few MB more are needed for moments."""

    def __init__(self, memory: int, changelogs: Iterable[str]) -> None:
        """changelogs: all that there will be. Raises ValueError where memory does not suffice for them to begin."""
        self._memory = memory
        self._logs = {changelog: _Log() for changelog in changelogs}
        least = table_bytes(SMALLEST) * len(self._logs)
        if memory < least:
            msg = f"expected at least {least} bytes for the last values of keys, got {memory}"
            raise ValueError(msg)

    @property
    def size(self) -> int:
        """Bytes taken."""
        return sum(log.size for log in self._logs.values())

    def forget(self, changelog: str) -> None:
        """Begin anew."""
        self._logs[changelog] = _Log()

    def coverage(self, changelog: str) -> Coverage:
        """How many of its keys are known, windows that had to go left aside."""
        log = self._logs[changelog]
        keys = sum(table.used for table in log.tables.values())
        return Coverage(keys, keys * ALL // max(log.below, 1))

    def earliest(self, changelog: str) -> int:
        """The hour (since the epoch) from which on its windows are kept; 0 while all are."""
        return self._logs[changelog].earliest

    def take(self, changelog: str, hashes: Hashes, numbers: Numbers, hours: NDArray[np.int64] | None = None) -> Taken:
        """Take numbers in the order of the log; a tombstone's is NOTHING. hours: those of the keys' windows, if any; a
        key's is always the same.
        """
        if hours is None:
            return self._take(changelog, 0, hashes, numbers)
        positions, before = [_NONE], [_NONE]
        changes = np.zeros(len(numbers), np.int64)
        for hour in np.unique(hours):
            which = np.flatnonzero(hours == hour)
            found = self._take(changelog, int(hour), hashes[which], numbers[which])
            positions.append(which[found.positions])
            before.append(found.before)
            changes[which] = 0 if found.changes is None else found.changes
        where = np.concatenate(positions)
        order = np.argsort(where)
        return Taken(where[order], np.concatenate(before)[order], changes if self._logs[changelog].whole else None)

    def _take(self, changelog: str, hour: int, hashes: Hashes, numbers: Numbers) -> Taken:
        hashes = np.maximum(hashes, np.uint64(1))
        order = np.argsort(hashes, kind="stable")
        log = self._logs[changelog]
        while True:  # until there is room
            if hour < log.earliest:
                return Taken(_NONE, _NONE, None)
            table = self._table(log, hour)
            order = order if log.below == ALL else order[sampled(hashes[order], log.below)]
            sorted_, now = hashes[order], numbers[order]
            first = np.diff(sorted_, prepend=np.uint64(0)) != 0
            last = np.append(first[1:], True) if len(first) else first
            keys, latest = sorted_[first], now[last]
            places = table.find(keys)
            known = places >= 0
            new = ~known & (latest != NOTHING)
            if table.room >= np.count_nonzero(new):
                break
            self._make_room(log, table)
        before = np.full(len(now), NOTHING)
        before[1:] = now[:-1]
        before[first] = np.where(known, table.numbers(places), NOTHING)
        table.set(places[known], latest[known])
        table.add(keys[new], latest[new])
        fell = (now < before) & (now != NOTHING)
        positions, values = order[fell], before[fell]
        rising = np.argsort(positions)
        return Taken(positions[rising], values[rising], _changes(order, before, now) if log.whole else None)

    def _table(self, log: _Log, hour: int) -> Table:
        """The log's table of this hour, made where there is none."""
        while hour not in log.tables:
            if self._memory - self.size >= table_bytes(SMALLEST):
                log.tables[hour] = Table()
            else:
                self._relieve(log, None)
        return log.tables[hour]

    def _make_room(self, log: _Log, table: Table) -> None:
        """One step towards room for more keys."""
        if table.empty_keys() * 4 > table.used:
            table.rebuild(table.buckets, log.below)
            return
        most = buckets_in(self._memory - self.size + table.size)
        wanted = min(table.buckets * 2, most)
        if wanted >= table.buckets * 1.1:
            table.rebuild(wanted, log.below)
        else:
            self._relieve(log, table)

    def _relieve(self, asking: _Log, table: Table | None) -> None:
        """Let the changelog that takes the most memory give some of it away."""
        log = max(self._logs.values(), key=lambda one: (one.size, one is asking))
        if len(log.tables) > 1:
            oldest = min(log.tables)
            del log.tables[oldest]
            log.earliest = oldest + 1
            return
        log.below = log.below * 3 // 4
        for one in log.tables.values():
            one.rebuild(one.buckets if one is table else max(one.buckets * 3 // 4, SMALLEST), log.below)


def _changes(order: NDArray[np.int64], before: Numbers, now: Numbers) -> Numbers:
    """What the numbers changed, each at its place before they were ordered so."""
    changes = np.empty_like(now)
    changes[order] = np.where(now == NOTHING, 0, now) - np.where(before == NOTHING, 0, before)
    return changes
