"""Commits as columns: many of them pass from the source through journal and engine without an object for each."""

from collections.abc import Iterable, Iterator, Sequence
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


class CommitBatch(NamedTuple):
    """Commits of a cluster, those of each key in order; one per row.

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

    @property
    def rows(self) -> int:
        """How many commits there are."""
        return len(self.numbers)

    @property
    def latest(self) -> int:
        """When the last of them was seen, ms."""
        return int(np.maximum(self.at, self.seen_at).max())

    def select(self, rows: Integers | Flags | slice) -> "CommitBatch":
        """Return these rows."""
        return self._replace(**{name: getattr(self, name)[rows] for name in _COLUMNS})

    def not_after_seen(self) -> "CommitBatch":
        """Return the commits dated no later than they were seen: the clock that dates them may be ahead of ours."""
        is_ahead = (self.seen_at != UNKNOWN) & (self.at > self.seen_at)
        if not is_ahead.any():
            return self
        at = np.where(is_ahead, self.seen_at, self.at)
        return self._replace(at=at, since=np.minimum(self.since, at))

    def commits(self) -> Iterator[Commit]:
        """Yield the rows as observations."""
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
