"""Commits as columns: many of them pass from the source through journal and engine without an object for each."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

UNKNOWN = -1
"""Instead of an offset that was deleted, of an unknown leader epoch, or of a time that is None."""


class CommitKey(NamedTuple):
    """What a commit is about."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, eq=False)
class CommitBatch(Collection[Commit]):
    """Commits of a cluster, those of each key in order; one per row. Iterating makes an observation of each.

    keys: the distinct keys. numbers: of the key of each row in `keys`. at, seen_at, since: ms, see `Observation`;
    UNKNOWN for None. offsets, leader_epochs: UNKNOWN for None.
    """

    cluster: str
    keys: Sequence[CommitKey]
    numbers: Integers
    at: Integers
    seen_at: Integers
    since: Integers
    offsets: Integers
    leader_epochs: Integers

    @classmethod
    def of(cls, commits: Iterable[Observation]) -> "CommitBatch | None":
        """Return commits of one cluster as columns; None if a value does not fit, or there are none."""
        known = [commit for commit in commits if isinstance(commit, Commit)]
        try:
            return cls._of(known) if known else None
        except (TypeError, ValueError, OverflowError):
            return None

    @classmethod
    def _of(cls, commits: Sequence[Commit]) -> "CommitBatch":
        numbers: dict[CommitKey, int] = {}
        rows = [
            (
                numbers.setdefault(CommitKey(commit.group, commit.topic, commit.partition), len(numbers)),
                commit.at,
                UNKNOWN if commit.seen_at is None else commit.seen_at,
                UNKNOWN if commit.since is None else commit.since,
                UNKNOWN if commit.offset is None else commit.offset,
                UNKNOWN if commit.leader_epoch is None else commit.leader_epoch,
            )
            for commit in commits
        ]
        return cls(commits[0].cluster, list(numbers), *np.array(rows, np.int64).T)

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, observation: object) -> bool:
        return any(commit == observation for commit in self)

    @property
    def latest(self) -> int:
        """When the last of them was seen, ms."""
        return int(np.maximum(self.at, self.seen_at).max())

    def select(self, rows: Integers | Flags | slice) -> "CommitBatch":
        """Return these rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def one_per_group(self) -> "CommitBatch":
        """Return one commit of each group."""
        row_of = {self.keys[number].group: row for row, number in enumerate(self.numbers.tolist())}
        return self.select(np.array(list(row_of.values()), np.int64))

    def not_after_seen(self) -> "CommitBatch":
        """Return the commits dated no later than they were seen: the clock that dates them may be ahead of ours."""
        is_ahead = (self.seen_at != UNKNOWN) & (self.at > self.seen_at)
        if not is_ahead.any():
            return self
        at = np.where(is_ahead, self.seen_at, self.at)
        return replace(self, at=at, since=np.minimum(self.since, at))

    def not_after(self, now: int) -> "CommitBatch":
        """Return the commits dated and seen no later than now (ms)."""
        is_late = (self.at > now) | (self.seen_at > now)
        return replace(self, seen_at=np.where(is_late, now, self.seen_at)).not_after_seen() if is_late.any() else self

    def __iter__(self) -> Iterator[Commit]:
        columns = (getattr(self, name).tolist() for name in _COLUMNS)
        for number, at, *values in zip(*columns, strict=True):
            seen_at, since, offset, leader_epoch = (None if value == UNKNOWN else value for value in values)
            group, topic, partition = self.keys[number]
            yield Commit(
                at=at,
                seen_at=seen_at,
                since=since,
                cluster=self.cluster,
                group=group,
                topic=topic,
                partition=partition,
                offset=offset,
                leader_epoch=leader_epoch,
            )


_COLUMNS = ("numbers", "at", "seen_at", "since", "offsets", "leader_epochs")
