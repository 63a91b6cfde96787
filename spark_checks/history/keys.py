"""Groups, topics and partitions as small numbers, so that arrays can hold them. No file is read here."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_checks.history.moves import Flags, Ints

Wants: TypeAlias = Callable[[str], bool]

_BITS = 21
_LOW = (1 << _BITS) - 1


class Key(NamedTuple):
    """A group's position on a partition."""

    group: str
    topic: str
    partition: int


class Keys:
    """Codes of keys, given out as they come."""

    def __init__(self, wants: Sequence[Wants], only: Collection[Key] | None = None) -> None:
        """wants: which clusters, groups and topics; only: which keys of those (None: all)."""
        self._wants = wants
        self._only = only
        self._numbers: tuple[dict[str, int], ...] = tuple({} for _ in wants)
        self._codes: dict[int, int] = {}
        self._chosen = np.empty(0, np.bool_)

    def of(self, table: pa.Table) -> tuple[Ints, Flags | None]:
        """(codes of a table's wanted rows, which rows those are; None: all). Its strings are dictionaries, unified."""
        partition = table["partition"].to_numpy()
        parts = [self._numbered(which, table[name]) for which, name in enumerate(("cluster", "group", "topic"))]
        wanted = None
        if any(part.size and part.min() < 0 for part in parts):
            wanted = np.logical_and.reduce([part >= 0 for part in parts])
            partition, parts = partition[wanted], [part[wanted] for part in parts]
        codes = self._coded(parts[2] << 2 * _BITS | parts[1] << _BITS | partition)
        if self._only is not None:
            kept = self._chosen[codes]
            codes, wanted = codes[kept], _within(kept, wanted)
        return codes, wanted

    def names(self, codes: Ints) -> list[pa.Array]:
        """The groups, topics and partitions of codes."""
        packed = np.fromiter(self._codes, np.int64, len(self._codes))[codes]
        groups, topics = (pa.array(list(numbers), pa.string()) for numbers in self._numbers[1:])
        return [
            groups.take(pa.array(packed >> _BITS & _LOW)),
            topics.take(pa.array(packed >> 2 * _BITS)),
            pa.array(packed & _LOW),
        ]

    def every(self) -> list[Key]:
        """The keys by their codes."""
        names = (column.to_pylist() for column in self.names(np.arange(len(self._codes))))
        return [Key(*name) for name in zip(*names, strict=True)]

    def buckets(self, codes: Ints, many: int) -> Ints:
        """A bucket below `many` for each code, by its names: the same in every process."""
        packed = np.fromiter(self._codes, np.int64, len(self._codes))[codes]
        groups, topics = (np.array([crc32(name.encode()) for name in names] or [0]) for names in self._numbers[1:])
        made: Ints = (groups[packed >> _BITS & _LOW] + topics[packed >> 2 * _BITS] * 31 + (packed & _LOW)) % many
        return made

    def _numbered(self, which: int, column: pa.ChunkedArray) -> Ints:
        """A number for each value, -1 for an unwanted one."""
        numbers, wants = self._numbers[which], self._wants[which]
        words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
        mapped = np.array(
            [numbers.setdefault(word, len(numbers)) if word in numbers or wants(word) else -1 for word in words],
            np.int64,
        )
        return np.concatenate([np.empty(0, np.int64), *(mapped[one.indices.to_numpy()] for one in column.chunks)])

    def _coded(self, packed: Ints) -> Ints:
        encoded, known = pa.array(packed).dictionary_encode(), self._codes
        codes = [known.setdefault(one, len(known)) for one in encoded.dictionary.to_pylist()]
        if self._only is not None and len(known) > self._chosen.size:
            self._chosen = np.array([key in self._only for key in self.every()])
        made: Ints = np.array(codes, np.int64)[encoded.indices.to_numpy()]
        return made


def _within(kept: Flags, wanted: Flags | None) -> Flags:
    """Which rows of all are kept, where `kept` tells it of the wanted ones."""
    if wanted is None:
        return kept
    wanted = wanted.copy()
    wanted[wanted] = kept
    return wanted
