"""Notifications to systemd: ready, watchdog, stopping and a status line (sd_notify(3))."""

import os
import time
from types import TracebackType
from typing import Self

from sdnotify import SystemdNotifier

_START_MS = 60_000
"""How long start-up may take from one sign of progress to the next."""


class Systemd:
    """The service manager of this process; without one, all notifications are ignored."""

    def __init__(self) -> None:
        """Connect to $NOTIFY_SOCKET if it is set."""
        self._notifier = SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def watchdog_interval(self) -> int | None:
        """How often to call `watchdog`, ms: half of WatchdogSec; None if systemd does not watch this process."""
        allowed, watched_pid = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID", str(os.getpid()))
        return int(allowed) // 2000 if allowed and watched_pid == str(os.getpid()) else None

    def starting(self) -> None:
        """Notify that start-up makes progress: the limit on its time, and the watchdog of a reload, begin again."""
        self._notify(f"EXTEND_TIMEOUT_USEC={_START_MS * 1000}\nWATCHDOG=1")

    def ready(self) -> None:
        """Notify that start-up is complete."""
        self._notify("READY=1")

    def reloading(self) -> None:
        """Notify that the configuration is being reloaded; `ready` ends that."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Notify that shutdown has begun; systemd kills the process after TimeoutStopSec."""
        self._notify("STOPPING=1")

    def watchdog(self) -> None:
        """Notify that every loop has made progress since the last call."""
        self._notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._notify("STATUS=" + " ".join(text.split()))

    def close(self) -> None:
        """Close the socket."""
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.close()
        self._notifier = None

    def _notify(self, state: str) -> None:
        if self._notifier is not None:
            # sdnotify 0.3.2 encodes as Latin-1 and drops other characters; so pass it UTF-8's bytes as characters.
            self._notifier.notify(state.encode().decode("latin-1"))
