"""One Spark check as a process: started, listened to, held to its limits, ended with all that it started.

What is asked of it and what becomes of its findings lives in runner.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Literal, NamedTuple

from agent.checks.sessions import kill_session, memory, yield_to_others
from agent.model.config_types import duration_text
from agent.model.findings import Finding, finding_from_json

MOST_FINDINGS = 2_000
"""How many findings of a run are kept; of the others only the number is told."""

_LOG_LINES, _TOLD_LINES, _LOG_CHARACTERS = 60, 15, 300
_LINE_BYTES = 1 << 20
_LOOK_S = 0.5
_REST_S = 10.0  # for what is left in the pipes of a check that has ended
_PROGRESS = "progress: "


class Limits(NamedTuple):
    """What a run may take: time in ms; memory of all its processes together, bytes; None: as much as it likes."""

    time: int | None = None
    memory: int | None = None


class Outcome(NamedTuple):
    """How a run ended. reason: empty unless it failed; then a sentence. log: the last lines of its log.

    findings: what it printed until its end, failed or not, each once. left_out: how many more there were.
    status: the process's exit status, negative where a signal ended it; None where it could not start.
    """

    outcome: Literal["clean", "found", "failed"]
    reason: str = ""
    log: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    left_out: int = 0
    status: int | None = None

    @property
    def account(self) -> str:
        """Why it failed, below it the last lines of its log without stacks of exceptions; empty unless it failed."""
        if not self.reason:
            return ""
        lines = [line for line in self.log if not line[0].isspace()]
        said = bool(lines) and self.reason.endswith(lines[-1])
        return "\n".join([self.reason, *lines[-_TOLD_LINES - said : -1 if said else None]])


def run_check(
    arguments: Sequence[str],
    limits: Limits,
    stop: threading.Event,
    *,
    progress: Callable[[str], None] = lambda _: None,
    found: Callable[[Finding, str], None] = lambda *_: None,
) -> Outcome:
    """Run `python -m spark_checks ARGUMENTS` to its end, or until `stop`; nothing that it started is left afterwards.

    progress: told what the check says of its progress. found: told each finding, as it comes, with its line.
    """
    # A check ends with whoever runs it, even where that is killed (prctl(2), PR_SET_PDEATHSIG), and its JVM with it.
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "spark_checks", *arguments]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return Outcome("failed", f"it could not be started: {error}")
    with process:
        return _Run(process, limits, progress, found).end(stop)


class _Run:
    """A check that runs."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        progress: Callable[[str], None],
        found: Callable[[Finding, str], None],
    ) -> None:
        self._process, self._limits, self._progress, self._found = process, limits, progress, found
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._findings: dict[tuple[str, int], Finding] = {}
        self._left_out = 0
        self._complaint = ""

    def end(self, stop: threading.Event) -> Outcome:
        """Listen until it has ended or must be ended."""
        process, begun = self._process, time.monotonic()
        yield_to_others(process.pid)
        stopped = ""
        try:
            with selectors.DefaultSelector() as selector:
                lines = {
                    selector.register(_pipe(process.stdout), selectors.EVENT_READ).fd: _Lines(self._take_finding),
                    selector.register(_pipe(process.stderr), selectors.EVENT_READ).fd: _Lines(self._take_log),
                }
                looked = begun
                while process.poll() is None and not stopped:
                    _listen(selector, lines, _LOOK_S)
                    if time.monotonic() - looked >= _LOOK_S or stop.is_set():
                        looked = time.monotonic()
                        stopped = self._must_stop(stop, looked - begun)
                kill_session(process.pid)
                ended = time.monotonic()
                while selector.get_map() and time.monotonic() - ended < _REST_S:
                    _listen(selector, lines, _LOOK_S)
        finally:
            kill_session(process.pid)
        return self._outcome(process.wait(), stopped)

    def _must_stop(self, stop: threading.Event, seconds: float) -> str:
        """Why it must not go on, a sentence; empty where it may."""
        time_limit, memory_limit = self._limits
        if stop.is_set():
            return "it was stopped"
        if time_limit is not None and seconds * 1000 >= time_limit:
            return f"it was stopped: it had not ended after {duration_text(time_limit)}"
        used = memory(self._process.pid) if memory_limit is not None else 0
        if memory_limit is not None and used > memory_limit:
            return f"it was stopped: it used {used >> 20:,} MiB, more than the {memory_limit >> 20:,} MiB it may use"
        return ""

    def _take_finding(self, line: str) -> None:
        try:
            finding = finding_from_json(line)
        except ValueError as error:
            self._complaint = self._complaint or f"it printed a line that is no finding ({error})"
            return
        key = finding.key[1:]
        if key in self._findings:
            return
        if len(self._findings) < MOST_FINDINGS:
            self._findings[key] = finding
        else:
            self._left_out += 1
        self._found(finding, line)

    def _take_log(self, line: str) -> None:
        if line.startswith(_PROGRESS):
            self._progress(line.removeprefix(_PROGRESS))
        elif line.strip():
            self._log.append(line.rstrip()[:_LOG_CHARACTERS])

    def _outcome(self, status: int, stopped: str) -> Outcome:
        last = self._log[-1] if self._log else ""
        reason = stopped or self._complaint or _wrong(status, last, found=bool(self._findings))
        findings = tuple(self._findings.values())
        outcome: Literal["clean", "found", "failed"] = "failed" if reason else "found" if findings else "clean"
        return Outcome(outcome, reason, tuple(self._log), findings, self._left_out, status)


def _wrong(status: int, last: str, *, found: bool) -> str:
    """What is wrong with an exit status; empty where it is right. Python itself ends with 1 where a module is amiss.

    last: the last line of its log, which tells why.
    """
    if status == (1 if found else 0):
        return ""
    if status < 0:
        return f"it was killed ({signal.Signals(-status).name})"
    return f"it ended with status {status}{': ' if last else ''}{last}"


class _Lines:
    """Bytes as they come, cut into lines; of a line without end only the beginning is taken."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, received: bytes) -> None:
        """Bytes received; none at the end."""
        *whole, self._rest = (self._rest + received).split(b"\n")
        if self._rest and (not received or len(self._rest) > _LINE_BYTES):
            whole, self._rest = [*whole, self._rest[:_LINE_BYTES]], b""
        for line in whole:
            self._take(line.decode(errors="replace"))


def _listen(selector: selectors.BaseSelector, lines: dict[int, _Lines], seconds: float) -> None:
    """Take what has come, or wait so long for it."""
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
