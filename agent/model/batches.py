"""Observations of one kind as columns: many of them pass through journal and engine without an object for each."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

UNKNOWN = -1
"""Instead of an offset that was deleted, of an unknown leader epoch, or of a time that is None."""

T = TypeVar("T", bound=Observation)
K = TypeVar("K")


def differ_from_before(values: NDArray[Any]) -> Flags:
    """Return which values differ from the one before them; the first does."""
    differ = np.empty(len(values), np.bool_)
    differ[:1] = True
    np.not_equal(values[1:], values[:-1], out=differ[1:])
    return differ


Part: TypeAlias = "ObservationBatch[Any] | Sequence[Observation]"
"""Observations in order."""

Chunk: TypeAlias = Sequence[Part]
"""Observations taken one after the other, sorted by kind."""

_TIMES = ("at", "seen_at", "since")
_OBJECTS_AT_ONCE = 1_000


class CommitKey(NamedTuple):
    """What a commit is about."""

    group: str
    topic: str
    partition: int


class PartitionKey(NamedTuple):
    """What log offsets are about."""

    topic: str
    partition: int


class CommitKeys(Sequence[CommitKey]):
    """Distinct keys as numbers of their groups and partitions: 8 bytes a key. Other threads may read what one appends.

    groups, partitions: by their numbers.
    """

    def __init__(self, keys: Iterable[CommitKey] = ()) -> None:
        self.groups: list[str] = []
        self.partitions: list[PartitionKey] = []
        self._group_numbers: dict[str, int] = {}
        self._partition_numbers: dict[PartitionKey, int] = {}
        self._group_of, self._partition_of = array("i"), array("i")
        for key in keys:
            self.append(key)

    def append(self, key: CommitKey) -> None:
        """Add a key at the end."""
        partition = PartitionKey(key.topic, key.partition)
        self._group_of.append(_number(self._group_numbers, self.groups, key.group))
        self._partition_of.append(_number(self._partition_numbers, self.partitions, partition))

    def __len__(self) -> int:
        return len(self._partition_of)

    def __getitem__(self, number: Any) -> Any:
        return CommitKey(self.groups[self._group_of[number]], *self.partitions[self._partition_of[number]])

    def group_numbers(self) -> NDArray[np.int32]:
        """Return the number of each key's group."""
        return np.frombuffer(self._group_of[:], np.int32)

    def partition_numbers(self) -> NDArray[np.int32]:
        """Return the number of each key's partition."""
        return np.frombuffer(self._partition_of[:], np.int32)


def _number(numbers: dict[K, int], values: list[K], value: K) -> int:
    """Return the number of a value, its place among the values, to which it is added if it is new."""
    number = numbers.get(value)
    if number is None:
        number = numbers[value] = len(values)
        values.append(value)
    return number


@dataclass(frozen=True, slots=True, eq=False)
class ObservationBatch(Collection[T]):
    """Observations of one kind and cluster, those of each key in order; one per row. Iterating makes an object of each.

    keys: distinct keys, without the cluster. But for a tuple, many batches may share them; they are only appended to.
    numbers: of the key of each row in `keys`. at, seen_at, since: ms, see `Observation`; UNKNOWN for None.
    """

    kind: ClassVar[type[Observation]]
    key: ClassVar[type[Any]]
    """The type of `keys`, with the names of the kind's fields."""
    values: ClassVar[Mapping[str, str]]
    """The columns of the kind's other fields, and the names of these."""

    cluster: str
    keys: Sequence[Any]
    numbers: Integers
    at: Integers
    seen_at: Integers
    since: Integers

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> Self | None:
        """Return observations of one cluster and of this kind as columns; None if a value does not fit."""
        known: list[Any] = list(observations)
        if not known or any(observation.__class__ is not cls.kind for observation in known):
            return None
        key_of = attrgetter(*cls.key._fields)
        numbers: dict[Any, int] = {}
        rows = np.array([numbers.setdefault(key_of(observation), len(numbers)) for observation in known], np.int64)
        values_of = attrgetter(*_TIMES, *cls.values.values())
        try:
            columns = [_column(values) for values in zip(*map(values_of, known), strict=True)]
        except (TypeError, ValueError, OverflowError):
            return None
        return cls(known[0].cluster, tuple(map(cls.key._make, numbers)), rows, *columns)

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, observation: object) -> bool:
        return any(other == observation for other in self)

    @property
    def latest(self) -> int:
        """When the last of them was seen, ms."""
        return int(self.seen.max())

    @property
    def seen(self) -> Integers:
        """When each was seen, ms."""
        return np.maximum(self.at, self.seen_at)

    def fields(self) -> dict[str, Integers]:
        """Return the columns by the names of the kind's fields."""
        own = {field: getattr(self, name) for name, field in self.values.items()}
        return {**{name: getattr(self, name) for name in _TIMES}, **own}

    def select(self, rows: Integers | Flags | slice) -> Self:
        """Return these rows."""
        columns = ("numbers", *_TIMES, *self.values)
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def not_after_seen(self) -> Self:
        """Return them dated no later than they were seen: the clock that dates them may be ahead of ours."""
        is_ahead = (self.seen_at != UNKNOWN) & (self.at > self.seen_at)
        if not is_ahead.any():
            return self
        at = np.where(is_ahead, self.seen_at, self.at)
        return replace(self, at=at, since=np.minimum(self.since, at))

    def not_after(self, now: int) -> Self:
        """Return them dated and seen no later than now (ms)."""
        is_late = (self.at > now) | (self.seen_at > now)
        return replace(self, seen_at=np.where(is_late, now, self.seen_at)).not_after_seen() if is_late.any() else self

    def __iter__(self) -> Iterator[T]:
        kind: Any = self.kind
        fields = self.fields()
        names = ("cluster", *self.key._fields, *fields)
        for begin in range(0, len(self), _OBJECTS_AT_ONCE):
            rows = slice(begin, begin + _OBJECTS_AT_ONCE)
            columns = (column[rows].tolist() for column in fields.values())
            for number, *values in zip(self.numbers[rows].tolist(), *columns, strict=True):
                known = (None if value == UNKNOWN else value for value in values)
                yield kind(**dict(zip(names, (self.cluster, *self.keys[number], *known), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class CommitBatch(ObservationBatch[Commit]):
    """Commits in columns. offsets, leader_epochs: UNKNOWN for None."""

    kind = Commit
    key = CommitKey
    values: ClassVar[Mapping[str, str]] = {"offsets": "offset", "leader_epochs": "leader_epoch"}

    offsets: Integers
    leader_epochs: Integers

    def one_per_group(self) -> "CommitBatch":
        """Return one commit of each group."""
        row_of = {self.keys[number].group: row for row, number in enumerate(self.numbers.tolist())}
        return self.select(np.array(list(row_of.values()), np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class LogOffsetsBatch(ObservationBatch[LogOffsets]):
    """Log offsets in columns."""

    kind = LogOffsets
    key = PartitionKey
    values: ClassVar[Mapping[str, str]] = {"log_starts": "log_start", "log_ends": "log_end"}

    log_starts: Integers
    log_ends: Integers


def _column(values: Sequence[int | None]) -> Integers:
    if UNKNOWN in values:
        msg = f"{UNKNOWN} stands for None"
        raise ValueError(msg)
    return np.array([UNKNOWN if value is None else value for value in values] if None in values else values, np.int64)
