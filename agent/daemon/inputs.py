"""What waits for the pipeline. A source that brings more than the pipeline takes has to wait."""

import threading
import time
from collections import deque
from typing import Generic, TypeVar

import structlog

MAX_WAITING = 100_000
"""From how many waiting observations on sources wait: a second's work, and some tens of megabytes."""

_PATIENCE_S = 5.0
"""How long sources wait before that is worth a line in the log."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Inputs(Generic[T]):
    """A queue from many threads to one. waiting: how many observations are in it."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self.waiting = 0
        self._most = most
        self._items: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._slowed_at: float | None = None
        self._is_logged = False
        self._is_closed = False

    def put(self, item: T, size: int = 0, *, waits: bool = False) -> None:
        """Add an item with so many observations. waits: until there is room for it, or the queue is closed."""
        with self._changed:
            if waits:
                self._wait()
            self._items.append((item, size))
            self.waiting += size
            self._changed.notify_all()

    def _wait(self) -> None:
        while self.waiting >= self._most and not self._is_closed:
            now = time.monotonic()
            if self._slowed_at is None:
                self._slowed_at = now
            if now - self._slowed_at >= _PATIENCE_S and not self._is_logged:
                self._is_logged = True
                log.warning("sources_slowed", waiting=self.waiting)
            self._changed.wait(_PATIENCE_S)

    def get(self) -> T:
        """Remove and return the first item, once there is one."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            item, size = self._items.popleft()
            self.waiting -= size
            if self._slowed_at is not None and self.waiting <= self._most // 2:
                if self._is_logged:
                    log.info("sources_not_slowed", seconds=round(time.monotonic() - self._slowed_at, 1))
                self._slowed_at, self._is_logged = None, False
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Let nothing wait any more: what is added is not taken, or taken at the end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
