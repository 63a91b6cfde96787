"""What the journal covers: where the agent's clock was set back, and gaps in which nothing was observed."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agent.model.observations.base import Availability, Unavailable
from agent.storage.journal.clock_steps import ClockStep, find_steps
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import UNREADABLE
from spark_checks.journal.files import JOURNAL_POSITIONS, JournalWindow, read
from spark_checks.offsets.arrays import Ints

GAP_MS = 60_000
"""The shortest gap: on a loaded machine ticks may be seconds late."""


COMMIT_SOURCE = "kafka"
"""The source that reads committed offsets."""


class Clock:
    """Converts times of observations to times that never go back, and the reverse."""

    def __init__(self, steps: Sequence[ClockStep] = ()) -> None:
        self.steps = tuple(steps)

    @classmethod
    def of(cls, positions: Ints, times: Ints) -> "Clock":
        """Return the clock that wrote these ticks, given in order of position.

        A journal that was restored from an older copy repeats earlier times: that is no step.
        """
        steps = find_steps(positions, times)
        return cls([step for step in steps if step.before // JOURNAL_POSITIONS == step.after // JOURNAL_POSITIONS])

    def shifts(self, positions: Ints, times: Ints) -> Ints:
        """Return what to add to the times of the observations at these positions, ms."""
        shifts = np.zeros(positions.size, np.int64)
        for before, after, old, new in self.steps:
            # Between the two ticks an observation belongs to the tick whose time is nearer to its own.
            behind = (positions >= after) | ((positions > before) & (np.abs(times - new) < np.abs(times - old)))
            shifts += np.where(behind, old - new, 0)
        return shifts

    def original_time(self, position: int, time: int) -> int:
        """Return the time as written in the journal, ms: the reverse of adding the shift.

        Between the two ticks of a step it is the time by either clock.
        """
        for before, after, old, new in reversed(self.steps):
            at = time - (old - new)
            if position >= after or (position > before and abs(at - new) < abs(at - old)):
                time = at
        return time

    def tick_gaps(self, positions: Ints, times: Ints) -> list[tuple[int, int]]:
        """Return (last tick before, first tick after) of each gap without ticks, ms by the ticks' own times."""
        steady = times + self.shifts(positions, times)
        order = np.argsort(steady, kind="stable")
        steady, times = steady[order], times[order]
        return [(int(times[at]), int(times[at + 1])) for at in np.flatnonzero(np.diff(steady) > GAP_MS)]


class Gap(NamedTuple):
    """A time (ms) in which `subject` was not observed; nothing at all if it is empty."""

    begin: int
    end: int
    subject: dict[str, Any]
    reason: str

    @property
    def hides_only_causes(self) -> bool:
        """Whether committed offsets were read meanwhile: another source was unavailable."""
        return "source" in self.subject and self.subject["source"] != COMMIT_SOURCE

    def may_hide(self, group: str, begin: int, end: int) -> bool:
        """Whether it may hide a commit of the group in [begin, end]."""
        if self.hides_only_causes:
            return False
        about = self.subject.get("group", None if self.subject.get("topic") is not None else group)
        return about == group and self.begin < end and begin < self.end


def read_coverage(window: JournalWindow) -> tuple[Clock, list[Gap]]:
    """Return the agent's clock and the gaps in the window, oldest first."""
    positions, times, unread = _read_ticks(window)
    clock = Clock.of(positions, times)
    availability = [
        change
        for _, change in entries(
            window.journal, window.since, window.until, ["blind", "sighted"], window.damaged, skips_failures=False
        )
        if isinstance(change, Availability) and change.cluster == window.cluster
    ]
    last = int(times.max()) if times.size else window.until
    gaps = [Gap(begin, end, {}, "") for begin, end in clock.tick_gaps(positions, times) if (begin, end) not in unread]
    return clock, sorted([*gaps, *source_gaps(availability, last)], key=lambda gap: gap.begin)


def _read_ticks(window: JournalWindow) -> tuple[Ints, Ints, set[tuple[int, int]]]:
    """Return positions and times (ms) of the ticks in order of position; of damaged files the first and last only.

    Also returns the bounds of these files, between which there were ticks.
    """
    columns = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    unread = set()
    for piece in window.pieces("tick"):
        try:
            table = read(piece, ("position", "at"))
            columns.append((table["position"].to_numpy(), table["at"].to_numpy()))
        except UNREADABLE as error:
            window.damaged.take_page(piece, str(error))
            first = piece.journal * JOURNAL_POSITIONS
            columns.append((np.array([piece.begin, piece.end]) + first, np.array([piece.low, piece.high])))
            unread.add((piece.low, piece.high))
    positions, times = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(positions)
    return positions[order], times[order], unread


def source_gaps(availability: Iterable[Availability], until: int) -> list[Gap]:
    """Return the gaps of GAP_MS or more in which a source could not read a subject, oldest first.

    availability: in order. until: the end of gaps that have not ended, ms.
    """
    began: dict[Any, Unavailable] = {}
    gaps = []
    for change in availability:
        if isinstance(change, Unavailable):
            began.setdefault(change.subject, change)
        elif (first := began.pop(change.subject, None)) is not None:
            gaps.append(_gap(first, change.at))
    gaps += [_gap(first, until) for first in began.values()]
    return sorted((gap for gap in gaps if gap.end - gap.begin >= GAP_MS), key=lambda gap: gap.begin)


def _gap(first: Unavailable, end: int) -> Gap:
    subject = {name: getattr(first, name) for name in ("source", "group", "topic", "partition")}
    return Gap(first.at, end, {name: value for name, value in subject.items() if value is not None}, first.reason)
