"""The last commits of many series, in rings: 8 bytes for how a commit follows the one before it in its series."""

from mmap import MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.model.batches import Flags, Integers

KEPT = 74
"""The most commits of a series: enough for one every 4.8 s."""

_TOOK, _ADVANCE, _APART = 23, 21, 18
"""How many bits of a word `Steps` have, from the highest: then one for `is_since`, before the last."""

_LONG = (1 << _TOOK) - 1
"""Instead of `took`: the step does not fit in a word. The rest of the word is its place among the long ones."""

_BLOCK = 512
"""Series whose commits with the same number are next to each other: a page of words."""

_WORD = np.dtype(np.int64).itemsize
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


class CommitRings:
    """The last KEPT commits of each series, by its id. written: how many there have been in all."""

    def __init__(self) -> None:
        self.written = np.zeros(0, np.int32)
        self._words = _GrowingWords()
        self._long = _LongSteps()

    def grow(self, rows: int) -> None:
        """Make room for so many series."""
        self.written = np.concatenate([self.written, np.zeros(rows - len(self.written), np.int32)])
        self._words.grow(-(-rows // _BLOCK) * KEPT * _BLOCK)

    def begin(self, number: int, steps: Steps) -> None:
        """Begin a series with these commits, KEPT at most."""
        count = len(steps.took)
        self._words.values[self._places(number, np.arange(count))] = self._pack(steps)
        self.written[number] = count

    def end(self, number: int) -> None:
        """Forget a series."""
        kept = np.arange(min(int(self.written[number]), KEPT))
        self._long.remove(self._words.values[self._places(number, kept)])
        self.written[number] = 0

    def add(self, ids: Integers, steps: Steps) -> None:
        """Add a commit to each of these series, which are different ones."""
        written = self.written[ids].astype(np.int64)
        places = self._places(ids, written)
        if self._long:
            self._long.remove(self._words.values[places[written >= KEPT]])
        self.written[ids] = written + 1  # before the word is replaced, for other threads
        self._words.values[places] = self._pack(steps)

    def steps(self, ids: Integers, numbers: Integers) -> Steps:
        """Return the steps to the commits with these numbers, which count from the first of each series, 0."""
        return self._unpack(self._words.values[self._places(ids, numbers)])

    def series(self, number: int, written: int) -> Steps:
        """Return the steps to the commits of one series when there had been so many of them. From any thread.

        Of those that have been overwritten since, only the last one remains, if no other does.
        """
        numbers = np.arange(max(written - KEPT, 0), written)
        words = self._words.copy(self._places(number, numbers))
        overwritten = int(self.written[number]) - KEPT - int(numbers[0])
        return self._unpack(words[min(max(overwritten, 0), len(words) - 1) :])

    @staticmethod
    def _places(ids: Integers | int, numbers: Integers) -> Integers:
        """Return where the commits with these numbers are."""
        return (ids // _BLOCK * KEPT + numbers % KEPT) * _BLOCK + ids % _BLOCK

    def _pack(self, steps: Steps) -> Integers:
        words = (((steps.took << _ADVANCE) | steps.advance) << 1 | steps.is_since) << _APART | steps.apart
        is_long = (steps.took >= _LONG) | (steps.advance >> _ADVANCE != 0) | (steps.apart >> _APART != 0)
        if is_long.any():
            words[is_long] = self._long.add(Steps(*(column[is_long] for column in steps)))
        return words

    def _unpack(self, words: NDArray[np.int64]) -> Steps:
        took = words >> (_ADVANCE + 1 + _APART)
        advance, apart = words >> (1 + _APART) & ((1 << _ADVANCE) - 1), words & ((1 << _APART) - 1)
        steps = Steps(took, advance, apart, words >> _APART & 1 != 0)
        if self._long:
            self._long.fill_in(steps, words)
        return steps


class _GrowingWords:
    """Words, 0 at first, in memory that grows in place: it is not copied, and what has not been written takes none.

    values: for the thread that grows them.
    """

    def __init__(self) -> None:
        self.values: NDArray[np.int64] = np.zeros(0, np.int64)
        self._memory = mmap(-1, PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._memory.madvise(MADV_NOHUGEPAGE)  # a huge page would take memory for much that has not been written

    def grow(self, count: int) -> None:
        """Make room for so many."""
        del self.values  # memory that is referred to cannot be resized
        self._memory.resize(max(count * _WORD, PAGESIZE))
        self.values = np.frombuffer(self._memory, np.int64)

    def copy(self, places: Integers) -> Integers:
        """Return the words at these places. From any thread."""
        return np.frombuffer(b"".join(self._memory[at : at + _WORD] for at in (places * _WORD).tolist()), np.int64)


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
        """Keep steps; return the words that stand for them."""
        used = self._used + len(steps.took)
        if used > len(self._rows):
            more = max(used - len(self._rows), len(self._rows) // 4, _ROWS)
            self._free = np.concatenate([self._free, np.arange(len(self._rows), len(self._rows) + more)])
            self._rows = np.concatenate([self._rows, np.zeros((more, len(Steps._fields)), np.int64)])
        places, self._used = self._free[self._used : used].copy(), used
        self._rows[places] = np.column_stack(steps)
        return _LONG << (_ADVANCE + 1 + _APART) | places

    def remove(self, words: Integers) -> None:
        """Forget the steps for which any of these words stand."""
        places = self._places(words[self._is_long(words)])
        self._free[self._used - len(places) : self._used] = places
        self._used -= len(places)

    def fill_in(self, steps: Steps, words: NDArray[np.int64]) -> None:
        """Replace the steps for which words stand."""
        is_long = self._is_long(words)
        if is_long.any():
            for column, values in zip(steps, self._rows[self._places(words[is_long])].T, strict=True):
                column[is_long] = values

    @staticmethod
    def _is_long(words: NDArray[np.int64]) -> Flags:
        is_long: Flags = words >> (_ADVANCE + 1 + _APART) == _LONG
        return is_long

    @staticmethod
    def _places(words: Integers) -> Integers:
        return words & ((1 << (_ADVANCE + 1 + _APART)) - 1)
