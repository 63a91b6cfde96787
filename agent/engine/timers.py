"""When to do what: one moment for each item, the earliest that it was set to. Pure."""

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from agent.engine.history import LONG_AFTER

_SUPERSEDED = 100
"""How many more entries than current ones there may be, each superseded by an earlier one or cancelled."""

T = TypeVar("T", bound=Hashable)


class _Timer(NamedTuple, Generic[T]):
    """When an item is due, ms. number: orders those of the same moment as they were set."""

    at: int
    number: int
    item: T


class Timers(Generic[T]):
    """Items by when they are due."""

    def __init__(self) -> None:
        self._timers: list[_Timer[T]] = []
        self._current: dict[T, _Timer[T]] = {}
        self._number = count()

    def __contains__(self, item: T) -> bool:
        return item in self._current

    def __len__(self) -> int:
        return len(self._current)

    @property
    def first(self) -> int:
        """When the first item is due, ms; LONG_AFTER if there is none."""
        timers = self._timers
        while timers and self._current.get(timers[0].item) is not timers[0]:
            heapq.heappop(timers)
        return timers[0].at if timers else LONG_AFTER

    def set(self, item: T, at: int) -> None:
        """Let an item be due at that moment (ms), unless it is before."""
        current = self._current.get(item)
        if current is not None and current.at <= at:
            return
        timer = self._current[item] = _Timer(at, next(self._number), item)
        heapq.heappush(self._timers, timer)
        if len(self._timers) > 2 * len(self._current) + _SUPERSEDED:
            self._timers = sorted(self._current.values())

    def cancel(self, item: T) -> None:
        """Forget an item, if it is known."""
        self._current.pop(item, None)

    def take_due(self, now: int) -> Iterator[T]:
        """Remove and yield what is due by that moment (ms), in order."""
        while self._current and self.first <= now:
            item = heapq.heappop(self._timers).item
            del self._current[item]
            yield item
