"""Our own session with the ZooKeeper of a Flink cluster, and what a poll reads through it."""

import time
from collections.abc import Mapping
from typing import Any

from agent.sources.availability import now_ms
from agent.sources.flink.ha_znodes import Tree, read
from agent.sources.zookeeper.session import Session
from agent.sources.zookeeper.znodes import UndecodableError

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
        self._session = Session(connect, options)
        self._session.start()

    def read(self) -> Tree:
        """What stands there now. Raises UnseenError, AwayError."""
        now = now_ms()
        if self._session.disconnected_since is not None:
            if not self._session.is_lost(now):
                raise AwayError
            msg = f"ZooKeeper at {self._connect} does not answer"
            raise UnseenError(msg)
        try:
            tree = read(self._session.client, self._path, self._cluster, now, time.monotonic() + _PATIENCE_S)
        except UndecodableError as error:
            raise UnseenError(str(error)) from error
        except self._session.failures as error:
            if self._session.disconnected_since is not None:
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
        self._session.close()
