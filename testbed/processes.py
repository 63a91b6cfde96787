"""Processes that never outlive the tests, with faults as verbs, and free ports. What is run in them lives elsewhere."""

import contextlib
import random
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.waiting import wait_until

# A parent-death signal is sent when the *thread* that forked ends, so that all processes are started from one thread
# that lives as long as the interpreter (prctl(2), PR_SET_PDEATHSIG).
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="process-starter")


class ProcessEndedError(Exception):
    """A process ended while something of it was waited for; the message shows its last lines."""


class Process:
    """One process with its log file. It dies with this interpreter, however that one ends (SIGKILL included)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """name: how messages call it. log: takes its standard output and error; appended to at each start."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start it and return at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = _starter.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", "--", *self._command]
            # A session of its own: Ctrl-C at the terminal ends our interpreter, which then ends this in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int | None:
        """Its process id; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_status(self) -> int | None:
        """What it ended with; None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended. A frozen process is running."""
        return self._process is not None and self._process.poll() is None

    def printed(self, pattern: str) -> re.Match[str] | None:
        """The first match in what it has printed since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return re.search(pattern, log.read().decode(errors="replace"), re.MULTILINE)

    def wait_for_line(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Wait until it has printed the pattern since its last start. Raises ProcessEndedError, TimeoutError."""

        def found() -> re.Match[str] | None:
            running = self.running  # asked first: its last words count
            match = self.printed(pattern)
            if match is None and not running:
                status = None if self._process is None else self._process.returncode
                last = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                msg = f"{self.name} ended with status {status} before it printed {pattern!r}; {self.log} ends:\n{last}"
                raise ProcessEndedError(msg)
            return match

        return wait_until(found, f"{self.name} to print {pattern!r} to {self.log}", seconds)

    def freeze(self) -> None:
        """Stop it in its tracks, as a long garbage collection or a stalled host does (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT); nothing happens to a process that is not frozen."""
        self._signal(signal.SIGCONT)

    def stop(self, seconds: float = 60) -> None:
        """End it as an operator does: SIGTERM, then SIGKILL when it has not ended in time."""
        if self._process is not None:
            self.thaw()
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it without a chance to say goodbye (SIGKILL), frozen or not."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def free_port() -> int:
    """A port on loopback that nobody listens on.

    It lies below Linux's ephemeral range (32768 and up), so that no outgoing connection takes it while the server
    that it belongs to is down for a restart.
    """
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    msg = "No free port between 20000 and 32000 on 127.0.0.1."
    raise OSError(msg)
