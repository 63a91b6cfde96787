"""Who owned which partitions when, from what the journal tells of a Streams application's consumer group. Pure.

A task is its input's partition of its number: a changelog partition belongs to whoever owns that one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.model.observations import GroupState
from agent.rules.queries.streams import thread


class Move(NamedTuple):
    """A partition of an input went from one owner to another, between since and at (ms). Owners: their threads."""

    topic: str
    partition: int
    old: str
    new: str
    since: int
    at: int


class Rebalance(NamedTuple):
    """The group came to a new assignment, between since and at (ms)."""

    since: int
    at: int


class Ownership(NamedTuple):
    """All moves and rebalances of a group, oldest first."""

    moves: Sequence[Move] = ()
    rebalances: Sequence[Rebalance] = ()

    def of(self, partition: int) -> list[Move]:
        """The moves of the inputs' partitions of this number."""
        return [one for one in self.moves if one.partition == partition]

    def before(self, partition: int, at: int) -> tuple[list[Move], Rebalance | None]:
        """What had begun last before a time (ms): the moves of one moment, and the rebalance. At `since` the old owner
        was still seen.
        """
        moves = [one for one in self.of(partition) if one.since < at]
        last = max((one.at for one in moves), default=0)
        rebalances = [one for one in self.rebalances if one.since < at]
        return [one for one in moves if one.at == last], rebalances[-1] if rebalances else None


def ownership(states: Iterable[GroupState]) -> Ownership:
    """The moves and rebalances that a group's states show, given in order of time.

    While a rebalance goes on nobody owns anything (Streams before 2.4), or for a moment nobody what is to move (since).
    """
    moves: list[Move] = []
    rebalances: list[Rebalance] = []
    owners: dict[tuple[str, int], str] = {}
    left: dict[tuple[str, int], int] = {}
    settled: dict[tuple[str, int], str] | None = None
    unsettled: int | None = None
    for state in states:
        since = state.at if state.since is None else state.since
        held = {place: thread(one) for one in state.members for place in one.partitions}
        for place in owners.keys() - held.keys():
            left.setdefault(place, since)
        if state.state.casefold() != "stable" or not held:
            unsettled = since if unsettled is None else unsettled
            continue
        for place, owner in held.items():
            old = owners.get(place, owner)
            if old != owner:
                moves.append(Move(*place, old, owner, left.get(place, since), state.at))
            left.pop(place, None)
        owners.update(held)
        if settled is not None and (held != settled or unsettled is not None):
            rebalances.append(Rebalance(since if unsettled is None else unsettled, state.at))
        settled, unsettled = held, None
    return Ownership(moves, rebalances)


def by_group(states: Iterable[GroupState]) -> dict[str, Ownership]:
    """The ownership of each group."""
    told: dict[str, list[GroupState]] = defaultdict(list)
    for state in states:
        told[state.group].append(state)
    return {group: ownership(sorted(ones, key=lambda one: one.at)) for group, ones in told.items()}
