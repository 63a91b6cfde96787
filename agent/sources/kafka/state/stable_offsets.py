"""Last stable offsets: which are worth reading, and which of those read are worth emitting. Makes no calls."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from agent.model.observations.base import Observation
from agent.model.observations.kafka import LastStableOffset
from agent.sources.kafka.admin.protocol import DescribeOpenTransaction, TopicPartition
from agent.sources.kafka.state.committed_offsets import Position

_STANDSTILL_MS = 10_000
"""How long a group must not have committed anything new to be one that may wait behind an open transaction."""

_SAMPLE_MS = 60_000
"""How often the last stable offsets of all watched partitions are read."""


FindStanding: TypeAlias = Callable[[int, Mapping[TopicPartition, int]], set[TopicPartition]]
"""Returns the partitions in which a group has stood still below these log ends since that moment (ms)."""


class StableOffsets:
    """The last stable offsets that matter: those below the log end where they or a group stand still.

    On most partitions they are the log end, or follow it with each transaction. So all are read seldom; at each poll
    only where they stood still when last read, or where a group has come to stand still since the last reading of all.
    """

    def __init__(self, known: Iterable[Observation]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self._ends: dict[TopicPartition, int] = {}
        self._waiting: dict[str, set[TopicPartition]] = {}
        self._applied_at: dict[str, int] = {}
        self._waiting_groups: Counter[TopicPartition] = Counter()
        self._waiting_followed: set[TopicPartition] = set()
        self._followed: Collection[str] = frozenset()
        self._followed_at = 0
        self._below: dict[TopicPartition, LastStableOffset] = {}
        self._standing: set[TopicPartition] = set()
        self._moving: set[TopicPartition] = set()
        self._emitted = {(fact.topic, fact.partition) for fact in known if isinstance(fact, LastStableOffset)}
        self._described_at: dict[TopicPartition, int] = {}
        self._sampled_at = 0

    def apply_commits(self, group: str, positions: Mapping[TopicPartition, Position], at: int) -> None:
        """Update on which partitions the group stands still below the log end."""
        ends = self._ends
        self._applied_at[group] = at
        self._replace(
            group,
            {
                partition
                for partition, position in positions.items()
                if at - position.since >= _STANDSTILL_MS and position.offset < ends.get(partition, 0)
            },
        )

    def is_due(self, group: str, at: int) -> bool:
        """Return whether to look again at the positions of a group that have not changed."""
        return at - self._applied_at.get(group, 0) >= _STANDSTILL_MS

    def apply_followed(self, groups: Collection[str], find_standing: FindStanding, at: int) -> None:
        """Update on which partitions groups that are followed in the log stand still, every _STANDSTILL_MS."""
        if groups != self._followed:
            for group in groups:
                self.forget_group(group)
            self._followed = groups
        if at - self._followed_at >= _STANDSTILL_MS:
            self._followed_at = at
            self._waiting_followed = find_standing(at - _STANDSTILL_MS, self._ends) if groups else set()

    def forget_group(self, group: str) -> None:
        """Forget a group: it no longer exists, or is followed in the log."""
        self._replace(group, set())
        self._waiting.pop(group, None)
        self._applied_at.pop(group, None)

    def _replace(self, group: str, waiting: set[TopicPartition]) -> None:
        """Replace the partitions on which a group stands still."""
        before = self._waiting.get(group, set())
        self._waiting[group] = waiting
        for partition in before - waiting:
            self._waiting_groups[partition] -= 1
            if not self._waiting_groups[partition]:
                del self._waiting_groups[partition]
        self._waiting_groups.update(waiting - before)

    @property
    def held_back(self) -> set[TopicPartition]:
        """The partitions last observed as held back: they are read until they are not, also without commits."""
        return self._emitted

    def apply_end(self, partition: TopicPartition, log_end: int) -> None:
        """Update the log end of a partition."""
        self._ends[partition] = log_end

    def forget_partition(self, partition: TopicPartition) -> None:
        """Forget a partition that no longer exists."""
        for by_partition in (self._ends, self._below):
            by_partition.pop(partition, None)
        for partitions in (self._emitted, self._standing, self._moving):
            partitions.discard(partition)

    def select(
        self, by_leader: Mapping[int, Sequence[TopicPartition]], now: int
    ) -> Mapping[int, Sequence[TopicPartition]]:
        """Return the partitions whose last stable offsets to read in this poll. by_leader: all that are watched."""
        if now - self._sampled_at >= _SAMPLE_MS:
            self._sampled_at = now
            self._moving.clear()
            return dict(by_leader)
        due = (self._standing | self._waiting_groups.keys() | self._waiting_followed) - self._moving
        if not due:
            return {}
        selected = {leader: [place for place in partitions if place in due] for leader, partitions in by_leader.items()}
        return {leader: partitions for leader, partitions in selected.items() if partitions}

    def due_transactions(self, leaders: Mapping[str, Mapping[int, int]], now: int) -> list[DescribeOpenTransaction]:
        """Return what to ask the leaders about what has stood still for a minute, and take it as asked."""
        due = [
            self._below[place]
            for place in self._standing
            if now - self._below[place].at >= _SAMPLE_MS and now - self._described_at.get(place, 0) >= _SAMPLE_MS
        ]
        self._described_at = {place: at for place, at in self._described_at.items() if place in self._standing}
        self._described_at.update({(fact.topic, fact.partition): now for fact in due})
        return [
            DescribeOpenTransaction(fact.topic, fact.partition, leader, fact.offset)
            for fact in due
            if (leader := leaders.get(fact.topic, {}).get(fact.partition, -1)) >= 0
        ]

    def apply(self, read: Iterable[LastStableOffset]) -> list[LastStableOffset]:
        """Return those to emit: below the log end where something stands still, and at the log end again later."""
        emitted = []
        for fact in read:
            place = (fact.topic, fact.partition)
            if place not in self._ends:
                continue
            last = self._below.pop(place, None)
            is_below = fact.offset < self._ends[place]
            stands_still = is_below and last is not None and last.offset == fact.offset
            if is_below:
                self._below[place] = last if stands_still and last is not None else fact
            if is_below and (stands_still or last is None):
                self._moving.discard(place)
            else:
                self._moving.add(place)
            (self._standing.add if stands_still else self._standing.discard)(place)
            has_waiting = place in self._waiting_groups or place in self._waiting_followed
            if place in self._emitted or stands_still or (is_below and has_waiting):
                emitted.append(fact if is_below else msgspec.structs.replace(fact, held_back=False))
                (self._emitted.add if is_below else self._emitted.discard)(place)
        return emitted

    def apply_ends(self, cluster: str, partitions: Iterable[TopicPartition], at: int) -> list[LastStableOffset]:
        """Return those to emit if the last stable offsets of the partitions are their log ends, as read at `at`, ms."""
        ends = self._ends
        return self.apply(
            LastStableOffset(at=at, cluster=cluster, topic=place[0], partition=place[1], offset=ends[place])
            for place in sorted(ends.keys() & partitions)
        )
