"""Committed offsets as arrays: where they fall and where they leap. Plain numpy; files and Spark live elsewhere.

Rows are sorted by key, time and position. A key is one group on one partition, and only changes of its offset count.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

FORGOTTEN = -1
"""Stands for no offset: Kafka has forgotten it."""

NEVER = -(1 << 62)
"""Stands for no time."""

BACK = 4
"""How many changes before a leap tell how the group had moved until then."""

REACH = BACK + 1
"""How many changes before a commit decide what is said of it: an offset may have been forgotten in between."""

LEAP = 20
"""How many times larger than each of the three moves before it a move must be to be looked at as a leap."""

MAX_RATE = 1_000_000
"""Records per second that no consumer reads from one partition."""


class Rows(NamedTuple):
    """Commits, an array a column. code: of the key. time: ms, as if the writer's clock had never been set back.

    since: when the old value was last seen, where it was polled, else NEVER.
    """

    code: Ints
    time: Ints
    position: Ints
    offset: Ints
    since: Ints

    def at(self, chosen: Ints | Flags) -> "Rows":
        """These rows of them."""
        return Rows(*(column[chosen] for column in self))

    def then(self, other: "Rows") -> "Rows":
        """These, then the others."""
        return Rows(*(np.concatenate(both) for both in zip(self, other, strict=True)))


NONE = Rows(*(np.empty(0, np.int64) for _ in range(5)))


class Found(NamedTuple):
    """Falls and leaps among sorted changes: indices of the commits before and after."""

    before: Ints
    after: Ints


class Sorted(NamedTuple):
    """Rows in order of key, time and position. made: where each of them stands among the rows as they came."""

    made: Ints
    code: Ints
    time: Ints
    offset: Ints

    def at(self, chosen: Ints | Flags) -> "Sorted":
        """These rows of them."""
        return Sorted(*(column[chosen] for column in self))


def ordered(rows: Rows) -> Sorted:
    """Rows that come in order of position, sorted: stably by key, and by time only those keys that have late rows."""
    made = _by_code(rows.code)
    code, time = rows.code[made], rows.time[made]
    late = np.flatnonzero((time[1:] < time[:-1]) & (code[1:] == code[:-1]))
    if late.size:
        several = np.flatnonzero(np.isin(code, np.unique(code[late])))
        few = made[several]
        made[several] = few[np.lexsort((rows.position[few], rows.time[few], rows.code[few]))]
        time = rows.time[made]
    return Sorted(made, code, time, rows.offset[made])


def _by_code(code: Ints) -> Ints:
    """A stable sort. numpy sorts 16 bits by radix, ten times as fast as whole numbers."""
    if not code.size:
        return np.empty(0, np.int64)
    made = np.argsort((code & 0xFFFF).astype(np.uint16), kind="stable")
    bits = 16
    while int(code.max()) >> bits:
        made = made[np.argsort(((code[made] >> bits) & 0xFFFF).astype(np.uint16), kind="stable")]
        bits += 16
    return made


def changes(code: Ints, offset: Ints) -> Flags:
    """Which of the sorted rows are the first of their key or say another offset than the row before."""
    made = np.ones(code.size, np.bool_)
    np.not_equal(offset[1:], offset[:-1], out=made[1:])
    made[1:] |= code[1:] != code[:-1]
    return made


def found(code: Ints, time: Ints, offset: Ints, least: int) -> Found:
    """What went back by `least` records or more, and what leapt ahead by as many; of sorted changes.

    A leap is an advance after the offset had been forgotten, one of more than MAX_RATE records a second, or one LEAP
    times larger than each of the three moves before it. Whether it was read all the same is for others to judge.
    """
    moved = np.zeros(code.size, np.int64)
    np.subtract(offset[1:], offset[:-1], out=moved[1:])
    far = np.flatnonzero((moved <= -least) | (moved >= least))
    before = far - 1
    if offset.size and offset.min() == FORGOTTEN:
        # Of changes no two in a row are forgotten ones: what stood before one is the change before that.
        after = np.flatnonzero(offset == FORGOTTEN) + 1
        after = after[(after < code.size) & (after >= 2)]
        far = np.concatenate((far[(offset[far] >= 0) & (offset[before] >= 0)], after))
        before = np.concatenate((far[: far.size - after.size] - 1, after - 2))
    same = code[before] == code[far]
    before, far = before[same], far[same]
    moved = offset[far] - offset[before]
    chosen = (moved <= -least) | ((moved >= least) & _leaps(code, time, offset, before, far))
    return Found(before[chosen], far[chosen])


def _leaps(code: Ints, time: Ints, offset: Ints, before: Ints, after: Ints) -> Flags:
    """Which of these moves are leaps, going ahead."""
    leap = offset[after] - offset[before]
    forgotten = before < after - 1
    fast = leap * 1000 > MAX_RATE * np.maximum(time[after] - time[before], 1000)
    surge = ~forgotten & (after >= BACK)
    surge[surge] = code[after[surge] - BACK] == code[after[surge]]
    for back in range(1, BACK):
        one, two = after[surge] - back - 1, after[surge] - back
        known = (offset[one] >= 0) & (offset[two] >= 0)
        surge[surge] = known & (leap[surge] > LEAP * np.maximum(offset[two] - offset[one], 1))
    leaps: Flags = forgotten | fast | surge
    return leaps


def ends(code: Ints) -> tuple[Ints, Ints]:
    """The first row of each key and the one behind its last; of sorted rows."""
    borders = np.flatnonzero(code[1:] != code[:-1]) + 1
    edges = np.concatenate(([0], borders, [code.size])) if code.size else borders[:1]
    return edges[:-1], edges[1:]


def firsts(begin: Ints, end: Ints, most: Ints) -> Ints:
    """The indices of the first `most` of each range [begin, end), sorted."""
    count = np.minimum(most, end - begin)
    ahead = np.repeat(begin, count)
    made: Ints = ahead + np.arange(ahead.size) - np.repeat(np.cumsum(count) - count, count)
    return made


def lasts(begin: Ints, end: Ints, most: int) -> Ints:
    """The indices of the last `most` of each range [begin, end), sorted."""
    return firsts(np.maximum(begin, end - most), end, np.full(begin.size, most))
