"""A table of 64-bit key hashes and their numbers, 16 bytes a place, which grows and shrinks in place. Pure.

A key's home is a bucket of 16 places, found from the upper half of its hash so that homes rise with hashes; where it is
full, the key stands in the first of the following buckets that is not (linear probing). Nothing is ever removed but by
`rebuild`, so that a key is not there when a bucket on its way has a free place.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]
Numbers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

NOTHING = -(2**63)
"""The number of a key that has none now. No number is lower, so that none that follows has fallen."""

PLACE_BYTES = 16
SMALLEST = 256
"""The buckets of a table that has just begun."""

_PLACES = 16
_SPILL = 32  # buckets after the last home: even a table that is nearly full has far fewer keys to put there
_LOAD = 0.8
_CHUNK = 1024  # buckets rebuilt at a time; it takes about 4 MB for a moment
_HALF = np.uint64(32)


class Table:
    """used: how many keys are in it, those with NOTHING included. All arrays of hashes come sorted, without repeats."""

    def __init__(self, buckets: int = SMALLEST) -> None:
        self.used = 0
        self.buckets = buckets
        self._hashes: Hashes = np.zeros((buckets + _SPILL, _PLACES), np.uint64)  # 0: a free place
        self._numbers: Numbers = np.zeros((buckets + _SPILL, _PLACES), np.int64)

    @property
    def size(self) -> int:
        """Bytes."""
        return table_bytes(self.buckets)

    @property
    def room(self) -> int:
        """How many keys more it takes as it is."""
        return int(self.buckets * _PLACES * _LOAD) - self.used

    def find(self, hashes: Hashes) -> NDArray[np.int64]:
        """The place of each key; -1 where it is not there."""
        found = np.full(len(hashes), -1)
        looking = np.arange(len(hashes))
        bucket = self._homes(hashes)
        while len(looking):
            rows = self._hashes[bucket]
            same = rows == hashes[looking, None]
            place = same.argmax(axis=1)
            here = same[np.arange(len(looking)), place]
            found[looking[here]] = bucket[here] * _PLACES + place[here]
            further = ~here & (rows[:, -1] != 0)
            looking, bucket = looking[further], bucket[further] + 1
        return found

    def numbers(self, places: NDArray[np.int64]) -> Numbers:
        """What stands at places that `find` has told."""
        return self._numbers.reshape(-1)[places]

    def set(self, places: NDArray[np.int64], numbers: Numbers) -> None:
        """Write over what stands there."""
        self._numbers.reshape(-1)[places] = numbers

    def add(self, hashes: Hashes, numbers: Numbers) -> None:
        """Take keys that are not in it. There must be room for them."""
        self._insert(hashes, numbers, 0, len(self._hashes))
        self.used += len(hashes)

    def empty_keys(self) -> int:
        """How many keys have NOTHING. Looks through the whole table."""
        return int(((self._numbers == NOTHING) & (self._hashes != 0)).sum())

    def rebuild(self, buckets: int, below: int) -> None:
        """Make it so many buckets, and keep only keys that have a number and are in the sample `below` (see sampled).

        Goes through the table from the end towards which keys move, so that no second table is needed: what has been
        put into its new place is never met again.
        """
        growing = buckets > self.buckets
        old, rows = len(self._hashes), buckets + _SPILL
        self.buckets, self.used = buckets, 0
        if growing:
            self._resize(rows)
        starts = range(0, old, _CHUNK)
        left: list[tuple[Hashes, Numbers]] = []
        for begin in reversed(starts) if growing else starts:
            end = min(begin + _CHUNK, old)
            hashes, numbers = self._hashes[begin:end].ravel(), self._numbers[begin:end].ravel()  # views
            keep = np.flatnonzero((hashes != 0) & (numbers != NOTHING) & sampled(hashes, below))
            keep = keep[np.argsort(hashes[keep], kind="stable")]
            hashes, numbers = hashes[keep], numbers[keep]
            self._hashes[begin:end] = 0
            low, high = (begin, rows) if growing else (0, min(end, rows))
            left.append(self._insert(hashes, numbers, low, high))
            self.used += len(hashes)
        if not growing:
            self._resize(rows)
        for hashes, numbers in left:
            self._insert(hashes, numbers, 0, rows)

    def _resize(self, rows: int) -> None:
        for array in (self._hashes, self._numbers):
            array.resize((rows, _PLACES), refcheck=False)  # realloc, which moves pages and copies nothing

    def _homes(self, hashes: Hashes) -> NDArray[np.int64]:
        return (((hashes >> _HALF) * np.uint64(self.buckets)) >> _HALF).astype(np.int64)

    def _insert(self, hashes: Hashes, numbers: Numbers, low: int, high: int) -> tuple[Hashes, Numbers]:
        """Put keys into buckets from `low` up to `high`; returns those whose way is not within."""
        bucket = self._homes(hashes)
        outside = bucket < low
        left = [(hashes[outside], numbers[outside])]
        hashes, numbers, bucket = hashes[~outside], numbers[~outside], bucket[~outside]
        while len(hashes):
            outside = bucket >= high
            if outside.any():
                left.append((hashes[outside], numbers[outside]))
                hashes, numbers, bucket = hashes[~outside], numbers[~outside], bucket[~outside]
                continue
            taken = np.count_nonzero(self._hashes[bucket], axis=1)
            begins = np.flatnonzero(np.diff(bucket, prepend=-1))
            before = np.repeat(begins, np.diff(begins, append=len(bucket)))  # the first that wants the same bucket
            place = taken + np.arange(len(bucket)) - before
            fits = place < _PLACES
            self._hashes[bucket[fits], place[fits]] = hashes[fits]
            self._numbers[bucket[fits], place[fits]] = numbers[fits]
            hashes, numbers, bucket = hashes[~fits], numbers[~fits], bucket[~fits] + 1
        return np.concatenate([one for one, _ in left]), np.concatenate([one for _, one in left])


def table_bytes(buckets: int) -> int:
    """What a table of so many buckets takes."""
    return (buckets + _SPILL) * _PLACES * PLACE_BYTES


def buckets_in(size: int) -> int:
    """The most buckets that a table of so many bytes has; negative where it takes more than that to begin."""
    return size // (_PLACES * PLACE_BYTES) - _SPILL


def sampled(hashes: Hashes, below: int) -> Flags:
    """Which keys are in the sample: those whose hash's lower half is below this. 2**32: all."""
    return (hashes & np.uint64(0xFFFFFFFF)) < np.uint64(below)
