"""The last commits of many series, in rings: 6 bytes for how a commit follows the one before it in its series."""

from mmap import MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.model.batches import Flags, Integers

LENGTHS = (74, 272)
"""How many commits a ring may keep: enough for one every 4.8 s, or for one a second."""

_WORD = np.dtype("V6")
"""From its highest bit: 3 that say how the rest is shared, then `took`, `advance`, `apart`, and one for `is_since`."""

_SHARED = 45

_SHARES = (
    (16, 14, 14),  # took up to 65 s, advance up to 16,383, apart up to 16 s
    (14, 20, 10),  # fast: 16 s, a million, 1 s
    (15, 11, 18),  # seen late: 32 s, 2,047, 4 minutes
    (18, 15, 11),  # 4 minutes, 32,767, 2 s
    (21, 12, 11),  # slow: 34 minutes, 4,095, 2 s
    (20, 16, 8),  # slow and far: 17 minutes, 65,535, 0.2 s
    (22, 8, 14),  # slow and near, as seen by polls in turn: 69 minutes, 255, 16 s
)
"""How many bits `took`, `advance` and `apart` have. The first share in which a step fits is taken."""

_LONG = len(_SHARES)
"""Instead of a share: the step fits in none. The rest of the word is its place among the long ones."""

_, _ADVANCE, _APART = np.array([*_SHARES, (0, 0, 0)]).T

_BLOCK = 2_048
"""Series whose commits with the same number are next to each other: pages of words."""

_ROWS = 256


class Steps(NamedTuple):
    """How commits follow those before them. took: ms. advance: of the offset. All of them are 0 or more.

    apart: how long after a commit was made it was seen, ms; where is_since, how long before it was made the commit
    before it was seen last.
    """

    took: Integers
    advance: Integers
    apart: Integers
    is_since: Flags

    def select(self, rows: Integers) -> "Steps":
        """Return these rows."""
        return Steps(self.took[rows], self.advance[rows], self.apart[rows], self.is_since[rows])


