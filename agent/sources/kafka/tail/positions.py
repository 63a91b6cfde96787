"""Which record of each partition of `__consumer_offsets` is read next, and which were left out. Makes no calls."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from agent.sources.kafka.tail.resumption import End


class LeftOut(NamedTuple):
    """Records that are left out: from which offset on, and why, as a clause."""

    offset: int
    reason: str


class Positions:
    """The offset to be read next of each partition where it is known, kept when the client is replaced."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._left_out: dict[int, LeftOut] = {}
        self._count = 0

    def resume(self, ends: Mapping[int, End], count: int) -> None:
        """Begin where an earlier run stopped. count: how many partitions it read."""
        self._count = count
        self.keep_ends(ends)

    def get(self, number: int) -> int | None:
        """Return a partition's offset to be read next; None if none of its groups has been followed yet."""
        return self._next.get(number)

    def begin(self, numbers: range) -> dict[int, int]:
        """Return where to begin to read these partitions, the last ones of the topic."""
        # All of a partition that was added is new.
        added_from = self._count or numbers.stop
        self._count = numbers.stop
        return {
            number: self._next.get(number, OFFSET_END if number < added_from else OFFSET_BEGINNING)
            for number in numbers
        }

    def keep_ends(self, ends: Mapping[int, End]) -> None:
        """Take note of up to where partitions have been read."""
        for number, end in ends.items():
            self.keep(number, end.next_offset)

    def keep(self, number: int, offset: int) -> None:
        """Take note of a partition's offset to be read next if it is further than what is known; negative: unknown."""
        if offset > self._next.get(number, -1):
            self._next[number] = offset

    def move(self, number: int, offset: int) -> None:
        """Go on to read a partition at this offset, wherever it was read before; negative: unknown."""
        if offset >= 0:
            self._next[number] = offset

    def forget(self, numbers: Collection[int], reason: str | None = None) -> None:
        """Take note that these partitions are read elsewhere from now on.

        reason: why, to report what is left out; None if that is done, or nothing is missed.
        """
        for number in numbers:
            offset = self._next.pop(number, None)
            if reason is not None and offset is not None:
                self.leave_out(number, offset, reason)

    def leave_out(self, number: int, offset: int, reason: str) -> None:
        """Take note that a partition is not read from this offset on, if less is known of it."""
        self._left_out.setdefault(number, LeftOut(offset, reason))

    def take_left_out(self, numbers: Iterable[int]) -> dict[int, LeftOut]:
        """Return what was left out of these partitions since the last call."""
        return {number: self._left_out.pop(number) for number in numbers if number in self._left_out}
