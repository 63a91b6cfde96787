"""Whatever happens to a log's files, each complete line that matches is told exactly once."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sources import Logs
from agent.model.observations import Availability, LogFile, LogLine, Observation
from agent.sources.base import Batch
from agent.sources.logs import source as logs
from agent.sources.logs.source import LogSource

_LINE = (
    "[2026-11-21 06:21:30,{ms:03}] INFO Fetch offset {number} is out of range for partition t-0, resetting offset (F)"
)
_STYLES = {
    # Where the old file goes, and what is followed.
    "numbered": "server.log",
    "numbered, all named": "server.log*",
    "dated": "server.log",
    "renamed among the followed": "*.log",
}


class Writer:
    """A log that is written and rotated, and an agent that follows it and is restarted."""

    def __init__(self, directory: Path, style: str, patch: pytest.MonkeyPatch, *, there: bool) -> None:
        """there: whether there is a file, an empty one, when the agent first looks. Its clock is that of the files."""
        self._clock = 1_795_000_000_000_000_000
        patch.setattr(logs, "now_ms", lambda: self._clock // 1_000_000)
        self.path = directory / "server.log"
        self.style = style
        self.told: list[Observation] = []
        self._lines = self._rotations = 0
        self._unfinished = ""
        self._written: list[str] = []
        self._settings = Logs(paths=(str(directory / _STYLES[style]),))
        if there:
            self._touch()
        self._source = self._start()
        self._source.poll()

    def _start(self) -> LogSource:
        known = {one.subject: one for one in self.told if isinstance(one, LogFile | Availability)}

        def emit(batch: Batch) -> None:
            self.told += batch

        return LogSource("test", self._settings, (), emit, known.values())

    def write(self, text: str) -> None:
        """Append, later than everything before. The first file of all is seen before it can be rotated."""
        if not self._rotations and not self.path.exists():
            self._touch()
            self._source.poll()
        with self.path.open("a") as file:
            file.write(text)
        self._touch()

    def _touch(self) -> None:
        """Change the file later than all that was changed before."""
        self.path.touch()
        self._clock += 1_000_000_000
        os.utime(self.path, ns=(self._clock, self._clock))

    def append(self, count: int) -> None:
        """Finish the line that was begun, and write so many others."""
        for _ in range(count):
            rest, self._unfinished = self._unfinished or self._next(), ""
            self.write(f"{rest}\n")
            self.write("[2026-11-21 06:21:30,000] INFO nothing of interest\n\tat a.b.C(D.java:1)\n")

    def append_half(self) -> None:
        """Begin a line."""
        if not self._unfinished:
            line = self._next()
            self.write(line[:60])
            self._unfinished = line[60:]

    def _next(self) -> str:
        self._lines += 1
        self._written.append(str(self._lines))
        return _LINE.format(ms=self._lines % 1000, number=self._lines)

    def _make_room(self) -> Path:
        """The name for what has been written so far."""
        self._rotations += 1
        if self._unfinished:  # its other half would come into the new file
            self.append(1)
        if self.style.startswith("numbered"):
            kept = sorted(self.path.parent.glob("server.log.*"), key=lambda one: -int(one.suffix[1:]))
            for one in kept:
                one.rename(one.with_suffix(f".{int(one.suffix[1:]) + 1}"))
            return self.path.with_name("server.log.1")
        if self.style == "dated":
            return self.path.with_name(f"server.log.2026-11-{self._rotations:02}")
        return self.path.with_name(f"server-{self._rotations:02}.log")

    def rotate(self, *, create: bool) -> None:
        """Rename the file; the next is made now or with the next line."""
        if self.path.exists():
            self.path.rename(self._make_room())
        if create and self._rotations:
            self._touch()

    def copy_and_truncate(self) -> None:
        """Copy the file and empty it; a copy among the files followed would be a log of its own."""
        if self.path.exists() and self.style != "renamed among the followed":
            copy = self._make_room()
            shutil.copy(self.path, copy)
            os.utime(copy, ns=(self._clock, self._clock))
            os.truncate(self.path, 0)
            self._touch()

    def poll(self) -> None:
        """Let the agent look."""
        self._source.poll()

    def restart(self) -> None:
        """Stop the agent and start it again."""
        self._source.close()
        self._source = self._start()

    def crash(self) -> None:
        """End the agent without a word, and start it again."""
        self._source._paths.close()
        self._source = self._start()

    def check(self) -> None:
        """All is told once when all is read: what was rotated away twice since a look is, once there is a new file."""
        if not self.path.exists():
            self._touch()
        self._source.poll()
        self._source.close()
        told = [one.values["offset"] for one in self.told if isinstance(one, LogLine)]
        unfinished = self._written[-1:] if self._unfinished else []
        assert sorted(told + unfinished, key=int) == self._written


_OPERATIONS: st.SearchStrategy[tuple[str, dict[str, int]]] = st.one_of(
    st.tuples(st.just("append"), st.fixed_dictionaries({"count": st.integers(1, 3)})),
    st.tuples(st.just("rotate"), st.fixed_dictionaries({"create": st.booleans()})),
    st.tuples(st.sampled_from(["append_half", "copy_and_truncate", "poll", "restart", "crash"]), st.just({})),
)


@given(style=st.sampled_from(sorted(_STYLES)), operations=st.lists(_OPERATIONS, max_size=25), there=st.booleans())
def test_each_line_is_told_exactly_once(
    style: str, operations: list[tuple[str, dict[str, int]]], *, there: bool
) -> None:
    """Through any sequence of writing, both ways of rotation, polls, restarts and crashes."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        writer = Writer(Path(directory), style, patch, there=there)
        for name, arguments in operations:
            getattr(writer, name)(**arguments)
        writer.check()
