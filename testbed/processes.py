"""Processes that never outlive the tests, with faults by signals, and free ports."""

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

# A parent-death signal is sent when the *thread* that forked ends (prctl(2), PR_SET_PDEATHSIG). Therefore one thread,
# which lives as long as the interpreter, starts all processes.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="process-starter")

_reservations: list[socket.socket] = []
"""Of ports that `free_port` has returned."""


class ProcessEndedError(Exception):
    """A process ended while its output was awaited; the message shows its last lines."""


class Process:
    """A process with its log file. It dies with this interpreter, even if that is killed (SIGKILL)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """Prepare the process. name: its name in messages. log: receives its output; appended to at each start."""
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
            # In a new session, Ctrl-C at the terminal ends only our interpreter, which then ends this process in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int | None:
        """Its process id; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Its exit status; None while it runs and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended; a frozen process is running."""
        return self._process is not None and self._process.poll() is None

    def find_line(self, pattern: str) -> re.Match[str] | None:
        """Return the first match in its output since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return re.search(pattern, log.read().decode(errors="replace"), re.MULTILINE)

    def wait_for_line(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Wait until its output since the last start matches. Raises ProcessEndedError, TimeoutError."""

        def find() -> re.Match[str] | None:
            running = self.running  # checked first, so that its last lines are read
            match = self.find_line(pattern)
            if match is None and not running:
                status = None if self._process is None else self._process.returncode
                last = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                msg = f"{self.name} ended with status {status} before it printed {pattern!r}; {self.log} ends:\n{last}"
                raise ProcessEndedError(msg)
            return match

        return wait_until(find, f"{self.name} to print {pattern!r} to {self.log}", seconds)

    def freeze(self) -> None:
        """Suspend it (SIGSTOP), as a long garbage collection or a stalled host does, and wait until it stands still.

        On a busy host its threads run on for a while, and may answer what is sent to them after this call.
        """
        self._signal(signal.SIGSTOP)
        wait_until(self._stands_still, f"the threads of {self.name} to stop", every=0.01)

    def _stands_still(self) -> bool:
        # proc(5), stat: the state follows the name in parentheses, which may contain any character.
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat") if self.running else []
        try:
            return all(thread.read_text().rpartition(")")[2].split()[0] in "tTZX" for thread in threads)
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return False

    def thaw(self) -> None:
        """Resume it (SIGCONT); this has no effect on a process that is not frozen."""
        self._signal(signal.SIGCONT)

    def stop(self, seconds: float = 60) -> None:
        """End it as an operator does: SIGTERM, then SIGKILL if it has not ended in time."""
        if self._process is not None:
            self.thaw()
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill it (SIGKILL), frozen or not."""
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


class ProcessGroup:
    """Processes that start in order and end in the opposite one; entering the context starts them."""

    def __init__(self, *processes: Process) -> None:
        """Prepare the group. processes: end their own children at SIGTERM, which a kill would leave behind."""
        self._processes = processes
        self._running = contextlib.ExitStack()

    def wait_until_ready(self) -> None:
        """Wait until the processes, which have started, can be used. Raises ProcessEndedError, TimeoutError."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            for process in self._processes:
                starting.callback(process.kill)
                starting.callback(process.stop)  # runs before the kill
                process.start()
            self.wait_until_ready()
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


def free_port() -> int:
    """Return a free port on loopback, which this function returns to no other process while this one runs.

    It is below Linux's ephemeral range (32768 and up), so that no outgoing connection takes it while its server
    restarts.
    """
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        reservation = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            reservation.bind(f"\0backflow-port-{port}")  # an abstract address: it ends with the process
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _reservations.append(reservation)
            return port
        reservation.close()
    msg = "No free port between 20000 and 32000 on 127.0.0.1."
    raise OSError(msg)
