"""The clocks of this machine. Model, engine, rules and rendering take times as arguments instead."""

import time


def now_ms() -> int:
    """Return the wall-clock time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the monotonic clock, ms."""
    return time.monotonic_ns() // 1_000_000
