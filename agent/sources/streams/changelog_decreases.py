"""Stretches of falls in one changelog partition, as facts. Pure; what fell is found by changelogs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.model.declared_stores import DeclaredStore
from agent.model.observations import ChangelogDecreases, Fall
from agent.sources.streams.changelog_values import key_text

STRETCH_MS = 60_000
"""A stretch is over when no value fell for so long."""

WORST = 5

_DISTINCT = 100_000


class Fallen(NamedTuple):
    """A record whose value is lower than its key's before."""

    identity: int
    """The key's hash."""
    key: bytes
    before: int
    after: int
    offset: int

    @property
    def depth(self) -> int:
        return self.before - self.after


@dataclass
class Stretch:
    """Falls of a partition, none of them later than a minute after the one before.

    since: when the partition was last read without a fall, before the last one. sum_before, sum_after, sum_at: as in
    ChangelogDecreases. news: how often there was something to tell; told: how much of that has been told.
    """

    began_at: int
    first_offset: int
    sum_before: int | None = None
    sum_after: int | None = None
    sum_at: int | None = None
    at: int = 0
    since: int | None = None
    keys: int = 0
    total: int = 0
    news: int = 0
    told: int = 0
    worst: list[Fallen] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)
    _summed: bool = False

    def take(self, at: int, since: int | None, fallen: Iterable[Fallen]) -> None:
        """Falls read at `at`, in the order of the log.

        Of more than 100,000 keys it is no longer known which they are: one that falls again then counts again.
        """
        self.at, self.since, self._summed = at, since, False
        for one in fallen:
            self.news += 1
            self.total += one.depth
            if one.identity not in self._known:
                self.keys += 1
                if len(self._known) < _DISTINCT:
                    self._known.add(one.identity)
            if len(self.worst) < WORST or one.depth > self.worst[-1].depth:
                self._rank(one)

    def sum_up(self, sum_: int, drained: int) -> None:
        """The partition's sum, with all that had come until `drained` in it: news where values have fallen since the
        last, within the stretch.
        """
        if self.sum_before is not None and not self._summed and drained - self.at <= STRETCH_MS:
            self.sum_after, self.sum_at, self._summed = sum_, drained, True
            self.news += 1

    def _rank(self, fallen: Fallen) -> None:
        """Keep the deepest, each key once."""
        deepest: dict[int, Fallen] = {}
        for one in sorted([*self.worst, fallen], key=lambda one: -one.depth):
            deepest.setdefault(one.identity, one)
        self.worst = list(deepest.values())[:WORST]

    def fact(self, cluster: str, store: DeclaredStore, partition: int) -> ChangelogDecreases:
        """The stretch so far."""
        return ChangelogDecreases(
            at=self.at,
            since=self.since,
            cluster=cluster,
            application=store.application,
            store=store.store,
            topic=store.changelog,
            partition=partition,
            began_at=self.began_at,
            keys=self.keys,
            total=self.total,
            first_offset=self.first_offset,
            sum_before=self.sum_before,
            sum_after=self.sum_after,
            sum_at=self.sum_at,
            worst=tuple(Fall(key_text(one.key), one.before, one.after, one.offset) for one in self.worst),
        )
