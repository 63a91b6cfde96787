"""Calls that nothing can cut short (a host's name looked up, a network's disk), each in a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(name: str, call: Callable[[], T]) -> "Future[T]":
    """Start the call; what it returns or raises comes with the future. It keeps no interpreter from ending, which
    the threads of concurrent.futures would.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
