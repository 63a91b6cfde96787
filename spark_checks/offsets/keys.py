"""Codes for groups, topics and partitions, so that numpy arrays can hold them."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_checks.offsets.arrays import Flags, Ints

Predicate: TypeAlias = Callable[[str], bool]

_BITS = 21
_LOW = (1 << _BITS) - 1


def every(_: str) -> bool:
    """Select every name, also the empty one, which Kafka accepts as a group's."""
    return True


class Key(NamedTuple):
    """A group on a partition."""

    group: str
    topic: str
    partition: int


class KeyCodes:
    """Codes of keys in order of appearance."""

    def __init__(self, predicates: Sequence[Predicate], only: Collection[Key] | None = None) -> None:
        """Select clusters, groups and topics by predicates, and of their keys only those in `only` (None: all)."""
        self._predicates = predicates
        self._only = only
        self._numbers: tuple[dict[str, int], ...] = tuple({} for _ in predicates)
        self._codes: dict[int, int] = {}
        self._chosen = np.empty(0, np.bool_)

    def of(self, table: pa.Table) -> tuple[Ints, Flags | None]:
        """Return the codes of a table's wanted rows, and which rows those are (None: all).

        Its strings are dictionaries, unified.
        """
        partition = table["partition"].to_numpy()
        parts = [self._number(which, table[name]) for which, name in enumerate(("cluster", "group", "topic"))]
        wanted = None
        if any(part.size and part.min() < 0 for part in parts):
            wanted = np.logical_and.reduce([part >= 0 for part in parts])
            partition, parts = partition[wanted], [part[wanted] for part in parts]
        codes = self._encode(parts[2] << 2 * _BITS | parts[1] << _BITS | partition)
        if self._only is not None:
            kept = self._chosen[codes]
            codes, wanted = codes[kept], _within(kept, wanted)
        return codes, wanted

    def names(self, codes: Ints) -> list[pa.Array]:
        """Return the groups, topics and partitions of codes."""
        packed = np.fromiter(self._codes, np.int64, len(self._codes))[codes]
        groups, topics = (pa.array(list(numbers), pa.string()) for numbers in self._numbers[1:])
        return [
            groups.take(pa.array(packed >> _BITS & _LOW)),
            topics.take(pa.array(packed >> 2 * _BITS)),
            pa.array(packed & _LOW),
        ]

    def keys(self) -> list[Key]:
        """Return all keys by their codes."""
        names = (column.to_pylist() for column in self.names(np.arange(len(self._codes))))
        return [Key(*name) for name in zip(*names, strict=True)]

    def buckets(self, codes: Ints, many: int) -> Ints:
        """Return a bucket below `many` for each code, by its names: the same in every process."""
        packed = np.fromiter(self._codes, np.int64, len(self._codes))[codes]
        groups, topics = (np.array([crc32(name.encode()) for name in names] or [0]) for names in self._numbers[1:])
        buckets: Ints = (groups[packed >> _BITS & _LOW] + topics[packed >> 2 * _BITS] * 31 + (packed & _LOW)) % many
        return buckets

    def _number(self, which: int, column: pa.ChunkedArray) -> Ints:
        """Return a number for each value, -1 for an unwanted value."""
        numbers, wants = self._numbers[which], self._predicates[which]
        names = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
        mapped = np.array(
            [numbers.setdefault(name, len(numbers)) if name in numbers or wants(name) else -1 for name in names],
            np.int64,
        )
        return np.concatenate([np.empty(0, np.int64), *(mapped[chunk.indices.to_numpy()] for chunk in column.chunks)])

    def _encode(self, packed: Ints) -> Ints:
        encoded, known = pa.array(packed).dictionary_encode(), self._codes
        codes = [known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()]
        if self._only is not None and len(known) > self._chosen.size:
            self._chosen = np.array([key in self._only for key in self.keys()])
        result: Ints = np.array(codes, np.int64)[encoded.indices.to_numpy()]
        return result


def _within(kept: Flags, wanted: Flags | None) -> Flags:
    """Return which of all rows are kept, if `kept` refers to the wanted ones."""
    if wanted is None:
        return kept
    wanted = wanted.copy()
    wanted[wanted] = kept
    return wanted
