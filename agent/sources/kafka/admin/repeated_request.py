"""Requests of kafka-python's that are sent again and again: encoded once, their responses left undecoded at first.

Encoding and decoding take most of the time of a poll, and most of what is polled has not changed.
"""

from typing import Any, NamedTuple

_THROTTLE_BYTES = 4


class LazyResponse(NamedTuple):
    """A response as it was received: the time for which the broker throttles us, ms, and the rest in bytes.

    message: kafka-python's class of such responses.
    """

    message: Any
    throttle_time_ms: int
    body: bytes

    def decode(self) -> Any:
        """Return the decoded response."""
        return self.message.decode(self.throttle_time_ms.to_bytes(_THROTTLE_BYTES, "big") + self.body)


class RepeatedRequest:
    """A request that kafka-python's connections send like any other; what they receive is a `LazyResponse`."""

    def __init__(self, request: Any) -> None:
        """request: limited to versions whose responses begin with the throttle time."""
        self._request = request
        self._body = b""

    def __getattr__(self, name: str) -> Any:
        """Return what connections need of a request besides what is defined here."""
        return getattr(self._request, name)

    @property
    def API_VERSION(self) -> int | None:  # noqa: N802 - kafka-python's name
        """The version; None until a connection has chosen it."""
        version: int | None = self._request.API_VERSION
        return version

    @API_VERSION.setter
    def API_VERSION(self, version: int) -> None:  # noqa: N802
        self._request.API_VERSION = version

    @property
    def header(self) -> "_Header":
        """The header, from which connections take how the response is read."""
        return _Header(self._request.header)

    def encode(self, **_: bool) -> bytes:
        """Return the frame of the request with its header, which is what connections ask for."""
        self._body = self._body or self._request.encode()
        is_flexible = self._request.flexible_version_q(self._request.API_VERSION)
        head: bytes = self._request.encode_header(flexible=is_flexible)
        return (len(head) + len(self._body)).to_bytes(4, "big") + head + self._body


class _Header(NamedTuple):
    """The header of a request whose response is left undecoded."""

    header: Any

    @property
    def correlation_id(self) -> int:
        number: int = self.header.correlation_id
        return number

    def get_response_class(self) -> "_ResponseClass":
        return _ResponseClass(self.header.get_response_class())


class _ResponseClass(NamedTuple):
    """Takes the place of the class of a response."""

    message: Any

    def parse_header(self, received: Any) -> Any:
        return self.message.parse_header(received)

    def decode(self, received: Any) -> LazyResponse:
        throttle_time_ms = int.from_bytes(received.read(_THROTTLE_BYTES), "big")
        return LazyResponse(self.message, throttle_time_ms, received.read())
