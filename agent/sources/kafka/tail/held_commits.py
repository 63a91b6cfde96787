"""Commits of keys that had no offset, which are held until a poll has shown whether the topic is still the same."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from agent.model.batches import Flags, Integers


class ObservedCommits(NamedTuple):
    """Commits to observe, by the numbers of their keys, in order. at, seen_at: ms; UNKNOWN: seen at that moment."""

    numbers: Integers
    at: Integers
    seen_at: Integers
    offsets: Integers
    leader_epochs: Integers

    def select(self, which: Flags) -> "ObservedCommits":
        """Return these commits."""
        return ObservedCommits(*(column[which] for column in self))

    def followed_by(self, others: "ObservedCommits") -> "ObservedCommits":
        """Return these commits and then the others."""
        return ObservedCommits(*map(np.concatenate, zip(self, others, strict=True)))


NOTHING = ObservedCommits(*(np.zeros(0, np.int64) for _ in ObservedCommits._fields))


class HeldCommits:
    """Keys whose commits are held, by their numbers, and these commits."""

    def __init__(self) -> None:
        self._commits = NOTHING
        self._since: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._since

    @property
    def since(self) -> int | None:
        """When the first key was held, ms; None if none is."""
        return min(self._since.values(), default=None)

    def held_before(self, moment: int) -> list[int]:
        """Return the keys that have been held since before that moment (ms)."""
        return [number for number, since in self._since.items() if since < moment]

    def hold(self, numbers: Iterable[int], now: int) -> None:
        """Hold the commits of these keys from now on (ms)."""
        for number in numbers:
            self._since.setdefault(number, now)

    def add(self, commits: ObservedCommits) -> ObservedCommits:
        """Keep those of keys that are held, and return the others."""
        if not self._since:
            return commits
        is_held = np.isin(commits.numbers, list(self._since))
        self._commits = self._commits.followed_by(commits.select(is_held))
        return commits.select(~is_held)

    def release(self, numbers: Iterable[int]) -> ObservedCommits:
        """Hold these keys no longer; return, in order, their commits that were held."""
        held = [number for number in numbers if self._since.pop(number, None) is not None]
        if not held:
            return NOTHING
        is_held = np.isin(self._commits.numbers, list(self._since))
        released, self._commits = self._commits.select(~is_held), self._commits.select(is_held)
        return released

    def renumber(self, number_of: Integers) -> None:
        """Take note of the new number of each key."""
        self._commits = self._commits._replace(numbers=number_of[self._commits.numbers])
        self._since = {int(number_of[number]): since for number, since in self._since.items()}
