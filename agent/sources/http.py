"""HTTP GET with a deadline for the whole response, whatever the server does."""

import http.client
import io
import socket
import ssl
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from agent.config.credentials import CredentialError
from agent.config.http_client import HttpClient
from agent.sources.certificates import explain_refusal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_BYTES = 32 * 1024 * 1024
"""The largest response that is read: Flink's metric ids of 5,000 subtasks are a tenth of it."""
_MAX_QUOTED_CHARACTERS = 160
_MIN_SECONDS = 0.1


class RequestError(Exception):
    """A request has no usable response; the message is a sentence that names the URL."""


class RequestTimeoutError(RequestError):
    """There was no complete response before the deadline."""


class HttpStatusError(RequestError):
    """The response has an HTTP status other than 200 and 204."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """An HTTP address. It keeps no connection, so that several threads may use it."""

    def __init__(self, url: str, client: HttpClient | None = None) -> None:
        """Take an http or https URL without a trailing slash; its path is the prefix of all request paths.

        client: how to authenticate. Secrets and certificates are reloaded after a refused request.
        """
        self.url = url
        parts = urlsplit(url)
        self.host, self._prefix = parts.hostname or "", parts.path
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._client = client or HttpClient()
        self._is_tls = parts.scheme == "https"
        self._access: _Access | None = None

    def get(self, path: str, accept: str, deadline: float) -> bytes:
        """Return the body of the response to GET. deadline: of time.monotonic(). Raises RequestError."""
        began = time.monotonic()
        try:
            access = self._access = self._access or self._read_access()
        except (CredentialError, OSError) as error:
            msg = f"{self.url} is not asked: {error}"
            raise RequestError(msg) from error
        try:
            status, reason, location, body = self._get(path, accept, deadline, access)
        except TimeoutError as error:
            msg = f"{self.url} does not answer {path} within {max(deadline - began, 0):.1f} s"
            raise RequestTimeoutError(msg) from error
        except ssl.SSLCertVerificationError as error:
            self._access = None
            seconds = max(deadline - time.monotonic(), _MIN_SECONDS)
            refusal = explain_refusal(error, self.host, self.port, seconds)
            msg = f"{self.url} has a certificate that is not valid: {refusal}"
            raise RequestError(msg) from error
        except OSError as error:
            self._access = None
            msg = f"{self.url} cannot be reached: {error.strerror or error}"
            raise RequestError(msg) from error
        except (http.client.HTTPException, ValueError) as error:
            msg = f"{self.url} sent an invalid HTTP response to {path}: {_quote(repr(error))}"
            raise RequestError(msg) from error
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            self._access = None
        if status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            what = f"redirects to {location}" if location else f"answers {path} with {status} {reason}: {_quote(body)}"
            msg = f"{self.url} {what}"
            raise HttpStatusError(msg, status)
        return body

    def _read_access(self) -> "_Access":
        return _Access(self._client.headers(), self._client.tls_context() if self._is_tls else None)

    def _get(self, path: str, accept: str, deadline: float, access: "_Access") -> tuple[int, str, str | None, bytes]:
        """Return the status, its reason, the Location header and the body."""
        connection: http.client.HTTPConnection
        timeout = _seconds_until(deadline)
        if access.tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=access.tls)
        try:
            connection.request(
                "GET", self._prefix + path, headers={"Accept": accept, "Connection": "close", **access.headers}
            )
            with _Response(connection.sock, deadline) as response:
                response.begin()
                body = response.read()
                return response.status, response.reason, response.getheader("Location"), body
        finally:
            connection.close()


class _Access(NamedTuple):
    """Headers with secrets, and the TLS settings; None without TLS."""

    headers: dict[str, str]
    tls: ssl.SSLContext | None


class _Response(http.client.HTTPResponse):
    """A response with one deadline for all of it: a socket's timeout is per packet, and bytes may trickle in."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__(sock, method="GET")
        self.fp = io.BufferedReader(_LimitedSocketReader(sock, deadline))


class _LimitedSocketReader(io.RawIOBase):
    """Reads a socket until a deadline, and at most _MAX_BYTES."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket, self._deadline, self._bytes_left = sock, deadline, _MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._socket.settimeout(_seconds_until(self._deadline))
        size = self._socket.recv_into(buffer)
        self._bytes_left -= size
        if self._bytes_left < 0:
            msg = f"more than {_MAX_BYTES >> 20} MiB"
            raise ValueError(msg)
        return size


def _seconds_until(deadline: float) -> float:
    """Return the seconds until a deadline of time.monotonic(). Raises TimeoutError after it."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _quote(text: str | bytes) -> str:
    """Return the beginning of a text on one line."""
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    line = " ".join(decoded[: 4 * _MAX_QUOTED_CHARACTERS].split())
    return line if len(line) <= _MAX_QUOTED_CHARACTERS else line[: _MAX_QUOTED_CHARACTERS - 3] + "..."
