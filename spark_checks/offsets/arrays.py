"""Rewinds and jumps in arrays of commits, chunk by chunk and across shares of the journal. Plain numpy.

Rows are sorted by key, time and position. A key is one group on one partition; only changes of its offset count.
Workers read the journal in order of position. Of each key only the first and last changes leave a share; the moves
between them are found where shares meet. A key whose commits came late across a border is read twice.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

NO_OFFSET = -1
"""Stands for an offset that Kafka has expired."""

NO_TIME = -(1 << 62)
"""Stands for an unknown time."""

PRIOR = 4
"""How many changes before a jump show how the group had moved until then."""

CONTEXT = PRIOR + 1
"""How many changes before a commit are needed to classify it: one more, as an expired offset may lie in between."""

SURGE = 20
"""A move this many times larger than each of the three before it is a jump."""

MAX_RATE = 1_000_000
"""Records per second that no consumer reads from one partition."""

MOVE_NUMBERS = 4 + 3 + 1 + 2 * (PRIOR - 1)
EDGE_NUMBERS = 5


class Rows(NamedTuple):
    """Commits in columns.

    code: of the key. time: ms, as if the agent's clock had never been set back. since: when the old value was last
    seen, if it was polled, else NO_TIME.
    """

    code: Ints
    time: Ints
    position: Ints
    offset: Ints
    since: Ints

    def at(self, chosen: Ints | Flags) -> "Rows":
        """Return the chosen rows."""
        return Rows(*(column[chosen] for column in self))

    def then(self, other: "Rows") -> "Rows":
        """Return these rows followed by the others."""
        return Rows(*(np.concatenate(both) for both in zip(self, other, strict=True)))


NO_ROWS = Rows(*(np.empty(0, np.int64) for _ in range(5)))


class SortedRows(NamedTuple):
    """Rows by key, time and position. order: the index of each row before sorting."""

    order: Ints
    code: Ints
    time: Ints
    offset: Ints

    def at(self, chosen: Ints | Flags) -> "SortedRows":
        """Return the chosen rows."""
        return SortedRows(*(column[chosen] for column in self))


class Moves(NamedTuple):
    """Rewinds and jumps. code: of the key; numbers: a row of MOVE_NUMBERS each, in the order of `Move`."""

    code: Ints
    numbers: Ints


class Move(NamedTuple):
    """A rewind or a jump.

    Times as in Rows. expired: an expired offset lies between the two commits. earlier: (time, offset) of known changes
    before, newest first.
    """

    time: int
    position: int
    offset: int
    since: int | None
    before_time: int
    before_position: int
    before_offset: int
    expired: bool
    earlier: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, numbers: list[int]) -> "Move":
        """Return the move in a row of Moves.numbers."""
        time, position, offset, since, before_time, before_position, before_offset, expired, *rest = numbers
        return cls(
            time,
            position,
            offset,
            None if since == NO_TIME else since,
            before_time,
            before_position,
            before_offset,
            bool(expired),
            tuple(change for change in zip(rest[::2], rest[1::2], strict=True) if change[0] != NO_TIME),
        )


class Share:
    """Consecutive chunks of the journal that one worker searches, one after the other."""

    def __init__(self, min_records: int) -> None:
        self._min_records = min_records
        self._carried = NO_ROWS
        self._heads: list[Rows] = []
        self._head_counts = np.empty(0, np.int64)
        self._late: list[Ints] = []

    @property
    def carried(self) -> int:
        """Return how many rows are joined with each chunk; a chunk should hold more."""
        return self._carried.code.size

    def search(self, chunk: Rows) -> Moves:
        """Return the moves in the next chunk, its rows in order of position. Keys have small codes."""
        carried = self._carried.code.size
        rows = self._carried.then(chunk) if carried else chunk
        ordered = sort(rows)
        fresh = ordered.order >= carried
        same_key = ordered.code[1:] == ordered.code[:-1]
        late = fresh[:-1] & ~fresh[1:] & same_key
        if late.any():
            self._late.append(np.unique(ordered.code[1:][late]))
        is_change = mark_changes(ordered.code, ordered.offset)
        changes = ordered if is_change.all() else ordered.at(is_change)
        begin, end = key_ranges(changes.code)
        last = ordered.order[np.append(np.flatnonzero(~same_key), same_key.size)]
        kept = np.zeros(rows.code.size, np.bool_)
        kept[last] = kept[changes.order[last_indices(begin, end, CONTEXT)]] = True
        self._carried = rows.at(kept)
        fresh = fresh if changes is ordered else fresh[is_change]
        fresh[self._keep_heads(rows, changes, fresh)] = False
        return _find_moves(rows, changes, fresh, self._min_records)

    def edges(self) -> tuple[Ints, Ints, Ints]:
        """Return (codes, numbers, lengths) of the first and last changes, sorted by key.

        numbers: EDGE_NUMBERS a change: time, position, offset, since, and whether the change before it is in another
        share. lengths: how many numbers each key has.
        """
        heads = Rows(*map(np.concatenate, zip(NO_ROWS, *self._heads, strict=True)))
        rest = self._carried.at(~np.isin(self._carried.position, heads.position))
        rows = heads.then(rest)
        numbers = np.column_stack((rows.time, rows.position, rows.offset, rows.since, np.arange(rows.code.size)))
        numbers[:, 4] = numbers[:, 4] < heads.code.size
        order = np.argsort(rows.code, kind="stable")
        begin, end = key_ranges(rows.code[order])
        return rows.code[order][begin], numbers[order].ravel(), (end - begin) * EDGE_NUMBERS

    def late_keys(self) -> Ints:
        """Return the keys whose commits came late across chunks."""
        return np.unique(np.concatenate(self._late)) if self._late else np.empty(0, np.int64)

    def _keep_heads(self, rows: Rows, changes: SortedRows, fresh: Flags) -> Ints:
        """Keep the first changes of each key and return their indices: they are classified where shares meet."""
        top = int(changes.code[-1]) + 1
        if top > self._head_counts.size:
            self._head_counts = np.append(self._head_counts, np.zeros(max(top, 1024), np.int64))
        if self._head_counts[:top].min() > CONTEXT:
            return np.empty(0, np.int64)
        new = np.flatnonzero(fresh)
        code = changes.code[new]
        begin, end = key_ranges(code)
        need = CONTEXT + 1 - self._head_counts[code[begin]]
        self._head_counts[code[begin]] += np.minimum(need, end - begin)
        heads = new[_first_indices(begin, end, need)]
        self._heads.append(rows.at(changes.order[heads]))
        return heads


def join_shares(rows: Rows, share: Ints, head: Flags, min_records: int) -> tuple[Moves, Ints]:
    """Return the moves where shares meet, and the keys whose commits came late across them. Rows in any order."""
    order = np.lexsort((rows.position, rows.time, rows.code))
    ordered = SortedRows(order, rows.code[order], rows.time[order], rows.offset[order])
    late = (share[order][1:] < share[order][:-1]) & (ordered.code[1:] == ordered.code[:-1])
    changes = ordered.at(mark_changes(ordered.code, ordered.offset))
    return _find_moves(rows, changes, head[changes.order], min_records), np.unique(ordered.code[1:][late])


def sort(rows: Rows) -> SortedRows:
    """Sort rows that come in order of position: stably by key, and by time only keys that have late rows."""
    order = _order_by_code(rows.code)
    code, time = rows.code[order], rows.time[order]
    late = np.flatnonzero((time[1:] < time[:-1]) & (code[1:] == code[:-1]))
    if late.size:
        affected = np.flatnonzero(np.isin(code, np.unique(code[late])))
        few = order[affected]
        order[affected] = few[np.lexsort((rows.position[few], rows.time[few], rows.code[few]))]
        time = rows.time[order]
    return SortedRows(order, code, time, rows.offset[order])


def _order_by_code(code: Ints) -> Ints:
    # numpy sorts 16 bits by radix, ten times as fast as whole integers.
    if not code.size:
        return np.empty(0, np.int64)
    order = np.argsort((code & 0xFFFF).astype(np.uint16), kind="stable")
    bits = 16
    while int(code.max()) >> bits:
        order = order[np.argsort(((code[order] >> bits) & 0xFFFF).astype(np.uint16), kind="stable")]
        bits += 16
    return order


def mark_changes(code: Ints, offset: Ints) -> Flags:
    """Mark the sorted rows that are the first of their key or have another offset than the row before."""
    is_change = np.ones(code.size, np.bool_)
    np.not_equal(offset[1:], offset[:-1], out=is_change[1:])
    is_change[1:] |= code[1:] != code[:-1]
    return is_change


def key_ranges(code: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each key and the one after its last, of sorted rows."""
    borders = np.flatnonzero(code[1:] != code[:-1]) + 1
    edges = np.concatenate(([0], borders, [code.size])) if code.size else borders[:1]
    return edges[:-1], edges[1:]


