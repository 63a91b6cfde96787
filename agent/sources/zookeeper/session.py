"""Our own session with ZooKeeper: since when its connection is away, and a new start where kazoo has given up."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KeeperState

from agent.sources.availability import now_ms

_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}


class Session:
    """One session, which may be lost when its connection has been away for longer than its time.

    away_since: since when it is away, ms; None while it is there. failures: what a call to the client may raise.
    """

    def __init__(self, connect: str, options: Mapping[str, Any], connected: Callable[[], None] = lambda: None) -> None:
        """connect: servers and chroot. options: KazooClient's keyword arguments.

        connected: called on kazoo's thread whenever the connection is there (again); it may queue, and no more.
        """
        self.away_since: int | None = now_ms()
        self._connected = connected
        self._time_ms = int(options.get("timeout", 10) * 1000)
        self.client = KazooClient(connect, connection_retry=_CONNECTION_RETRY, **options)
        self.client.add_listener(self._changed)
        self.failures = (KazooException, self.client.handler.timeout_exception)

    def start(self) -> None:
        """Connect, and again whenever the connection is lost; returns at once."""
        self.client.start_async()

    def lost(self, now: int) -> bool:
        """Whether it has been away for so long that it may be lost.

        A client that has given up for good, as kazoo does when its credentials are refused, is then started anew.
        """
        away_since = self.away_since  # kazoo's thread may change it meanwhile
        if away_since is None or now - away_since <= self._time_ms:
            return False
        if self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            self.away_since = now_ms()
            self.client.stop()
            self.client.start_async()
        return True

    def close(self) -> None:
        """Let go of it within about 3 s."""
        ending = threading.Thread(target=self._end, name="zookeeper-end", daemon=True)
        ending.start()
        ending.join(3)

    def _end(self) -> None:
        self.client.stop()
        self.client.close()

    def _changed(self, state: str) -> None:
        """Called on kazoo's thread: note, no more."""
        if state == KazooState.CONNECTED:
            self.away_since = None
            self._connected()
        elif self.away_since is None:
            self.away_since = now_ms()
