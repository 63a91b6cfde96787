"""Calls in flight: asked once, waited for a little, taken whenever they answer. What is asked lives with the source."""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from agent.sources.sight import now_ms

Key: TypeAlias = tuple[Hashable, ...]
Futures: TypeAlias = tuple[Mapping[Any, Future[Any]], ...]
"""One mapping per request sent. The client sets all futures of a request in one go, so that one stands for all."""

_SAME_GO_SECONDS = 5


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call in flight. whom: who is to answer, as far as slowness goes. asked: when, ms."""

    key: Key
    whom: Key
    asked: int
    futures: Futures


@dataclass(frozen=True, slots=True)
class Answer:
    """A call that was answered at `at`, ms."""

    call: Call
    at: int


class Calls:
    """Never two calls for one key at a time, and no waiting for whoever did not answer in time when last asked."""

    def __init__(self) -> None:
        self._flying: dict[Key, Call] = {}
        self._awaited: dict[Key, Call] = {}
        self._missing: dict[Key, int] = {}
        self._slow: set[Key] = set()
        self._done: SimpleQueue[tuple[Call, int]] = SimpleQueue()

    @property
    def flying(self) -> list[Call]:
        """What has not been answered yet."""
        return list(self._flying.values())

    def ask(self, key: Key, issue: Callable[[], Futures], whom: Key | None = None) -> None:
        """Issue the call unless it is still in flight."""
        if key in self._flying:
            return
        asked = now_ms()
        call = self._flying[key] = Call(key, whom or key, asked, issue())
        self._missing[key] = len(call.futures)
        if call.whom not in self._slow:
            self._awaited[key] = call
        for futures in call.futures:
            next(iter(futures.values())).add_done_callback(lambda _: self._done.put((call, now_ms())))

    def collect(self, patience: int) -> list[Answer]:
        """What has been answered, after waiting up to `patience` ms for the calls asked since the last collection."""
        deadline = time.monotonic() + patience / 1000
        answers = []
        while True:
            waiting = max(deadline - time.monotonic(), 0) if self._awaited else 0
            try:
                call, at = self._done.get(block=waiting > 0, timeout=waiting)
            except Empty:
                break
            self._missing[call.key] -= 1
            if self._missing[call.key]:
                continue
            del self._flying[call.key], self._missing[call.key]
            self._awaited.pop(call.key, None)
            if at - call.asked > patience:
                self._slow.add(call.whom)
            else:
                self._slow.discard(call.whom)
            answers.append(Answer(call, at))
        self._slow.update(call.whom for call in self._awaited.values())
        self._awaited.clear()
        return answers


def outcome(future: Future[Any]) -> Any:
    """What a future of an answered call holds; raises what the client raised."""
    return future.result(_SAME_GO_SECONDS)


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Run a blocking call in a thread that does not keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  the future's reader is the one to judge it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="kafka-metadata", daemon=True).start()
    return future
