"""A TCP proxy whose link can be cut and healed."""

import contextlib
import socket
import socketserver
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections from a free loopback port to a target until closed, in its own threads."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._is_cut = False
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._forward(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="proxy", daemon=True).start()

    @property
    def address(self) -> str:
        """The host:port to connect to."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections and accept none until `heal`."""
        with self._guard:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):  # the peer may have closed it already
                    end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Accept connections again."""
        with self._guard:
            self._is_cut = False

    def close(self) -> None:
        """Break all connections and stop the proxy."""
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self._target, timeout=5) as server:
            server.settimeout(None)
            with self._guard:
                if self._is_cut:
                    return
                self._open |= {client, server}
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
            with self._guard:
                self._open -= {client, server}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one side ends, then shut both down, so that the other direction ends too."""
    with contextlib.suppress(OSError):
        while received := source.recv(65_536):
            target.sendall(received)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
