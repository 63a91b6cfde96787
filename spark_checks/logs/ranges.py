"""Where two replicas of a partition differ: ranges of offsets, from what only one of them holds. Pure; no I/O."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

Run: TypeAlias = tuple[int, int]
"""Offsets from the first to the last, both included."""


class Piece(NamedTuple):
    """A batch that one of two replicas holds and the other does not hold as it stands.

    first, last: offsets. timestamp: its largest, ms; -1 where unknown. file, position: where it stands.
    other_epoch: the other replica holds the same bytes under another leader epoch.
    """

    broker: int
    first: int
    last: int
    records: int
    timestamp: int
    file: str
    position: int
    other_epoch: bool = False


class Side(NamedTuple):
    """What one replica holds that the other does not. runs: where, in order and apart; start: the first such batch.

    records: how many; all of them are lost when the other replica leads and this one has to follow it.
    """

    runs: tuple[Run, ...]
    records: int
    start: Piece


class Divergence(NamedTuple):
    """How two replicas differ. ranges: all offsets that differ, in order and apart, never empty.

    sides: by broker; none for a replica that merely lacks what the other holds. only_epochs: the bytes are the same.
    """

    ranges: tuple[Run, ...]
    sides: Mapping[int, Side]
    only_epochs: bool

    @property
    def first(self) -> int:
        """The first diverging offset."""
        return self.ranges[0][0]

    @property
    def timestamp(self) -> int:
        """The newest of each side's first differing batch, ms; -1 where none has one."""
        return max(side.start.timestamp for side in self.sides.values())

    def lost(self, broker: int) -> int:
        """How many records this replica loses when the other one leads."""
        return self.sides[broker].records if broker in self.sides else 0


def resolve(pieces: Iterable[Piece], lower: int, upper: int) -> Divergence | None:
    """What differs at the offsets from `lower` to below `upper`; pieces in the order of their first offsets.

    A piece that reaches over a bound counts with the part within; where its offsets have gaps (format 2 after
    compaction), it counts as many records as can be there. None where nothing differs.
    """
    ranges: list[Run] = []
    runs: dict[int, list[Run]] = {}
    records: dict[int, int] = {}
    starts: dict[int, Piece] = {}
    only_epochs = True
    for piece in pieces:
        first, last = max(piece.first, lower), min(piece.last, upper - 1)
        if first > last:
            continue
        _join(ranges, first, last)
        _join(runs.setdefault(piece.broker, []), first, last)
        records[piece.broker] = records.get(piece.broker, 0) + min(piece.records, last - first + 1)
        starts.setdefault(piece.broker, piece)
        only_epochs = only_epochs and piece.other_epoch
    if not ranges:
        return None
    sides = {broker: Side(tuple(runs[broker]), records[broker], starts[broker]) for broker in sorted(starts)}
    return Divergence(tuple(ranges), sides, only_epochs)


def _join(runs: list[Run], first: int, last: int) -> None:
    """Add offsets to runs that begin no later; those that touch become one."""
    if runs and first <= runs[-1][1] + 1:
        runs[-1] = (runs[-1][0], max(runs[-1][1], last))
    else:
        runs.append((first, last))
