"""The numbers of the keys of records, in a table of hashes of 64 bits: 12 bytes a place. Makes no calls."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from agent.model.batches import Flags, Integers

MISSING = -2
"""Instead of a number: the key has none. In the table: the place is free."""

_REMOVED = -3
"""Instead of a number, in the table: the key has none, but there may be others in the places after this one."""

_PLACES = 1_024
_AFTER_LAST = 256
"""Places after those in which a search can begin. The last place is always free."""


class KeyNumbers:
    """The number of each known key, by the key as it is in records.

    Keys with the same hash would have the same number. Of a million keys two have, once in 37 million runs: Python
    chooses the hash function at random in each. A key is in the first place from its hash on that was free.
    """

    def __init__(self, ask: Callable[[bytes], int]) -> None:
        """ask: returns the number of a key that has none. It may set it."""
        self._ask = ask
        self._rebuild(np.zeros(0, np.int64), np.zeros(0, np.int32))

    def of(self, keys: Sequence[bytes | None]) -> Integers:
        """Return the numbers of keys."""
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        numbers = np.maximum(self._numbers[self._places(hashes)], MISSING).astype(np.int64)
        for row in np.flatnonzero(numbers == MISSING).tolist():
            key = keys[row] or b""
            number = self.get(key)  # it may have been set since
            numbers[row] = self._ask(key) if number == MISSING else number
        return numbers

    def get(self, key: bytes) -> int:
        """Return the number of a key, or MISSING."""
        return max(int(self._numbers[self._place(hash(key))]), MISSING)

    def set(self, key: bytes, number: int) -> None:
        """Give a key a number."""
        hashed = hash(key)
        place = self._place(hashed)
        self._used += int(self._numbers[place] == MISSING)
        self._hashes[place], self._numbers[place] = hashed, number
        if 3 * self._used > 2 * self._mask or place == len(self._numbers) - 1:
            self._keep(self._numbers > MISSING)

    def remove(self, key: bytes) -> None:
        """Forget a key, if it is known."""
        place = self._place(hash(key))
        if self._numbers[place] != MISSING:
            self._numbers[place] = _REMOVED

    def remove_all(self, number: int) -> None:
        """Forget the keys with this number."""
        self._keep((self._numbers > MISSING) & (self._numbers != number))

    def replace(self, number_of: Integers) -> None:
        """Replace the numbers of all keys. number_of: by the number before."""
        is_known = self._numbers > MISSING
        self._numbers[is_known] = number_of[self._numbers[is_known]]
        self._keep(is_known)

    def _place(self, hashed: int) -> int:
        """Return where a key with this hash is, or could be."""
        place = hashed & self._mask
        while self._numbers[place] != MISSING and self._hashes[place] != hashed:
            place += 1
        return place

    def _places(self, hashes: Integers) -> Integers:
        """Return where keys with these hashes are, or could be."""
        places = hashes & self._mask
        rows = np.flatnonzero(self._are_others(places, hashes))
        while len(rows):
            places[rows] += 1
            rows = rows[self._are_others(places[rows], hashes[rows])]
        return places

    def _are_others(self, places: Integers, hashes: Integers) -> Flags:
        """Return in which places there are other keys."""
        others: Flags = (self._hashes[places] != hashes) & (self._numbers[places] != MISSING)
        return others

    def _keep(self, which: Flags) -> None:
        """Keep only the keys in these places."""
        self._rebuild(self._hashes[which], self._numbers[which])

    def _rebuild(self, hashes: Integers, numbers: NDArray[np.int32]) -> None:
        """Make a table of these keys, at most half full."""
        count = max(_PLACES, 1 << (2 * len(hashes)).bit_length())
        self._mask = count - 1
        order = np.argsort(hashes & self._mask)
        hashes = hashes[order]
        rows = np.arange(len(hashes))
        places = np.maximum.accumulate((hashes & self._mask) - rows) + rows  # each after the one before it
        count = max(count, int(places[-1]) + 1 if len(places) else 0) + _AFTER_LAST
        self._used = len(hashes)
        self._hashes, self._numbers = np.zeros(count, np.int64), np.full(count, MISSING, np.int32)
        self._hashes[places], self._numbers[places] = hashes, numbers[order]
