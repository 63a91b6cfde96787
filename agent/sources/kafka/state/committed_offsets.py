"""The committed offsets of all groups, as last read. Makes no calls."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from sys import intern
from typing import NamedTuple
from weakref import WeakValueDictionary

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from agent.sources.kafka.admin.protocol import TopicPartition

_GROUPS = 100
"""How many groups are read at once at least."""


class Position(NamedTuple):
    """A group's committed offset of a partition, and since when it has been unchanged, ms."""

    offset: int
    since: int


def positions(
    commits: Iterable[Commit], before: Mapping[TopicPartition, Position], at: int
) -> dict[TopicPartition, Position]:
    """Return a group's positions according to commits read at `at`, ms."""
    current = {}
    for commit in commits:
        if commit.offset is not None:
            place = (intern(commit.topic), commit.partition)
            last = before.get(place)
            current[place] = last if last and last.offset == commit.offset else Position(commit.offset, at)
    return current


class _Places:
    """Partitions, for all groups that have committed in just these."""

    __slots__ = ("__weakref__", "names")

    def __init__(self, names: tuple[TopicPartition, ...]) -> None:
        self.names = names


class _Packed(NamedTuple):
    """The positions of a group, 16 bytes each."""

    places: _Places
    offsets: "array[int]"
    since: "array[int]"


class CommittedOffsets:
    """The positions of each group, and of which groups they are settled: it is enough to learn of changes."""

    def __init__(self, known: Iterable[Observation], is_selected: Callable[[str], bool]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._packed: dict[str, _Packed] = {}
        self._places: WeakValueDictionary[tuple[TopicPartition, ...], _Places] = WeakValueDictionary()
        self._settled: set[str] = set()
        self._partitions: set[TopicPartition] | None = None
        found: defaultdict[str, dict[TopicPartition, Position]] = defaultdict(dict)
        for fact in known:
            if isinstance(fact, Commit) and fact.offset is not None and is_selected(fact.group):
                found[fact.group][intern(fact.topic), fact.partition] = Position(fact.offset, fact.at)
        for group, committed in found.items():
            self._put(group, committed)

    def of(self, group: str) -> dict[TopicPartition, Position]:
        """Return the positions of a group."""
        packed = self._packed.get(group)
        if packed is None:
            return {}
        return dict(zip(packed.places.names, map(Position, packed.offsets, packed.since), strict=True))

    def has(self, group: str) -> bool:
        """Return whether a group has positions."""
        return group in self._packed

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions in which any group has committed."""
        if self._partitions is None:
            self._partitions = set().union(*(places.names for places in self._places.values()))
        return self._partitions

    def groups_with(self, count: int) -> int:
        """Return how many groups have about so many positions, if they are like those that are known."""
        known = sum(len(packed.offsets) for packed in self._packed.values())
        return max(_GROUPS, count * len(self._packed) // max(known, 1))

    def is_settled(self, group: str) -> bool:
        """Return whether all commits of the group could be read, and none was missing."""
        return group in self._settled

    def unsettle(self, group: str) -> None:
        """Take note that a poll has to return all commits of the group."""
        self._settled.discard(group)

    def replace(self, group: str, committed: Mapping[TopicPartition, Position], *, settled: bool) -> None:
        """Replace the positions of a group."""
        self._put(group, committed)
        (self._settled.add if settled else self._settled.discard)(group)

    def apply(self, commits: Iterable[Commit]) -> None:
        """Update with single commits, in order."""
        changed: dict[str, dict[TopicPartition, Position]] = {}
        for commit in commits:
            committed = changed.get(commit.group)
            if committed is None:
                committed = changed[commit.group] = self.of(commit.group)
            if commit.offset is None:
                committed.pop((commit.topic, commit.partition), None)
            else:
                committed |= positions([commit], committed, commit.at)
        for group, committed in changed.items():
            self._put(group, committed)

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._put(group, {})
        self._settled.discard(group)

    def _put(self, group: str, committed: Mapping[TopicPartition, Position]) -> None:
        before, names = self._packed.pop(group, None), tuple(committed)
        if names != (() if before is None else before.places.names):
            self._partitions = None
        if names:
            places = self._places.get(names)
            if places is None:
                places = self._places[names] = _Places(names)
            offsets, since = zip(*committed.values(), strict=True)
            self._packed[group] = _Packed(places, array("q", offsets), array("q", since))
