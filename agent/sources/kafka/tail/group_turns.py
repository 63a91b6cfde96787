"""Which groups to describe in a poll. Makes no calls."""

from collections.abc import Callable, Iterable

_EVERY_MS = 10_000
"""How often a group that is followed in the log is described although nothing of it has changed there."""


class GroupTurns:
    """Groups that are polled are described by every poll; those followed in the log when it shows changes, and in turn.

    The log does not show everything: a rebalance, for example, shows only when it has ended.
    """

    def __init__(self, is_followed: Callable[[str], bool]) -> None:
        self._is_followed = is_followed
        self._described_at: dict[str, int] = {}

    def touch(self, groups: Iterable[str]) -> None:
        """Describe these groups in the next poll."""
        for group in groups:
            self._described_at.pop(group, None)

    def take_due(self, groups: Iterable[str], now: int) -> list[str]:
        """Return those of all groups to describe now (ms), and take them as described."""
        last = self._described_at
        due = [group for group in groups if not self._is_followed(group) or now - last.get(group, 0) >= _EVERY_MS]
        self._described_at = {group: last[group] for group in groups if group in last} | dict.fromkeys(due, now)
        return due
