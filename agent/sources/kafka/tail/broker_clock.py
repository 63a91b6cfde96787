"""How far the clocks that date commits are from ours. Makes no calls."""

_SKEW_MS = 2_000
_SKEW_WINDOW_MS = 60_000
"""Brokers' clocks are behind if no commit of this time was read sooner than _SKEW_MS after its timestamp."""


class BrokerClock:
    """How far the clocks that date commits are behind ours, ms: as much as the commit that was read soonest shows.

    ahead: how much later than read a commit was dated at most; None if none has been read.
    """

    def __init__(self) -> None:
        self.behind = 0
        self.ahead: int | None = None
        self._least: int | None = None
        self._since = 0

    def sample(self, now: int, newest_at: int, *, is_current: bool) -> None:
        """Take note of the latest commit timestamp since the last call, 0 if there is none; all ms."""
        if not is_current or not newest_at:
            return
        behind = now - newest_at
        self._least = behind if self._least is None else min(self._least, behind)
        self.ahead = max(self.ahead or 0, -behind)
        if now - self._since >= _SKEW_WINDOW_MS or now < self._since:
            self._since = now
            self.behind = self._least if self._least >= _SKEW_MS else 0
            self.ahead = max(0, -self._least)
            self._least = None
