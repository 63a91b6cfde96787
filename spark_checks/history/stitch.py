"""Commits in order of position, chunk after chunk: what is found within them, and the ends that others must judge.

Of each key only its first and last changes leave a share of the journal. Where commits came late across a border, the
key is named, and must be read again as a whole. Plain numpy; files and Spark live elsewhere.
"""

from typing import NamedTuple

import numpy as np

from spark_checks.history.moves import (
    BACK,
    FORGOTTEN,
    NEVER,
    NONE,
    REACH,
    Flags,
    Ints,
    Rows,
    Sorted,
    changes,
    ends,
    firsts,
    found,
    lasts,
    ordered,
)

HIT_NUMBERS = 4 + 3 + 1 + 2 * (BACK - 1)
EDGE_NUMBERS = 5


class Hits(NamedTuple):
    """Falls and leaps. numbers: a row each of HIT_NUMBERS, as `Hit` names them; code: of the key."""

    code: Ints
    numbers: Ints


class Hit(NamedTuple):
    """A fall or a leap. Times as in Rows; earlier: (time, offset) of the changes before, newest first, where known."""

    time: int
    position: int
    offset: int
    since: int | None
    before_time: int
    before_position: int
    before_offset: int
    forgotten: bool
    earlier: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, numbers: list[int]) -> "Hit":
        """A row of Hits.numbers."""
        time, position, offset, since, before_time, before_position, before_offset, forgotten, *rest = numbers
        earlier = tuple(one for one in zip(rest[::2], rest[1::2], strict=True) if one[0] != NEVER)
        return cls(
            time,
            position,
            offset,
            None if since == NEVER else since,
            before_time,
            before_position,
            before_offset,
            bool(forgotten),
            earlier,
        )


class Share:
    """Consecutive chunks of the journal, taken one after the other."""

    def __init__(self, least: int) -> None:
        """least: the smallest fall or leap, in records."""
        self._least = least
        self._carried = NONE
        self._heads: list[Rows] = []
        self._told = np.empty(0, np.int64)
        self._unruly: list[Ints] = []

    @property
    def carried(self) -> int:
        """How many rows are joined with each chunk: a chunk should hold more."""
        return self._carried.code.size

    def take(self, chunk: Rows) -> Hits:
        """What is found in the next chunk, its rows in order of position. Keys have small codes."""
        carried = self._carried.code.size
        rows = self._carried.then(chunk) if carried else chunk
        every = ordered(rows)
        fresh = every.made >= carried
        same = every.code[1:] == every.code[:-1]
        late = fresh[:-1] & ~fresh[1:] & same
        if late.any():
            self._unruly.append(np.unique(every.code[1:][late]))
        new = changes(every.code, every.offset)
        changed = every if new.all() else every.at(new)
        begin, end = ends(changed.code)
        last = every.made[np.append(np.flatnonzero(~same), same.size)]
        kept = np.zeros(rows.code.size, np.bool_)
        kept[last] = kept[changed.made[lasts(begin, end, REACH)]] = True
        self._carried = rows.at(kept)
        fresh = fresh if changed is every else fresh[new]
        fresh[self._keep_heads(rows, changed, fresh)] = False
        return hits(rows, changed, fresh, self._least)

    def edges(self) -> tuple[Ints, Ints, Ints]:
        """(code, numbers, lengths) of the keys' first and last changes, sorted by key, EDGE_NUMBERS each: time,
        position, offset, since, and whether what comes before is in another share. lengths: numbers per key.
        """
        heads = Rows(*map(np.concatenate, zip(NONE, *self._heads, strict=True)))
        rest = self._carried.at(~np.isin(self._carried.position, heads.position))
        rows = heads.then(rest)
        numbers = np.column_stack((rows.time, rows.position, rows.offset, rows.since, np.arange(rows.code.size)))
        numbers[:, 4] = numbers[:, 4] < heads.code.size
        made = np.argsort(rows.code, kind="stable")
        begin, end = ends(rows.code[made])
        return rows.code[made][begin], numbers[made].ravel(), (end - begin) * EDGE_NUMBERS

    def unruly(self) -> Ints:
        """The keys whose commits came late across chunks."""
        return np.unique(np.concatenate(self._unruly)) if self._unruly else np.empty(0, np.int64)

    def _keep_heads(self, rows: Rows, changed: Sorted, fresh: Flags) -> Ints:
        """Keep the first changes of each key, as many as what came before them can matter to. Returns which of the
        changes these are: they are judged where shares meet.
        """
        top = int(changed.code[-1]) + 1
        if top > self._told.size:
            self._told = np.append(self._told, np.zeros(max(top, 1024), np.int64))
        if self._told[:top].min() > REACH:
            return np.empty(0, np.int64)
        new = np.flatnonzero(fresh)
        code = changed.code[new]
        begin, end = ends(code)
        need = REACH + 1 - self._told[code[begin]]
        self._told[code[begin]] += np.minimum(need, end - begin)
        heads = new[firsts(begin, end, need)]
        self._heads.append(rows.at(changed.made[heads]))
        return heads


def joined(rows: Rows, share: Ints, head: Flags, least: int) -> tuple[Hits, Ints]:
    """What is found where shares meet, and the keys whose commits came late across them. Rows in any order."""
    made = np.lexsort((rows.position, rows.time, rows.code))
    every = Sorted(made, rows.code[made], rows.time[made], rows.offset[made])
    late = (share[made][1:] < share[made][:-1]) & (every.code[1:] == every.code[:-1])
    changed = every.at(changes(every.code, every.offset))
    return hits(rows, changed, head[changed.made], least), np.unique(every.code[1:][late])


def hits(rows: Rows, changed: Sorted, fresh: Flags, least: int) -> Hits:
    """What is found among the changes where the later one is fresh."""
    _, code, time, offset = changed
    before, after = found(code, time, offset, least)
    before, after = before[fresh[after]], after[fresh[after]]
    new, old = rows.at(changed.made[after]), rows.at(changed.made[before])
    columns = [new.time, new.position, new.offset, new.since, old.time, old.position, old.offset, before < after - 1]
    for back in range(1, BACK):
        one = np.maximum(before - back, 0)
        known = (before >= back) & (code[one] == new.code) & (offset[one] != FORGOTTEN)
        columns += [np.where(known, time[one], NEVER), np.where(known, offset[one], FORGOTTEN)]
    return Hits(new.code, np.column_stack([column.astype(np.int64) for column in columns]))
