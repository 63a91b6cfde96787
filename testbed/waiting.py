"""Waiting for a condition with a time limit."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = 60, every: float = 0.1) -> T:
    """Poll until the condition returns something true, and return that.

    what: completes "Timed out after N s waiting for ..." in the TimeoutError, which also shows the last value.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            msg = f"Timed out after {seconds:g} s waiting for {what}; the last value was {value!r}."
            raise TimeoutError(msg)
        time.sleep(every)
