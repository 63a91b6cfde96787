"""What a process and its descendants need, as /proc shows it."""

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_MIB = 1 << 20
_PAGE = resource.getpagesize()


class Need(NamedTuple):
    """memory: resident, MiB; cpu: used since their starts, s."""

    memory: float
    cpu: float


def needs(pid: int) -> dict[int, Need]:
    """Return what the process and each of its descendants holds and has used, by pid."""
    children: dict[int, list[int]] = {}
    found: dict[int, Need] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(path.name))
        found[int(path.name)] = Need(int(fields[21]) * _PAGE / _MIB, (int(fields[11]) + int(fields[12])) / 100)
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return {member: found[member] for member in family if member in found}


def need(pid: int) -> Need:
    """Return what the process and its descendants hold and have used together."""
    members = needs(pid).values()
    return Need(sum(member.memory for member in members), sum(member.cpu for member in members))


@contextmanager
def often(look: Callable[[], None]) -> Iterator[None]:
    """Call a function four times a second while the body runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
