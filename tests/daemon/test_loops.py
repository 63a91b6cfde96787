"""Loops on the monotonic clock."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.daemon.loops import Loop


@contextmanager
def started(loop: Loop) -> Iterator[Loop]:
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_a_call_that_fails_is_reported_and_the_loop_goes_on() -> None:
    calls: list[int] = []
    failures: list[Exception] = []
    enough = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            enough.set()
        raise ValueError(len(calls))

    loop = Loop("poll", 1, call, failures.append)
    begun = loop.progressed_at
    with started(loop):
        assert enough.wait(30)
    assert [str(failure) for failure in failures[:2]] == ["1", "2"]
    assert loop.progressed_at > begun


def test_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = threading.Semaphore(0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with started(Loop("tick", 1, ticks.release, lambda error: pytest.fail(repr(error)))):
        assert all(ticks.acquire(timeout=30) for _ in range(5))


def test_a_loop_that_was_stopped_makes_no_further_call() -> None:
    called, go_on = threading.Event(), threading.Event()
    calls = []

    def call() -> None:
        calls.append(1)
        called.set()
        go_on.wait(30)

    with started(Loop("poll", 1, call, lambda _: None)) as loop:
        assert called.wait(30)
    go_on.set()
    loop.join(30)
    assert calls == [1]
