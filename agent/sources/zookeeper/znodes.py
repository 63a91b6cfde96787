"""Reading znodes and having their changes told, many at a time. What they mean lives in zookeeper_view."""

from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from agent.sources.zookeeper.state import Node

_AT_A_TIME = 500
_ANSWER_S = 10


class Znodes:
    """Whatever is read is watched: its path is told once, when it changes next. All raise what KazooClient does."""

    def __init__(self, client: KazooClient, changed: Callable[[str], None]) -> None:
        """changed: called on kazoo's thread, so it must not block."""
        self._client = client
        self._changed = changed

    def exists(self, path: str) -> bool:
        """Whether there is such a znode; not watched."""
        return self._client.exists_async(path).get(timeout=_ANSWER_S) is not None

    def children(self, path: str) -> list[str]:
        """The children's names; none where the path does not exist (yet): then its creation is watched."""
        try:
            return list(self._client.get_children_async(path, watch=self._told).get(timeout=_ANSWER_S))
        except NoNodeError:
            self._watch_creation([path])
            return []

    def get(self, paths: list[str], *, watch: bool = True) -> dict[str, Node | None]:
        """Contents by path; None where there is no such znode: then its creation is watched."""
        nodes: dict[str, Node | None] = {}
        for start in range(0, len(paths), _AT_A_TIME):
            some = paths[start : start + _AT_A_TIME]
            asked = [(path, self._client.get_async(path, watch=self._told if watch else None)) for path in some]
            for path, answer in asked:
                try:
                    nodes[path] = answer.get(timeout=_ANSWER_S)
                except NoNodeError:
                    nodes[path] = None
        if watch:
            self._watch_creation([path for path, node in nodes.items() if node is None])
        return nodes

    def _watch_creation(self, paths: list[str]) -> None:
        """Have it told when these come to be; one that has come to be since it was looked for is told at once."""
        asked = [(path, self._client.exists_async(path, watch=self._told)) for path in paths]
        for path, answer in asked:
            if answer.get(timeout=_ANSWER_S) is not None:
                self._changed(path)

    def _told(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # that is the session's, told to listeners too
            self._changed(event.path)
