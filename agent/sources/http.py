"""Asking an HTTP address: one request, one answer or a sentence why not, and never later than a deadline.

What the answers mean is for who asks: flink_rest, streams_metrics.
"""

import http.client
import io
import socket
import ssl
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LARGEST = 32 * 1024 * 1024
"""An answer with more bytes is none that is waited for: Flink's metric ids of 5,000 subtasks are a tenth of it."""
_SHOWN = 160


class UnansweredError(Exception):
    """There is no answer that can be used; the message is a sentence that names the address."""


class LateError(UnansweredError):
    """There was none before the deadline."""


class RefusedError(UnansweredError):
    """It answered with an HTTP status that is no success."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def left(deadline: float) -> float:
    """The seconds until a deadline of time.monotonic(). Raises TimeoutError where it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class Endpoint:
    """One address. It keeps no connection, so that it may be asked from several threads."""

    def __init__(self, url: str) -> None:
        """url: http or https, without a slash at its end; what follows the port is put before each path."""
        self.url = url
        parts = urlsplit(url)
        self.host, self._prefix = parts.hostname or "", parts.path
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def get(self, path: str, accept: str, deadline: float) -> bytes:
        """The body of the answer to GET. Raises UnansweredError; deadline: of time.monotonic()."""
        began = time.monotonic()
        try:
            status, reason, location, body = self._get(path, accept, deadline)
        except TimeoutError as error:
            msg = f"{self.url} does not answer {path} within {max(deadline - began, 0):.1f} s"
            raise LateError(msg) from error
        except OSError as error:
            msg = f"{self.url} cannot be reached: {error.strerror or error}"
            raise UnansweredError(msg) from error
        except (http.client.HTTPException, ValueError) as error:
            msg = f"{self.url} answers {path} with what is not HTTP: {_short(repr(error))}"
            raise UnansweredError(msg) from error
        if status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            what = f"sends on to {location}" if location else f"answers {path} with {status} {reason}: {_short(body)}"
            msg = f"{self.url} {what}"
            raise RefusedError(msg, status)
        return body

    def _get(self, path: str, accept: str, deadline: float) -> tuple[int, str, str | None, bytes]:
        """Status, its reason, where it redirects to, body."""
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=left(deadline))
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=left(deadline), context=self._tls)
        try:
            connection.request("GET", self._prefix + path, headers={"Accept": accept, "Connection": "close"})
            with _Response(connection.sock, deadline) as response:
                response.begin()
                body = response.read()
                return response.status, response.reason, response.getheader("Location"), body
        finally:
            connection.close()


class _Response(http.client.HTTPResponse):
    """A response that is read until a deadline: a socket's timeout is for each packet, and bytes may drip."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__(sock, method="GET")
        self.fp = io.BufferedReader(_Until(sock, deadline))


class _Until(io.RawIOBase):
    """What comes from a socket until a deadline, and no more than the largest answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket, self._deadline, self._room = sock, deadline, _LARGEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._socket.settimeout(left(self._deadline))
        size = self._socket.recv_into(buffer)
        self._room -= size
        if self._room < 0:
            msg = f"more than {_LARGEST >> 20} MiB"
            raise ValueError(msg)
        return size


def _short(text: str | bytes) -> str:
    """The beginning of a text of any sort, on one line."""
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    line = " ".join(decoded[: 4 * _SHOWN].split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
