"""What rules about Kafka Streams ask of the facts: who held a partition and when, whose a changelog is. Rules judge.

A task is held by whoever holds the partitions of its number. Which of a group's topics feed a task cannot be read from
outside; where the store has a repartition topic of its own name, that one does.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from agent.evidence import CLOCK_SLACK_MS, rebalancing
from agent.facts import FLOOR, LATENESS_MS, History
from agent.observations import GroupState, LogLine, Member

_CHANGELOG_PARTITION = re.compile(r"(\S+-changelog)-([0-9]{1,9})")


class Holding(NamedTuple):
    """A member held a partition. begin: the first state that shows it.

    left: the first that shows it no more, or a rebalance, which may have taken it away and given it back; None while
    it lasts.
    """

    member: Member
    begin: GroupState
    left: GroupState | None


class Move(NamedTuple):
    """A partition went from one holding to the next; also back to the same thread, through a rebalance."""

    old: Holding
    new: Holding

    @property
    def changed(self) -> bool:
        """Whether the thread is another."""
        return self.old.member.id != self.new.member.id

    @property
    def left(self) -> GroupState:
        """The first state that shows the old holding no more."""
        return self.old.left or self.new.begin


def thread(member: Member) -> str:
    """The stream thread that the member is, by its consumer's client id (`<client.id>-StreamThread-<n>-consumer`)."""
    return (member.client_id or member.id).removesuffix("-consumer")


def applications(changelog: str, store: str) -> list[str]:
    """Whose the changelog topic `application-store-changelog` can be; several where the store's name is not known."""
    suffix = f"-{store}-changelog"
    if changelog.endswith(suffix):
        return [changelog.removesuffix(suffix)]
    parts = changelog.removesuffix("-changelog").split("-")
    return ["-".join(parts[:size]) for size in range(1, len(parts))]


def store_changelog(line: LogLine) -> tuple[str, int] | None:
    """The changelog partition of the store that the line names; up to 2.0 it stands in the store's place."""
    if line.topic is not None and line.partition is not None:
        return line.topic, line.partition
    match = _CHANGELOG_PARTITION.fullmatch(line.values.get("store", ""))
    return None if match is None else (match[1], int(match[2]))


def holdings(history: History[GroupState], partition: int, repartition: str, at: int) -> list[list[Holding]]:
    """By topic, who held the partition of that number around the moment, oldest first.

    repartition: the topic that alone counts where the group reads it. No further back than histories surely reach, no
    further ahead than a minute.
    """
    states = [*history.before(at, FLOOR), *history.between(at - 1, at + LATENESS_MS)]
    places = {place for one in states for member in one.members for place in member.partitions if place[1] == partition}
    own = {(repartition, partition)} & places
    return [list(_holdings(states, place)) for place in sorted(own or places)]


def moves(held: Sequence[Holding], at: int, within: int) -> Iterator[Move]:
    """The moves that can have happened in the time `within` before that moment, clocks considered; oldest first."""
    for old, new in pairwise(held):
        if new.begin.start - CLOCK_SLACK_MS <= at and new.begin.at >= at - within:
            yield Move(old, new)


def _holdings(states: Sequence[GroupState], place: tuple[str, int]) -> Iterator[Holding]:
    held: Holding | None = None
    before: GroupState | None = None
    for state in states:
        owner = None if rebalancing(state) else _owner(state, place)
        shaken = owner is None or (before is not None and state.members != before.members)
        if held is not None and held.left is None and shaken:
            held = held._replace(left=state)
        if owner is not None and (held is None or held.left is not None):
            if held is not None:
                yield held
            held = Holding(owner, state, None)
        before = state
    if held is not None:
        yield held


def _owner(state: GroupState, place: tuple[str, int]) -> Member | None:
    return next((one for one in state.members if place in one.partitions), None)
