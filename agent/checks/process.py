"""The process of a Spark check: started, read, held to its limits, and ended with all processes it started."""

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal, NamedTuple, Self

import psutil
import structlog

from agent.config.child_processes import SPARK, python_environment, python_module
from agent.model.check_protocol import ENDED, PROGRESS
from agent.model.config_types import duration_text
from agent.model.findings import Finding, finding_from_json

MOST_FINDINGS = 2_000
"""How many findings of a run are kept; further ones are only counted."""

_LOG_LINES, _SUMMARY_LINES, _LINE_CHARACTERS = 60, 15, 300
_LINE_BYTES = 1 << 20
_POLL_S = 0.5
_DRAIN_S = 10.0  # for what is left in the pipes of a check that has ended
_STOP_S = 2.0  # for Spark to stop by itself
_KILL_S = 10.0  # for killed processes to end

log = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """Limits of a run. time: ms. memory: bytes, of all its processes together. None: no limit."""

    time: int | None = None
    memory: int | None = None


class Outcome(NamedTuple):
    """How a run ended.

    reason: a sentence if it failed, else empty. log: the last lines of its log.
    findings: the distinct findings that it printed, even if it failed. left_out: how many more there were.
    status: the exit status, negative if a signal ended it; None if it could not start.
    """

    outcome: Literal["clean", "found", "failed"]
    reason: str = ""
    log: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    left_out: int = 0
    status: int | None = None

    @classmethod
    def not_started(cls, error: OSError) -> Self:
        """Return the outcome of a check whose process could not be started."""
        return cls("failed", f"it could not be started: {error}")

    @property
    def failure(self) -> str:
        """The reason with the last lines of the log, without stack traces, below it; empty unless the run failed."""
        if not self.reason:
            return ""
        lines = [line for line in self.log if not line[0].isspace()]
        is_repeated = bool(lines) and self.reason.endswith(lines[-1])
        return "\n".join([self.reason, *lines[-_SUMMARY_LINES - is_repeated : -1 if is_repeated else None]])


