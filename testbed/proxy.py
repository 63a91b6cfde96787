"""A TCP proxy whose link can be cut and healed. It knows nothing of what flows through."""

import contextlib
import socket
import socketserver
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections on a free port of loopback to a target until it is closed; runs in threads of its own."""

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
        """host:port to connect to."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections and accept none until healed."""
        with self._guard:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):  # the other side may have gone already
                    end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Accept connections again."""
        with self._guard:
            self._is_cut = False

    def close(self) -> None:
        """End it; what is connected is cut off."""
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
    """Copy until one side ends, then end both, so that the pump of the other direction ends too."""
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            target.sendall(piece)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
