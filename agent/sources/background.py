"""Daemon threads for calls that have no timeout, such as a host name lookup or a network disk."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(name: str, call: Callable[[], T]) -> "Future[T]":
    """Run the call in a daemon thread; return its future.

    A hanging call does not block the interpreter's exit, as the threads of concurrent.futures would.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised by future.result()
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
