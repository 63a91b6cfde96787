"""Simulated time: actions run in the order of their moments."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

Action: TypeAlias = Callable[[], object]


class Clock:
    """A queue of actions by time. now: ms since the epoch."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._queue: list[tuple[int, int, Action]] = []
        self._numbers = count()

    def at(self, moment: float, action: Action) -> None:
        """Run the action at that moment, or next if the moment has passed."""
        heapq.heappush(self._queue, (max(int(moment), self.now), next(self._numbers), action))

    def after(self, delay: float, action: Action) -> None:
        """Run the action in `delay` ms."""
        self.at(self.now + delay, action)

    def every(self, interval: float, action: Action, *, first: float = 0) -> None:
        """Run the action every `interval` ms, first in `first` ms."""

        def turn() -> None:
            action()
            self.after(interval, turn)

        self.after(first, turn)

    def run(self, until: int) -> None:
        """Run all actions until that moment."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until