def _first_indices(begin: Ints, end: Ints, most: Ints) -> Ints:
    """Return the indices of the first `most` of each range [begin, end), sorted."""
    count = np.minimum(most, end - begin)
    ahead = np.repeat(begin, count)
    indices: Ints = ahead + np.arange(ahead.size) - np.repeat(np.cumsum(count) - count, count)
    return indices


def last_indices(begin: Ints, end: Ints, most: int) -> Ints:
    """Return the indices of the last `most` of each range [begin, end), sorted."""
    return _first_indices(np.maximum(begin, end - most), end, np.full(begin.size, most))


def _find_moves(rows: Rows, changes: SortedRows, fresh: Flags, min_records: int) -> Moves:
    """Return the moves among the changes whose later commit is fresh."""
    _, code, time, offset = changes
    before, after = _find_pairs(code, time, offset, min_records)
    before, after = before[fresh[after]], after[fresh[after]]
    new, old = rows.at(changes.order[after]), rows.at(changes.order[before])
    columns = [new.time, new.position, new.offset, new.since, old.time, old.position, old.offset, before < after - 1]
    for back in range(1, PRIOR):
        prior = np.maximum(before - back, 0)
        known = (before >= back) & (code[prior] == new.code) & (offset[prior] != NO_OFFSET)
        columns += [np.where(known, time[prior], NO_TIME), np.where(known, offset[prior], NO_OFFSET)]
    return Moves(new.code, np.column_stack([column.astype(np.int64) for column in columns]))


