"""Responses of kafka-python that are decoded only if they differ from the last one.

Decoding takes most of the time of a poll, and most of what is polled has not changed.
"""

from types import new_class
from typing import Any, NamedTuple

import kafka.protocol.admin
import kafka.protocol.consumer  # noqa: F401 - both register classes of their own, which must come first
from kafka.protocol.api_message import ApiMessage

_THROTTLE_BYTES = 4


class LazyResponse(NamedTuple):
    """A response as it was received: the time for which the broker throttles us, ms, and the rest in bytes."""

    message: Any
    throttle_time_ms: int
    body: bytes

    def decode(self) -> Any:
        """Return the decoded response."""
        throttled = self.throttle_time_ms.to_bytes(_THROTTLE_BYTES, "big")
        return ApiMessage.decode.__func__(self.message, throttled + self.body)


def _lazy(name: str) -> Any:
    """Return the class of a response that begins with the throttle time, registered with kafka-python."""

    def decode(message: Any, received: Any) -> LazyResponse:
        throttle_time_ms = int.from_bytes(received.read(_THROTTLE_BYTES), "big")
        return LazyResponse(message, throttle_time_ms, received.read())

    return new_class(name, (ApiMessage,), exec_body=lambda namespace: namespace.update(decode=classmethod(decode)))


# Registered when imported, for all responses of these kinds. Those to older versions do not begin with the time.
OffsetFetchResponse = _lazy("OffsetFetchResponse")
DescribeGroupsResponse = _lazy("DescribeGroupsResponse")
