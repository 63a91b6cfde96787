"""Which groups to describe in a poll, and of which to read the committed offsets. Makes no calls."""

from collections.abc import Callable, Iterable, Sequence

_EVERY_MS = 10_000
"""How often a group that is followed in the log is described although nothing of it has changed there."""


class GroupTurns:
    """Groups that are polled are described by every poll; those followed in the log when it shows changes, and in turn.

    The log does not show everything: a rebalance, for example, shows only when it has ended.
    """

    def __init__(self, is_followed: Callable[[str], bool]) -> None:
        self._is_followed = is_followed
        self._described_at: dict[str, int] = {}
        self._read_in: dict[str, int] = {}
        self._turn = 0

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

    def take_to_read(self, groups: Sequence[str], most: int) -> list[str]:
        """Return those of groups whose committed offsets to read now, `most` of them: who has waited longest."""
        last = self._read_in
        taken = sorted(groups, key=lambda group: last.get(group, 0))[:most]
        self._turn += 1
        self._read_in = {group: last[group] for group in groups if group in last} | dict.fromkeys(taken, self._turn)
        return taken
