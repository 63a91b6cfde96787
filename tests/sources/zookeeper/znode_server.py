"""A stand-in for a ZooKeeper server, for faults that a real one cannot be made to have.

It serves kazoo's own client by the wire protocol: exists, getData and getChildren with watches, and pings. What else is
requested closes the connection. Formats: zookeeper.jute and org.apache.zookeeper.proto (3.4-3.9).
"""

import contextlib
import json
import socket
import struct
import threading
from collections import Counter, defaultdict
from types import TracebackType
from typing import Any, NamedTuple, Self

from agent.clock import now_ms
from testbed.connections import read_exactly

_EXISTS, _GET_DATA, _GET_CHILDREN, _PING, _CLOSE = 3, 4, 8, 11, -11
_OK, _NO_NODE, _NO_AUTH = 0, -101, -102
_CREATED, _DELETED, _CHANGED, _CHILD = 1, 2, 3, 4
_PING_XID, _WATCH_XID = -2, -1


class _Znode(NamedTuple):
    content: bytes
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int

    @property
    def stat(self) -> bytes:
        return struct.pack(
            "!qqqqiiiqiiq", *self[1:], 0, 0, 0, len(self.content), 0, self.czxid
        )  # fmt: skip


class ZnodeServer:
    """A server on a free loopback port with the znodes that a test writes; a context manager.

    clock_ahead: by how much its clock is ahead, ms. denied: paths whose ACLs allow nothing to be read. requests: how
    often each path was requested.
    """

    def __init__(self, clock_ahead: int = 0) -> None:
        self.denied: set[str] = set()
        self.requests: Counter[str] = Counter()
        self._clock_ahead = clock_ahead
        self._zxid = 1_000
        self._sessions = 0
        self._znodes: dict[str, _Znode] = {}
        self._watches: dict[tuple[str, bool], set[socket.socket]] = defaultdict(set)
        self._connections: set[socket.socket] = set()
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="znode-server", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._disconnect()

    def write(self, path: str, content: object = None) -> int:
        """Create or change a znode, and create its parents; return its time of modification, ms."""
        parent = _parent(path)
        with self._lock:
            if parent != "/" and parent not in self._znodes:
                self.write(parent)
            self._zxid += 1
            at, body, last = now_ms() + self._clock_ahead, json.dumps(content).encode(), self._znodes.get(path)
            if last is None:
                self._znodes[path] = _Znode(body, self._zxid, self._zxid, at, at, 0)
                self._report(path, _CREATED)
                self._report(parent, _CHILD)
            else:
                self._znodes[path] = last._replace(content=body, mzxid=self._zxid, mtime=at, version=last.version + 1)
                self._report(path, _CHANGED)
            return at

    def delete(self, path: str) -> None:
        """Delete a znode and those below it, the lowest first, as Kafka deletes topics."""
        with self._lock:
            for below in sorted((name for name in self._znodes if f"{name}/".startswith(f"{path}/")), reverse=True):
                self._zxid += 1
                del self._znodes[below]
                self._report(below, _DELETED)
                self._report(_parent(below), _CHILD)

    def restore(self) -> None:
        """Continue with the same znodes and a lower zxid, as after a restore from a backup; sessions are lost."""
        with self._lock:
            self._zxid = 10
            self._disconnect()  # before another response shows the client that zxid

    def watched(self, path: str) -> list[str]:
        """Return the paths of watches on this znode and those below it."""
        with self._lock:
            return sorted(
                name for (name, _), clients in self._watches.items() if clients and f"{name}/".startswith(f"{path}/")
            )

    def _disconnect(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _report(self, path: str, kind: int) -> None:
        kinds = {_CHILD: [True], _DELETED: [False, True]}.get(kind, [False])
        clients = set().union(*(self._watches.pop((path, of_children), set()) for of_children in kinds))
        for client in clients:
            _send(client, struct.pack("!iqi", _WATCH_XID, -1, _OK) + struct.pack("!ii", kind, 3) + _buffer(path))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="znode-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        with connection, contextlib.suppress(OSError, EOFError):
            first = _receive(connection)
            _, last_zxid, timeout, session = struct.unpack("!iqiq", first[:24])
            if last_zxid > self._zxid:
                return  # as ZooKeeperServer.processConnectRequest does: the client has seen a later zxid
            if session == 0:
                self._sessions += 1
                session = self._sessions
            _send(connection, struct.pack("!iiq", 0, timeout, session) + _buffer("p" * 16) + b"\0")
            while self._respond(connection, _receive(connection)):
                pass
        self._connections.discard(connection)
        for clients in list(self._watches.values()):
            clients.discard(connection)

    def _respond(self, connection: socket.socket, request: bytes) -> bool:
        """Respond to a request; return whether the connection stays open."""
        xid, kind = struct.unpack("!ii", request[:8])
        with self._lock:
            if kind == _PING:
                return _send(connection, struct.pack("!iqi", _PING_XID, self._zxid, _OK))
            if kind not in (_EXISTS, _GET_DATA, _GET_CHILDREN):
                return kind == _CLOSE and not _send(connection, struct.pack("!iqi", xid, self._zxid, _OK))
            length = struct.unpack("!i", request[8:12])[0]
            path, is_watched = request[12 : 12 + length].decode(), bool(request[12 + length])
            self.requests[path] += 1
            znode, error = self._znodes.get(path), _OK
            if path in self.denied and kind != _EXISTS:
                error = _NO_AUTH
            elif znode is None:
                error = _NO_NODE
            if is_watched and (error == _OK or (error == _NO_NODE and kind == _EXISTS)):
                self._watches[path, kind == _GET_CHILDREN].add(connection)
            body = b"" if error != _OK or znode is None else self._body(kind, path, znode)
            return _send(connection, struct.pack("!iqi", xid, self._zxid, error) + body)

    def _body(self, kind: int, path: str, znode: _Znode) -> bytes:
        if kind == _GET_CHILDREN:
            names = [name.rpartition("/")[2] for name in self._znodes if _parent(name) == path]
            return struct.pack("!i", len(names)) + b"".join(map(_buffer, names))
        return (_buffer(znode.content) if kind == _GET_DATA else b"") + znode.stat


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _buffer(content: str | bytes) -> bytes:
    body = content.encode() if isinstance(content, str) else content
    return struct.pack("!i", len(body)) + body


def _send(connection: socket.socket, body: bytes) -> bool:
    with contextlib.suppress(OSError):
        connection.sendall(_buffer(body))
    return True


def _receive(connection: socket.socket) -> bytes:
    """Return a message. Raises EOFError at the end of the connection."""
    length: Any = struct.unpack("!i", read_exactly(connection, 4))[0]
    return read_exactly(connection, length)
