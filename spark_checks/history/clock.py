"""The agent's own clock as its ticks tell of it: where it was set back, and the holes in which nobody looked."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HOLE_MS = 60_000
"""How long there must be no tick for a hole in the journal: a loaded machine may be late by seconds."""


class Step(NamedTuple):
    """The clock was set back between two ticks. before, after: positions of the ticks; old, new: their times, ms."""

    before: int
    after: int
    old: int
    new: int


class Clock:
    """Turns times of observations into times that never go back, and the reverse."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)

    @classmethod
    def of(cls, positions: NDArray[np.int64], times: NDArray[np.int64]) -> "Clock":
        """The clock that these ticks tell of, in order of position."""
        set_back = np.flatnonzero(np.diff(times) < 0)
        return cls([Step(*positions[one : one + 2].tolist(), *times[one : one + 2].tolist()) for one in set_back])

    def shifts(self, positions: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """What must be added to the times of the observations at these positions, ms."""
        made = np.zeros(positions.size, np.int64)
        for before, after, old, new in self.steps:
            # Between the two ticks an observation belongs to the tick whose time is nearer to its own.
            behind = (positions >= after) | ((positions > before) & (np.abs(times - new) < np.abs(times - old)))
            made += np.where(behind, old - new, 0)
        return made

    def told(self, position: int, time: int) -> int:
        """The time of the observation at this position as its source told it: the reverse of adding the shift.

        Of one between the two ticks of a step only one of the two clocks is known to have told it.
        """
        for before, after, old, new in reversed(self.steps):
            at = time - (old - new)
            if position >= after or (position > before and abs(at - new) < abs(at - old)):
                time = at
        return time

    def holes(self, positions: NDArray[np.int64], times: NDArray[np.int64]) -> list[tuple[int, int]]:
        """(last tick before, first tick after) of the stretches without ticks, as the ticks tell the times, ms."""
        steady = times + self.shifts(positions, times)
        return [(int(times[one]), int(times[one + 1])) for one in np.flatnonzero(np.diff(steady) > HOLE_MS)]