def run_check(
    arguments: Sequence[str],
    limits: Limits,
    stop: threading.Event,
    *,
    variables: tuple[str, ...] = (),
    configured: Mapping[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    on_finding: Callable[[Finding, str], None] = lambda *_: None,
) -> Outcome:
    """Run `python -m spark_checks ARGUMENTS` until it ends or `stop` is set, and end all processes it started.

    variables: environment variables that it inherits beside those that every check does. configured: others that it
    gets, such as the credentials of an archive.
    on_progress: called with each progress text. on_finding: called with each finding and its line.
    """
    try:
        process = CheckProcess(python_module("spark_checks", *arguments), variables, configured)
    except OSError as error:
        return Outcome.not_started(error)
    with process:
        return process.wait(limits, stop, on_progress, on_finding)


class CheckProcess:
    """A process that runs one check or, as a server, one after the other; its lower priority is that of all it starts.

    It ends with the thread that started it, even if that is killed (prctl(2), PR_SET_PDEATHSIG), and its JVM with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: tuple[str, ...],
        configured: Mapping[str, str] | None = None,
        *,
        is_server: bool = False,
    ) -> None:
        """Start it with the environment variables of `run_check`. Raises OSError."""
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            env={**python_environment((*SPARK, *variables)), **(configured or {})},
            stdin=subprocess.PIPE if is_server else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        _lower_priority(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        kill_session(process.pid)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with suppress(BrokenPipeError):  # a request that an ended server has not read
                pipe.close()
        process.poll()  # unlike wait() no risk to hang if it could not be killed

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def request(self, arguments: Sequence[str]) -> None:
        """Pass a check's arguments to a server. If that has ended, `wait` returns the reason."""
        requests = _pipe(self._process.stdin)
        with suppress(BrokenPipeError):
            requests.write(json.dumps(arguments).encode() + b"\n")
            requests.flush()

    def wait(
        self,
        limits: Limits,
        stop: threading.Event,
        on_progress: Callable[[str], None] = lambda _: None,
        on_finding: Callable[[Finding, str], None] = lambda *_: None,
    ) -> Outcome:
        """Read its output until the check has ended, or end the process if the check exceeds a limit."""
        return _Run(self._process, limits, on_progress, on_finding).wait(stop)

    def close(self) -> None:
        """End a server that runs no check; let it stop Spark, which frees what it has on a cluster."""
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.__exit__()


class _Run:
    """A running check."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        on_progress: Callable[[str], None],
        on_finding: Callable[[Finding, str], None],
    ) -> None:
        self._process, self._limits, self._on_progress, self._on_finding = process, limits, on_progress, on_finding
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._findings: dict[tuple[str, int], Finding] = {}
        self._left_out = 0
        self._output_error = ""
        self._status: int | None = None
        self._has_whole_log = False

    def wait(self, stop: threading.Event) -> Outcome:
        """Read its output until it has ended or exceeds a limit."""
        process, checked = self._process, time.monotonic()
        stopped, started = "", checked
        with selectors.DefaultSelector() as selector:
            lines = {
                selector.register(_pipe(process.stdout), selectors.EVENT_READ).fd: _Lines(self._take_output),
                selector.register(_pipe(process.stderr), selectors.EVENT_READ).fd: _Lines(self._take_log),
            }
            while process.poll() is None and not stopped:
                _read(selector, lines, _POLL_S)
                if self._status is not None and self._has_whole_log:
                    return self._outcome(self._status, "")
                if time.monotonic() - checked >= _POLL_S or stop.is_set():
                    checked = time.monotonic()
                    stopped = self._reason_to_stop(stop, checked - started)
            kill_session(process.pid)
            ended = time.monotonic()
            while selector.get_map() and time.monotonic() - ended < _DRAIN_S:
                _read(selector, lines, _POLL_S)
        status = process.poll()
        return self._outcome(-signal.SIGKILL if status is None else status, stopped)

    def _reason_to_stop(self, stop: threading.Event, seconds: float) -> str:
        time_limit, memory_limit = self._limits
        if stop.is_set():
            return "it was stopped"
        if time_limit is not None and seconds * 1000 >= time_limit:
            return f"it was stopped: it had not ended after {duration_text(time_limit)}"
        if memory_limit is not None and (used := session_memory(self._process.pid, memory_limit)) > memory_limit:
            return f"it was stopped: it used {used >> 20:,} MiB, more than its limit of {memory_limit >> 20:,} MiB"
        return ""

    def _take_output(self, line: str) -> None:
        """Take a finding, or the line with which a server ends the output of a check."""
        if line.startswith(ENDED):
            self._status = int(line.removeprefix(ENDED))
            return
        try:
            finding = finding_from_json(line)
        except ValueError as error:
            self._output_error = self._output_error or f"it printed a line that is not a finding ({error})"
            return
        key = finding.key[1:]
        if key in self._findings:
            return
        if len(self._findings) < MOST_FINDINGS:
            self._findings[key] = finding
        else:
            self._left_out += 1
        self._on_finding(finding, line)

    def _take_log(self, line: str) -> None:
        if line.startswith(PROGRESS):
            self._on_progress(line.removeprefix(PROGRESS))
        elif line.startswith(ENDED):
            self._has_whole_log = True
        elif line.strip():
            self._log.append(line.rstrip()[:_LINE_CHARACTERS])

    def _outcome(self, status: int, stopped: str) -> Outcome:
        last = self._log[-1] if self._log else ""
        reason = stopped or self._output_error or _failure(status, last, has_findings=bool(self._findings))
        findings = tuple(self._findings.values())
        outcome: Literal["clean", "found", "failed"] = "failed" if reason else "found" if findings else "clean"
        return Outcome(outcome, reason, tuple(self._log), findings, self._left_out, status)


def _failure(status: int, last_line: str, *, has_findings: bool) -> str:
    """Return why an exit status means failure, or "".

    Status 1 without findings is a failure too: Python ends with it if a module cannot be imported.
    """
    if status == (1 if has_findings else 0):
        return ""
    if status < 0:
        return f"it was killed ({signal.Signals(-status).name})"
    return f"it ended with status {status}{': ' if last_line else ''}{last_line}"


class _Lines:
    """Splits bytes into lines as they arrive; of an endless line only the beginning is taken."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, received: bytes) -> None:
        """Take the bytes received; empty at the end."""
        *whole, self._rest = (self._rest + received).split(b"\n")
        if self._rest and (not received or len(self._rest) > _LINE_BYTES):
            whole, self._rest = [*whole, self._rest[:_LINE_BYTES]], b""
        for line in whole:
            self._take(line.decode(errors="replace"))


def _read(selector: selectors.BaseSelector, lines: dict[int, _Lines], seconds: float) -> None:
    """Read what has arrived, or wait up to `seconds` for it."""
    if not selector.get_map():
        time.sleep(seconds)
    for key, _ in selector.select(seconds):
        received = os.read(key.fd, 1 << 16)
        lines[key.fd].feed(received)
        if not received:
            selector.unregister(key.fileobj)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        msg = "the check was started without a pipe"
        raise RuntimeError(msg)
    return pipe


def session_processes(session: int) -> list[psutil.Process]:
    """Return the living processes of a session.

    All processes of a check are in one session, whatever their groups and parents: PySpark's workers make a process
    group of their own, and a JVM whose Python process died has another parent.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def session_memory(session: int, limit: int) -> int:
    """Return the memory of all processes of a session, bytes; more than the limit only if they really use that.

    What Spark's forked workers share is then counted once (PSS in proc_pid_smaps(5)), which takes longer to find out.
    """
    processes = session_processes(session)
    resident = sum(map(_resident_memory, processes))
    return resident if resident <= limit else sum(map(_proportional_memory, processes))


def _resident_memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _proportional_memory(process: psutil.Process) -> int:
    """Return its memory with its part of what it shares; its resident memory if the system does not show that."""
    try:
        memory = process.memory_full_info()
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        return _resident_memory(process)
    return int(getattr(memory, "pss", memory.rss))


def kill_session(session: int) -> None:
    """Kill all processes of a session and wait until they have ended, for a while: one may hang in the kernel."""
    deadline = time.monotonic() + _KILL_S
    while processes := session_processes(session):
        left = deadline - time.monotonic()
        if left <= 0:
            log.error("check_processes_not_killed", pids=[process.pid for process in processes])
            return
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=min(1, left))


def _lower_priority(pid: int) -> None:
    """Lower the CPU, disk and memory priority of a process and its future children below the daemon's.

    No step needs a privilege; if a sandbox refuses one, the check runs without it.
    """
    with suppress(psutil.Error, OSError):
        psutil.Process(pid).nice(10)
        psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_IDLE)
        Path(f"/proc/{pid}/oom_score_adj").write_text("500", encoding="ascii")
