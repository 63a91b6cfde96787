"""A list of one subject's observations that keeps older ones as integers: as objects they take six times the memory.

One thread changes it; others may read it meanwhile.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from msgspec import structs

from agent.model.batches import UNKNOWN, Flags, Integers, differ_from_before
from agent.model.observations.base import Observation

T = TypeVar("T", bound=Observation)

_OBJECTS = 9
"""How many of the newest stay objects at least: rules look at so many with each commit."""

_AT_ONCE = 8
"""How many become integers at once."""

_ROWS_AT_ONCE = 64
"""How many that were added as integers are joined with the older ones at once."""

_NONE = -(1 << 63)
"""Stands for None. No offset and no time is that low."""

_AT = attrgetter("at")
_MINUTE_MS = 60_000


class CompactList(Sequence[T]):
    """Observations of one subject, of a kind with `is_compact`; the newest are appended at the end."""

    __slots__ = ("_parts",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        # Replaced as one, so that what another thread reads fits together: rows of integers, how many, then objects,
        # then rows again. The latter only grow; without objects there are none.
        self._parts: tuple[array[int], int, list[T], array[int]] = (array("q"), 0, list(items), array("q"))
        self._pack(len(self._parts[2]) - _OBJECTS)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int | None]], key: Sequence[Any], kind: type[T]) -> "CompactList[T]":
        """Return observations of one subject from the values of their other fields, in order, oldest first."""
        layout = _layout(kind)
        newest = [kind(**dict(zip(layout.names, (*row, *key), strict=True))) for row in rows[-_OBJECTS:]]
        older = rows[: -len(newest)] if newest else []
        found: CompactList[T] = cls()
        packed = array("q", [_NONE if value is None else value for row in older for value in row])
        found._parts = packed, len(packed) // layout.width, newest, array("q")
        return found

    def append(self, item: T) -> None:
        """Add an observation."""
        rows, packed, objects, added = self._parts
        if added:
            objects = objects + _unpacked(added, objects)
            self._parts = rows, packed, objects, array("q")
        objects.append(item)
        if len(objects) >= _OBJECTS + _AT_ONCE:
            self._pack(len(objects) - _OBJECTS)

    def append_row(self, row: bytes) -> int:
        """Add an observation of `packed_rows` to others; return how many there are."""
        rows, packed, objects, added = self._parts
        added.frombytes(row)  # at once, for other threads
        count = len(added) * added.itemsize // len(row)
        if count >= _ROWS_AT_ONCE:
            try:
                rows = rows + _packed(objects) + added[: -len(row) // added.itemsize]
                last = _unpacked(added, objects, count - 1)
                self._parts = rows, packed + len(objects) + count - 1, last, array("q")
            except OverflowError:
                self._parts = rows, packed, objects + _unpacked(added, objects), array("q")
        return packed + len(objects) + count

    @property
    def sample(self) -> T:
        """Any of the observations."""
        return self._parts[2][-1]

    def at(self, index: int) -> int:
        """Return when the observation at this index, which is not negative, held first, ms."""
        rows, packed, objects, added = self._parts
        if index < packed:
            return rows[index * (len(rows) // packed)]
        if index < packed + len(objects):
            return objects[index - packed].at
        return added[(index - packed - len(objects)) * _layout(objects[-1].__class__).width]

    def find(self, name: str, is_wanted: Callable[[Any], Any], begin: int) -> int | None:
        """Return the index of the first observation from `begin` on with a wanted value, see `History.when`."""
        rows, packed, objects, added = self._parts
        if (place := _found(rows, objects, name, is_wanted, begin)) is not None:
            return place
        later = range(max(begin - packed, 0), len(objects))
        place = next((place for place in later if is_wanted(value_of(objects[place], name))), None)
        if place is not None:
            return packed + place
        start = packed + len(objects)
        place = _found(added, objects, name, is_wanted, max(begin - start, 0))
        return None if place is None else start + place

    def bisect(self, at: int, bisect: Callable[..., int]) -> int:
        """Return what bisect_left or bisect_right returns for that moment (ms) among the observations' `at`."""
        rows, packed, objects, added = self._parts
        if packed and at <= objects[0].at:
            index = bisect(rows[:: len(rows) // packed], at)
            if index < packed:
                return index
        index = bisect(objects, at, key=_AT)
        if added and index == len(objects):
            index += bisect(added[:: _layout(objects[-1].__class__).width], at)
        return packed + index

    def __delitem__(self, first: slice) -> None:
        """Remove the first observations up to an index."""
        rows, packed, objects, added = self._parts
        count = len(range(len(self))[first])
        width = len(rows) // max(packed, 1)
        if count > packed and added:
            objects, added = objects + _unpacked(added, objects), array("q")
        self._parts = rows[count * width :], max(packed - count, 0), objects[max(count - packed, 0) :], added

    def __len__(self) -> int:
        return _length(self._parts)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        parts = self._parts
        _, packed, objects, added = parts
        if not added:  # most often one of the newest, or all from it on
            newest = index.start if isinstance(index, slice) and index.stop is index.step is None else index
            if isinstance(newest, int):
                # From the front: another thread may append meanwhile.
                place = newest - packed if newest >= 0 else newest + len(objects)
                if 0 <= place < len(objects):
                    return objects[place] if newest is index else objects[place:]
        places = range(_length(parts))[index]
        if isinstance(places, int):
            return _between(parts, places, places + 1)[0]
        if not places:
            return []
        low, high = min(places[0], places[-1]), max(places[0], places[-1]) + 1
        return _between(parts, low, high)[:: places.step]

    def columns(self, *names: str) -> Integers:
        """Return these fields of all observations, a row each, oldest first.

        Raises OverflowError if one does not fit.
        """
        layout = _layout(self.sample.__class__)
        rows = np.frombuffer(self.integers(len(self)), np.int64).reshape(-1, layout.width)
        return rows[:, [layout.names.index(name) for name in names]]

    def thinned(self, older: "CompactList[T] | tuple[()]", count: int, now: int) -> "CompactList[T]":
        """Return a selection of older observations, and then of the first `count` of these.

        The first of each minute, of each two minutes from 16 minutes ago on, of each four from 32, ... What is selected
        now is a selection of what was selected before.
        """
        layout = _layout(self.sample.__class__)
        try:
            packed = (older.integers(len(older)) if older else array("q")) + self.integers(count)
        except OverflowError:
            items = [*older, *self[:count]]
            kept = _first_of_steps(np.array([item.at for item in items], np.int64), now, self.sample.memory_ms)
            return CompactList(compress(items, kept.tolist()))
        rows = np.frombuffer(packed, np.int64).reshape(-1, layout.width)
        rows = rows[_first_of_steps(rows[:, 0], now, self.sample.memory_ms)]
        found: CompactList[T] = CompactList()
        if len(rows):
            last = layout.make(self.sample, *rows[-1].tolist())
            found._parts = array("q", rows[:-1].tobytes()), len(rows) - 1, [last], array("q")
        return found

    def integers(self, count: int) -> "array[int]":
        """Return the first `count` as integers. Raises OverflowError if one does not fit."""
        rows, packed, objects, added = self._parts
        if count <= packed:
            return rows[: count * (len(rows) // max(packed, 1))]
        layout = _layout(objects[-1].__class__)
        return rows + _packed(objects[: count - packed]) + added[: max(count - packed - len(objects), 0) * layout.width]

    def _pack(self, count: int) -> None:
        """Keep the first objects as integers, unless one does not fit."""
        if count <= 0:
            return
        rows, packed, objects, added = self._parts
        try:
            self._parts = rows + _packed(objects[:count]), packed + count, objects[count:], added
        except OverflowError:
            return


class _Layout(NamedTuple):
    """How observations of a kind become integers, and objects again: make(another of the subject, *values).

    width: how many integers one takes. names: of their fields, then of the key's.
    """

    width: int
    names: Sequence[str]
    values_of: Callable[[Any], Sequence[int | None]]
    make: Callable[..., Any]


@cache
def _layout(kind: type[Observation]) -> _Layout:
    names = [field.name for field in structs.fields(kind) if field.name not in kind.key]  # `at` is the first
    same = [f"{name}=of.{name}" for name in kind.key]
    own = [f"{name}=None if {name} == {_NONE} else {name}" for name in names]
    # Generated, as namedtuple does it: a call with a dict of the fields takes five times as long.
    make = eval(f"lambda of, {', '.join(names)}: kind({', '.join(same + own)})", {"kind": kind})  # noqa: S307
    return _Layout(len(names), (*names, *kind.key), attrgetter(*names), make)


def value_of(observation: Observation, name: str) -> Any:
    """Return the value of a field, UNKNOWN for None."""
    value = getattr(observation, name)
    return UNKNOWN if value is None else value


def packed_rows(kind: type[Observation], fields: Mapping[str, Integers]) -> list[bytes]:
    """Return each row of columns for `CompactList.append_row`. fields: by the names of the kind's."""
    layout = _layout(kind)
    values = np.column_stack([fields[name] for name in layout.names[: layout.width]])
    packed, size = np.where(values == UNKNOWN, _NONE, values).tobytes(), layout.width * values.itemsize
    return [packed[begin : begin + size] for begin in range(0, len(packed), size)]


def _unpacked(rows: "array[int]", objects: Sequence[T], begin: int = 0, end: int | None = None) -> list[T]:
    """Return rows as objects of the same subject as others."""
    layout, of = _layout(objects[-1].__class__), objects[-1]
    width, make = layout.width, layout.make
    values = iter(rows[begin * width : None if end is None else end * width])
    return [make(of, *row) for row in zip(*[values] * width, strict=True)]


def _packed(objects: Sequence[Observation]) -> "array[int]":
    """Return objects as rows. Raises OverflowError if one does not fit."""
    values_of = _layout(objects[-1].__class__).values_of if objects else None
    return array("q", [_NONE if value is None else value for item in objects for value in cast("Any", values_of)(item)])


def _length(parts: "tuple[array[int], int, list[T], array[int]]") -> int:
    """Return how many observations these parts of a list hold."""
    _, packed, objects, added = parts
    return packed + len(objects) + (len(added) // _layout(objects[-1].__class__).width if added else 0)


def _between(parts: "tuple[array[int], int, list[T], array[int]]", low: int, high: int) -> list[T]:
    """Return what is in these parts of a list from one index to another."""
    rows, packed, objects, added = parts
    start = packed + len(objects)
    found = objects[max(low - packed, 0) : max(high - packed, 0)]
    if low < packed:
        found = _unpacked(rows, objects, low, min(high, packed)) + found
    if high > start:
        found = found + _unpacked(added, objects, max(low - start, 0), high - start)
    return found


def _found(
    rows: "array[int]", objects: Sequence[Observation], name: str, is_wanted: Callable[[Any], Any], begin: int
) -> int | None:
    """Return the index of the first row from `begin` on with a wanted value. objects: others of the subject."""
    if not rows:
        return None
    layout = _layout(objects[-1].__class__)
    # A copy: the thread that adds rows cannot while a view of them exists.
    values = np.frombuffer(rows[begin * layout.width + layout.names.index(name) :: layout.width], np.int64)
    found = np.flatnonzero(is_wanted(np.where(values == _NONE, UNKNOWN, values)))
    return begin + int(found[0]) if found.size else None


def _first_of_steps(at: Integers, now: int, memory_ms: int) -> Flags:
    """Return which observations `CompactList.thinned` selects of those at these moments (ms), oldest first."""
    age = now - at
    step = _MINUTE_MS << np.maximum(np.frexp(age // (8 * _MINUTE_MS))[1] - 1, 0).astype(np.int64)
    is_remembered = age <= memory_ms
    is_first = differ_from_before(step) | differ_from_before(at // step) | differ_from_before(is_remembered)
    return is_remembered & is_first