def _find_pairs(code: Ints, time: Ints, offset: Ints, min_records: int) -> tuple[Ints, Ints]:
    """Return the indices before and after each rewind or jump of `min_records` or more, among sorted changes.

    A jump is an advance after the offset had expired, one of more than MAX_RATE records a second, or one SURGE times
    larger than each of the three moves before it. Whether its records were read after all is classified later.
    """
    moved = np.zeros(code.size, np.int64)
    np.subtract(offset[1:], offset[:-1], out=moved[1:])
    far = np.flatnonzero((moved <= -min_records) | (moved >= min_records))
    before = far - 1
    if offset.size and offset.min() == NO_OFFSET:
        # No two changes in a row are expired offsets: the offset before one is the change before it.
        after = np.flatnonzero(offset == NO_OFFSET) + 1
        after = after[(after < code.size) & (after >= 2)]
        far = np.concatenate((far[(offset[far] >= 0) & (offset[before] >= 0)], after))
        before = np.concatenate((far[: far.size - after.size] - 1, after - 2))
    same_key = code[before] == code[far]
    before, far = before[same_key], far[same_key]
    moved = offset[far] - offset[before]
    chosen = (moved <= -min_records) | ((moved >= min_records) & _mark_jumps(code, time, offset, before, far))
    return before[chosen], far[chosen]


def _mark_jumps(code: Ints, time: Ints, offset: Ints, before: Ints, after: Ints) -> Flags:
    """Mark the jumps among moves ahead."""
    ahead = offset[after] - offset[before]
    expired = before < after - 1
    fast = ahead * 1000 > MAX_RATE * np.maximum(time[after] - time[before], 1000)
    surge = ~expired & (after >= PRIOR)
    surge[surge] = code[after[surge] - PRIOR] == code[after[surge]]
    for back in range(1, PRIOR):
        first, second = after[surge] - back - 1, after[surge] - back
        known = (offset[first] >= 0) & (offset[second] >= 0)
        surge[surge] = known & (ahead[surge] > SURGE * np.maximum(offset[second] - offset[first], 1))
    jumps: Flags = expired | fast | surge
    return jumps
