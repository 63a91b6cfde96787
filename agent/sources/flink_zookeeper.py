"""Our own session with the ZooKeeper of a Flink cluster, and what a poll reads through it."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KeeperState

from agent.sources.flink_znodes import Tree, read
from agent.sources.sight import now_ms
from agent.sources.zookeeper_view import UndecodableError

_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
_PATIENCE_S = 3.0
"""How long a poll waits for the whole tree."""


class UnseenError(Exception):
    """The tree cannot be seen; the message is a sentence."""


class AwayError(Exception):
    """The connection is away, for less than the session's time so far: nothing is known yet."""


class FlinkZooKeeper:
    """A session that reads the tree below a path when it is polled. No watches: a poll reads what there is."""

    def __init__(self, connect: str, path: str, cluster: str, options: Mapping[str, Any]) -> None:
        """connect: servers and chroot. path: of the Flink cluster's znode. options: KazooClient's keyword arguments."""
        self._connect, self._path, self._cluster = connect, path, cluster
        self._session_ms = int(options.get("timeout", 10) * 1000)
        self._away_since: int | None = now_ms()
        self._client = KazooClient(connect, connection_retry=_CONNECTION_RETRY, **options)
        self._client.add_listener(self._session_changed)
        self._client.start_async()

    def read(self) -> Tree:
        """What stands there now. Raises UnseenError, AwayError."""
        now = now_ms()
        if self._away_since is not None:
            if now - self._away_since <= self._session_ms:
                raise AwayError
            self._revive()
            msg = f"ZooKeeper at {self._connect} does not answer"
            raise UnseenError(msg)
        try:
            tree = read(self._client, self._path, self._cluster, now, time.monotonic() + _PATIENCE_S)
        except UndecodableError as error:
            raise UnseenError(str(error)) from error
        except (KazooException, self._client.handler.timeout_exception) as error:
            if self._away_since is not None:
                raise AwayError from error
            msg = f"ZooKeeper at {self._connect} does not tell of {self._path}: {error!r}"
            raise UnseenError(msg) from error
        if tree is None:
            msg = (
                f"there is no {self._path} in ZooKeeper at {self._connect}: are `zookeeper_root` and `cluster_id` "
                "Flink's high-availability.zookeeper.path.root and high-availability.cluster-id?"
            )
            raise UnseenError(msg)
        return tree

    def close(self) -> None:
        """Let go of the session within about 3 s."""
        ending = threading.Thread(target=self._end, name="flink-zookeeper-end", daemon=True)
        ending.start()
        ending.join(3)

    def _end(self) -> None:
        self._client.stop()
        self._client.close()

    def _session_changed(self, state: str) -> None:
        """Called on kazoo's thread: note, no more."""
        if state == KazooState.CONNECTED:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now_ms()

    def _revive(self) -> None:
        """Start a client anew that has given up for good, as kazoo does when its credentials are refused."""
        if self._client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            self._away_since = now_ms()
            self._client.stop()
            self._client.start_async()
