"""A list of one subject's observations that keeps older ones as integers: as objects they take six times the memory.

One thread changes it; others may read it meanwhile.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from msgspec import structs

from agent.model.batches import UNKNOWN, Integers
from agent.model.observations.base import Observation

T = TypeVar("T", bound=Observation)

_OBJECTS = 9
"""How many of the newest stay objects at least: rules look at so many with each commit."""

_AT_ONCE = 8
"""How many become integers at once."""

_ROWS_AT_ONCE = 64
"""How many that were added as integers become objects when they are read, at most."""

_NONE = -(1 << 63)
"""Stands for None. No offset and no time is that low."""

_AT = attrgetter("at")
_MINUTE_MS = 60_000


class CompactList(Sequence[T]):
    """Observations of one subject, of a kind with `is_compact`; the newest are appended at the end."""

    __slots__ = ("_parts", "_view")

    def __init__(self, items: Iterable[T] = ()) -> None:
        # Replaced as one, so that what another thread reads fits together: rows of integers, how many, then objects,
        # then rows again. The latter only grow; without objects there are none.
        self._parts: tuple[array[int], int, list[T], array[int]] = (array("q"), 0, list(items), array("q"))
        self._view: tuple[array[int], int, list[T]] | None = None
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
        if self._parts[3]:
            rows, packed, objects = self._read()
            self._parts, self._view = (rows, packed, list(objects), array("q")), None
        objects = self._parts[2]
        objects.append(item)
        if len(objects) >= _OBJECTS + _AT_ONCE:
            self._pack(len(objects) - _OBJECTS)

    def append_row(self, row: bytes) -> None:
        """Add an observation of `packed_rows` to others."""
        added = self._parts[3]
        added.frombytes(row)  # at once, for other threads
        if len(added) * added.itemsize >= _ROWS_AT_ONCE * len(row):
            rows, packed, objects = self._read()
            self._parts, self._view = (rows, packed, list(objects), array("q")), None
            self._pack(len(objects) - 1)

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

    def _read(self) -> "tuple[array[int], int, Sequence[T]]":
        """Return the rows, how many these are, and all that follows as objects."""
        rows, packed, objects, added = self._parts
        if not added:
            return rows, packed, objects
        layout = _layout(objects[-1].__class__)
        count = len(added) // layout.width
        view = self._view
        if view is None or view[0] is not added or view[1] != count:
            view = added, count, objects + self._unpack(added, objects, 0, count)
            self._view = view
        return rows, packed, view[2]

    def find(self, name: str, is_wanted: Callable[[Any], Any], begin: int) -> int | None:
        """Return the index of the first observation from `begin` on with a wanted value, see `History.when`."""
        rows, packed, objects = self._read()
        if begin < packed:
            layout = _layout(objects[-1].__class__)
            values = np.frombuffer(rows, np.int64)[begin * layout.width + layout.names.index(name) :: layout.width]
            found = np.flatnonzero(is_wanted(np.where(values == _NONE, UNKNOWN, values)))
            if found.size:
                return begin + int(found[0])
        later = range(max(begin - packed, 0), len(objects))
        return next((packed + place for place in later if is_wanted(value_of(objects[place], name))), None)

    def bisect(self, at: int, bisect: Callable[..., int]) -> int:
        """Return what bisect_left or bisect_right returns for that moment (ms) among the observations' `at`."""
        rows, packed, oldest, _ = self._parts
        if packed and at < oldest[0].at:
            return bisect(rows[:: len(rows) // packed], at)
        _, packed, objects = self._read()
        return packed + bisect(objects, at, key=_AT)

    def __delitem__(self, first: slice) -> None:
        """Remove the first observations up to an index."""
        rows, packed, objects, added = self._parts
        count = len(range(len(self))[first])
        width = len(rows) // max(packed, 1)
        if count > packed and added:
            _, _, current = self._read()
            objects, added = list(current), array("q")
        self._parts = rows[count * width :], max(packed - count, 0), objects[max(count - packed, 0) :], added

    def __len__(self) -> int:
        _, packed, objects, added = self._parts
        return packed + len(objects) + (len(added) // _layout(objects[-1].__class__).width if added else 0)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        rows, packed, objects = self._read()
        if not isinstance(index, slice):
            if -len(objects) <= index < 0:
                return objects[index]
            place = range(packed + len(objects))[index]
            return objects[place - packed] if place >= packed else self._unpack(rows, objects, place, place + 1)[0]
        begin, end, step = index.start, index.stop, index.step
        if end is step is None and begin is not None and -len(objects) <= begin < 0:
            return list(objects[begin:])
        begin, end, step = index.indices(packed + len(objects))
        low, high = (begin, end) if step > 0 else (end + 1, begin + 1)
        unpacked = self._unpack(rows, objects, low, min(high, packed)) if low < packed else []
        return [*unpacked, *objects[max(low - packed, 0) : max(high - packed, 0)]][::step]

    @staticmethod
    def _unpack(rows: "array[int]", objects: Sequence[T], begin: int, end: int) -> list[T]:
        layout = _layout(objects[-1].__class__)
        width, make = layout.width, layout.make
        values = iter(rows[begin * width : end * width])
        of = objects[-1]
        return [make(of, *row) for row in zip(*[values] * width, strict=True)]

    def _pack(self, count: int) -> None:
        """Keep the first objects as integers, unless one does not fit."""
        if count <= 0:
            return
        rows, packed, objects, added = self._parts
        values_of = _layout(objects[-1].__class__).values_of
        try:
            own = array(
                "q", [_NONE if value is None else value for item in objects[:count] for value in values_of(item)]
            )
        except OverflowError:
            return
        self._parts = rows + own, packed + count, objects[count:], added


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


def thinned(changes: Iterable[T], now: int) -> Iterator[T]:
    """Yield the first change of each minute, of each two minutes from 16 minutes ago on, of each four from 32, ...

    What is selected now is a selection of what was selected before.
    """
    last: tuple[int, int] | None = None
    for change in changes:
        age = now - change.at
        if age <= change.memory_ms:
            step = _MINUTE_MS << max((age // (8 * _MINUTE_MS)).bit_length() - 1, 0)
            if last != (bucket := (step, change.at // step)):
                yield change
            last = bucket
