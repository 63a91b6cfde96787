"""The committed offsets of all groups, as last read. Makes no calls."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.stable_offsets import Position, positions


class CommittedOffsets:
    """The positions of each group, and of which groups they are settled: it is enough to learn of changes."""

    def __init__(self, known: Iterable[Observation], is_selected: Callable[[str], bool]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._positions: dict[str, dict[TopicPartition, Position]] = defaultdict(dict)
        self._settled: set[str] = set()
        self._partitions: set[TopicPartition] | None = None
        for fact in known:
            if isinstance(fact, Commit) and fact.offset is not None and is_selected(fact.group):
                self._positions[fact.group][fact.topic, fact.partition] = Position(fact.offset, fact.at)

    def of(self, group: str) -> Mapping[TopicPartition, Position]:
        """Return the positions of a group."""
        return self._positions.get(group, {})

    @property
    def by_group(self) -> Mapping[str, Mapping[TopicPartition, Position]]:
        """The positions of all groups."""
        return self._positions

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions in which any group has committed."""
        if self._partitions is None:
            self._partitions = set().union(*self._positions.values())
        return self._partitions

    def is_settled(self, group: str) -> bool:
        """Return whether all commits of the group could be read, and none was missing."""
        return group in self._settled

    def unsettle(self, group: str) -> None:
        """Take note that a poll has to return all commits of the group."""
        self._settled.discard(group)

    def replace(self, group: str, committed: dict[TopicPartition, Position], *, settled: bool) -> None:
        """Replace the positions of a group."""
        if committed.keys() != self._positions[group].keys():
            self._partitions = None
        self._positions[group] = committed
        (self._settled.add if settled else self._settled.discard)(group)

    def apply(self, commit: Commit) -> None:
        """Update with a single commit."""
        committed, place = self._positions[commit.group], (commit.topic, commit.partition)
        if (commit.offset is None) is (place in committed):
            self._partitions = None
        if commit.offset is None:
            committed.pop(place, None)
        else:
            committed |= positions([commit], committed, commit.at)

    def forget(self, group: str) -> None:
        """Forget a group that no longer exists."""
        if self._positions.pop(group, None):
            self._partitions = None
        self._settled.discard(group)
