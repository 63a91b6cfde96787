"""What the daemon tells systemd: ready, alive, stopping, and a line of status. When to tell it, the daemon decides."""

import os
from types import TracebackType
from typing import Self

from sdnotify import SystemdNotifier


class Systemd:
    """The service manager that started this process; where none did, telling it anything does nothing."""

    def __init__(self) -> None:
        """Connect to $NOTIFY_SOCKET, if it is set."""
        self._notifier = SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def watchdog_interval(self) -> int | None:
        """How often to call `watchdog`, ms: half of what systemd allows; None where it does not watch this process."""
        allowed, watched = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID", str(os.getpid()))
        return int(allowed) // 2000 if allowed and watched == str(os.getpid()) else None

    def ready(self) -> None:
        """Start-up is over: sources are polled and incidents told."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Stopping has begun; systemd goes on to kill after TimeoutStopSec."""
        self._tell("STOPPING=1")

    def watchdog(self) -> None:
        """Every loop has made progress since the last call."""
        self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """The line that `systemctl status` shows."""
        self._tell("STATUS=" + " ".join(text.split()))

    def close(self) -> None:
        """Let go of the socket."""
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.close()
        self._notifier = None

    def _tell(self, state: str) -> None:
        if self._notifier is not None:
            # sdnotify 0.3.2 encodes as Latin-1 and drops what does not fit; so its characters are given UTF-8's bytes.
            self._notifier.notify(state.encode().decode("latin-1"))
