"""Waiting for a condition with a time limit. What the conditions look at lives elsewhere."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = 60, every: float = 0.1) -> T:
    """Poll until the condition gives something true, and return that.

    what: completes the sentence "Waited N s in vain for ..." of the TimeoutError, which also tells the last value.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            msg = f"Waited {seconds:g} s in vain for {what}; the last thing seen was {value!r}."
            raise TimeoutError(msg)
        time.sleep(every)
