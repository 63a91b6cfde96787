"""Steps of the wall clock, seen by comparing it with the monotonic clock."""

from collections.abc import Callable

from agent.clock import monotonic_ms, now_ms
from agent.model.text import span

REPORTED_MS = 1_000
"""Steps of this size or more are reported; a clock that is slewed moves by less between two ticks."""

_TOLERATED_AHEAD_MS = 60_000


class ClockWatch:
    """Compares the wall clock with the monotonic clock, which cannot be set. Used by one thread."""

    def __init__(self, wall: Callable[[], int] = now_ms, monotonic: Callable[[], int] = monotonic_ms) -> None:
        """wall, monotonic: clocks, ms."""
        self._wall, self._monotonic = wall, monotonic
        self._offset = wall() - monotonic()

    def step(self) -> int:
        """Return by how much the wall clock was set since the last call, ms; 0 if it was not."""
        offset = self._wall() - self._monotonic()
        step, self._offset = offset - self._offset, offset
        return step if abs(step) >= REPORTED_MS else 0


def needs_restart(step: int) -> bool:
    """Return whether the agent must start again from what it observed last: times would go backwards, or leap."""
    return step < 0 or step > _TOLERATED_AHEAD_MS


def describe_step(step: int) -> str:
    """Return what a step (ms) means, for an operator."""
    moved = f"set back by {span(-step)}" if step < 0 else f"set forward by {span(step)}, or the host was suspended"
    restarted = " Backflow continues from what it observed last." if needs_restart(step) else ""
    return f"The clock of this host was {moved}: times around that moment are wrong.{restarted} Check NTP on this host."