class CommitRings:
    """The last commits of each series, by its id. written: how many there have been in all."""

    def __init__(self) -> None:
        self.written = np.zeros(0, np.int32)
        self._lengths, self._begins = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of blocks, in words of a series
        self._words = _GrowingWords()
        self._long = _LongSteps()

    def add_block(self, length: int) -> range:
        """Make room for _BLOCK more series, with rings of this length; return their ids."""
        first, begin = _BLOCK * len(self._lengths), int(self._lengths.sum())
        self._words.grow((begin + length) * _BLOCK)
        self._begins, self._lengths = np.append(self._begins, begin), np.append(self._lengths, length)
        self.written = with_room(self.written, first + _BLOCK)
        return range(first, first + _BLOCK)

    def lengths(self, ids: Integers | int) -> Integers:
        """Return how many commits the rings of these series keep."""
        return self._lengths[ids // _BLOCK]

    def begin(self, number: int, steps: Steps) -> None:
        """Begin a series with these commits, no more than its ring keeps."""
        count = len(steps.took)
        self._words.values[self._places(number, np.arange(count))] = self._pack(steps)
        self.written[number] = count

    def end(self, number: int) -> None:
        """Forget a series."""
        kept = np.arange(min(int(self.written[number]), int(self.lengths(number))))
        self._long.remove(_wide(self._words.values[self._places(number, kept)]))
        self.written[number] = 0

    def add(self, ids: Integers, steps: Steps) -> None:
        """Add a commit to each of these series, which are different ones."""
        written = self.written[ids].astype(np.int64)
        places = self._places(ids, written)
        if self._long:
            self._long.remove(_wide(self._words.values[places[written >= self.lengths(ids)]]))
        self.written[ids] = written + 1  # before the word is replaced, for other threads
        self._words.values[places] = self._pack(steps)

    def steps(self, ids: Integers, numbers: Integers) -> Steps:
        """Return the steps to the commits with these numbers, which count from the first of each series, 0."""
        return self._unpack(self._words.values.take(self._places(ids, numbers)))

    def series(self, number: int, written: int) -> Steps:
        """Return the steps to the commits of one series when there had been so many of them. From any thread.

        Of those that have been overwritten since, only the last one remains, if no other does.
        """
        length = int(self.lengths(number))
        numbers = np.arange(max(written - length, 0), written)
        words = self._words.copy(self._places(number, numbers))
        overwritten = int(self.written[number]) - length - int(numbers[0])
        return self._unpack(words[min(max(overwritten, 0), len(words) - 1) :])

    def _places(self, ids: Integers | int, numbers: Integers) -> Integers:
        """Return where the commits with these numbers are."""
        blocks = ids // _BLOCK
        return (self._begins[blocks] + numbers % self._lengths[blocks]) * _BLOCK + ids % _BLOCK

    def _pack(self, steps: Steps) -> NDArray[np.void]:
        shares, rest = np.full(len(steps.took), _LONG), np.arange(len(steps.took))
        for share, (took, advance, apart) in enumerate(_SHARES):
            others = steps.select(rest)
            fits = (others.took >> took | others.advance >> advance | others.apart >> apart) == 0
            shares[rest[fits]] = share
            rest = rest[~fits]
            if not len(rest):
                break
        words = ((steps.took << _ADVANCE[shares] | steps.advance) << _APART[shares] | steps.apart) << 1 | steps.is_since
        if len(rest):
            words[rest] = self._long.add(steps.select(rest))
        return _narrow(shares << _SHARED | words)

    def _unpack(self, narrow: NDArray[np.void]) -> Steps:
        words = _wide(narrow)
        shares, shared = words >> _SHARED, words & ((1 << _SHARED) - 1)
        if shares.size and shares.min() == shares.max():
            shares = shares.flat[:1]
        advance, apart = _ADVANCE[shares], _APART[shares]
        steps = Steps(
            shared >> (advance + apart + 1),
            shared >> (apart + 1) & ((1 << advance) - 1),
            shared >> 1 & ((1 << apart) - 1),
            shared & 1 != 0,
        )
        if self._long:
            self._long.fill_in(steps, words)
        return steps


def with_room(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return a column with room for so many rows; if it has to grow, by a sixteenth at least, with zeros."""
    missing = rows - len(column)
    if missing <= 0:
        return column
    return np.concatenate([column, np.zeros(max(missing, len(column) // 16), column.dtype)])


def _narrow(words: Integers) -> NDArray[np.void]:
    """Return the lower 6 bytes of each word."""
    return np.ascontiguousarray(words.view(np.uint16).reshape(-1, 4)[:, :3]).view(_WORD)[:, 0]


def _wide(words: NDArray[np.void]) -> Integers:
    """Return the integers of which these are the lower 6 bytes."""
    low, middle, high = np.moveaxis(words[..., None].view(np.uint16), -1, 0).astype(np.int64)
    return np.asarray(high << 32 | middle << 16 | low)


class _GrowingWords:
    """Words, 0 at first, in memory that grows in place: it is not copied, and what has not been written takes none.

    values: for the thread that grows them.
    """

    def __init__(self) -> None:
        self.values: NDArray[np.void] = np.zeros(0, _WORD)
        self._memory = mmap(-1, PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._memory.madvise(MADV_NOHUGEPAGE)  # a huge page would take memory for much that has not been written

    def grow(self, count: int) -> None:
        """Make room for so many."""
        del self.values  # memory that is referred to cannot be resized
        self._memory.resize(max(count * _WORD.itemsize, PAGESIZE))
        self.values = np.frombuffer(self._memory, _WORD, count)

    def copy(self, places: Integers) -> NDArray[np.void]:
        """Return the words at these places. From any thread."""
        size = _WORD.itemsize
        return np.frombuffer(b"".join(self._memory[at : at + size] for at in (places * size).tolist()), _WORD)


class _LongSteps:
    """Steps that do not fit in a word, each at a place of its own."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, len(Steps._fields)), np.int64)
        self._free = np.zeros(0, np.int64)
        self._used = 0  # the places after the first so many in `_free` are free

    def __len__(self) -> int:
        """Return how many there are."""
        return self._used

    def add(self, steps: Steps) -> Integers:
        """Keep steps; return their places."""
        used = self._used + len(steps.took)
        if used > len(self._rows):
            more = max(used - len(self._rows), len(self._rows) // 4, _ROWS)
            self._free = np.concatenate([self._free, np.arange(len(self._rows), len(self._rows) + more)])
            self._rows = np.concatenate([self._rows, np.zeros((more, len(Steps._fields)), np.int64)])
        places, self._used = self._free[self._used : used].copy(), used
        self._rows[places] = np.column_stack(steps)
        return places

    def remove(self, words: Integers) -> None:
        """Forget the steps for which any of these words stand."""
        places = self._places(words[_is_long(words)])
        self._free[self._used - len(places) : self._used] = places
        self._used -= len(places)

    def fill_in(self, steps: Steps, words: Integers) -> None:
        """Replace the steps for which words stand."""
        is_long = _is_long(words)
        if is_long.any():
            for column, values in zip(steps, self._rows[self._places(words[is_long])].T, strict=True):
                column[is_long] = values

    @staticmethod
    def _places(words: Integers) -> Integers:
        """Return the places of the steps for which words stand."""
        return words & ((1 << _SHARED) - 1)


def _is_long(words: Integers) -> Flags:
    is_long: Flags = words >> _SHARED == _LONG
    return is_long
