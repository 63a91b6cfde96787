"""The processes of a check as one: found by their session, measured and ended together. What they do is in process."""

import os
from contextlib import suppress
from pathlib import Path

import psutil


def members(session: int) -> list[psutil.Process]:
    """The living processes of a session: a check's are in one, whatever groups and parents they have.

    PySpark's workers make a process group of their own, and a JVM whose Python died has another parent.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def memory(session: int) -> int:
    """The resident memory of a session's processes together, bytes."""
    total = 0
    for process in members(session):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def kill_session(session: int) -> None:
    """End all processes of a session (SIGKILL) and wait until they are gone."""
    while left := members(session):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def yield_to_others(pid: int) -> None:
    """Let the daemon, whose work is small and urgent, come first; what the process starts inherits it.

    Where memory runs out the kernel takes the check. Nothing of this needs a privilege; a sandbox that refuses it all
    the same keeps no check from running.
    """
    with suppress(psutil.Error, OSError):
        psutil.Process(pid).nice(10)
        psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_IDLE)
        Path(f"/proc/{pid}/oom_score_adj").write_text("500", encoding="ascii")
