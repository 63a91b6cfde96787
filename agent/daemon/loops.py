"""Loops on the monotonic clock: polls and ticks go on when the wall clock is set."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

STUCK_S = 120
"""A loop without progress for this long is stuck."""


class Loop:
    """Calls a function at an interval, in a thread of its own. Calls that were missed are made up for by one.

    name: in messages. progressed_at: when the last call ended, seconds of the monotonic clock.
    """

    def __init__(self, name: str, interval: int, call: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """interval: ms. failed: called with what the function raised; the loop goes on."""
        self.name = name
        self.progressed_at = time.monotonic()
        self._interval = interval / 1000
        self._begun: float | None = None
        self._call = call
        self._failed = failed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def call_lasts(self) -> int:
        """How long the call in progress has lasted, ms; 0 if there is none."""
        begun = self._begun
        return 0 if begun is None else round((time.monotonic() - begun) * 1000)

    def start(self) -> None:
        """Make the first call at once."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further call; one in progress goes on."""
        self._stopped.set()

    def join(self, timeout: float) -> bool:
        """Wait until the call in progress has ended; return whether it has within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            self._begun = time.monotonic()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 - a defect of one source must not end its loop
                self._failed(error)
            self._begun = None
            self.progressed_at = time.monotonic()
            due = max(due + self._interval, self.progressed_at)


class Progress:
    """Whether the agent's loops make progress. Used by any thread."""

    def __init__(self, loops: Iterable[Loop], turns: Mapping[str, Callable[[], int]]) -> None:
        """Watch the loops, and other threads by `turns`: functions whose result changes with their progress."""
        self._loops = list(loops)
        self._turns = turns
        self._lock = threading.Lock()
        self._last: dict[str, tuple[int, float]] = {}

    def stuck(self) -> list[str]:
        """Return the names of the loops that have made no progress for STUCK_S."""
        now = time.monotonic()
        with self._lock:
            for name, turn_of in self._turns.items():
                turn = turn_of()
                if self._last.get(name, (-1, 0.0))[0] != turn:
                    self._last[name] = (turn, now)
            progressed_at = {name: at for name, (_, at) in self._last.items()}
        progressed_at |= {loop.name: loop.progressed_at for loop in self._loops}
        return [name for name, at in progressed_at.items() if now - at > STUCK_S]
