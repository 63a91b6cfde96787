"""Whatever happens to a log's files, every complete line that matches is emitted exactly once."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sources import Logs
from agent.model.observations.base import Availability, Observation
from agent.model.observations.logs import LogFile, LogLine
from agent.sources.base import Batch
from agent.sources.logs import source as logs
from agent.sources.logs.source import LogSource

_LINE = (
    "[2026-11-21 06:21:30,{ms:03}] INFO Fetch offset {number} is out of range for partition t-0, resetting offset (F)"
)
_STYLES = {
    # How the old file is named -> which files are followed.
    "numbered": "server.log",
    "numbered, all named": "server.log*",
    "dated": "server.log",
    "renamed among the followed": "*.log",
}


class Writer:
    """A log that is written and rotated, and an agent that follows it and is restarted."""

    def __init__(self, directory: Path, style: str, patch: pytest.MonkeyPatch, *, exists: bool) -> None:
        """Start the agent, whose clock is that of the files. exists: the log exists, empty, at its first poll."""
        self._clock = 1_795_000_000_000_000_000
        patch.setattr(logs, "now_ms", lambda: self._clock // 1_000_000)
        self.path = directory / "server.log"
        self.style = style
        self.emitted: list[Observation] = []
        self._lines = self._rotations = 0
        self._unfinished = ""
        self._written: list[str] = []
        self._settings = Logs(paths=(str(directory / _STYLES[style]),))
        if exists:
            self._touch()
        self._source = self._start()
        self._source.poll()

    def _start(self) -> LogSource:
        known = {fact.subject: fact for fact in self.emitted if isinstance(fact, LogFile | Availability)}

        def emit(batch: Batch) -> None:
            self.emitted += batch

        return LogSource("test", self._settings, (), emit, known.values())

    def write(self, text: str) -> None:
        """Append with a later time than everything before. The very first file is polled before it can be rotated."""
        if not self._rotations and not self.path.exists():
            self._touch()
            self._source.poll()
        with self.path.open("a") as file:
            file.write(text)
        self._touch()

    def _touch(self) -> None:
        """Create the file or set its modification time later than any before."""
        self.path.touch()
        self._clock += 1_000_000_000
        os.utime(self.path, ns=(self._clock, self._clock))

    def append(self, count: int) -> None:
        """Write `count` lines, the first of which completes a half-written one."""
        for _ in range(count):
            rest, self._unfinished = self._unfinished or self._next(), ""
            self.write(f"{rest}\n")
            self.write("[2026-11-21 06:21:30,000] INFO nothing of interest\n\tat a.b.C(D.java:1)\n")

    def append_half(self) -> None:
        """Write the first half of a line."""
        if not self._unfinished:
            line = self._next()
            self.write(line[:60])
            self._unfinished = line[60:]

    def _next(self) -> str:
        self._lines += 1
        self._written.append(str(self._lines))
        return _LINE.format(ms=self._lines % 1000, number=self._lines)

    def _rotated_path(self) -> Path:
        """Return the name for what has been written so far."""
        self._rotations += 1
        if self._unfinished:  # its other half would be written to the new file
            self.append(1)
        if self.style.startswith("numbered"):
            rotated = sorted(self.path.parent.glob("server.log.*"), key=lambda file: -int(file.suffix[1:]))
            for file in rotated:
                file.rename(file.with_suffix(f".{int(file.suffix[1:]) + 1}"))
            return self.path.with_name("server.log.1")
        if self.style == "dated":
            return self.path.with_name(f"server.log.2026-11-{self._rotations:02}")
        return self.path.with_name(f"server-{self._rotations:02}.log")

    def rotate(self, *, create: bool) -> None:
        """Rename the file; the next one is created now or with the next line."""
        if self.path.exists():
            self.path.rename(self._rotated_path())
        if create and self._rotations:
            self._touch()

    def copy_and_truncate(self) -> None:
        """Copy and truncate the file; a copy among the followed files would be a log of its own."""
        if self.path.exists() and self.style != "renamed among the followed":
            copy = self._rotated_path()
            shutil.copy(self.path, copy)
            os.utime(copy, ns=(self._clock, self._clock))
            os.truncate(self.path, 0)
            self._touch()

    def poll(self) -> None:
        """Let the agent poll."""
        self._source.poll()

    def restart(self) -> None:
        """Stop the agent and start it again."""
        self._source.close()
        self._source = self._start()

    def crash(self) -> None:
        """Kill the agent and start it again."""
        self._source._logs.close()
        self._source = self._start()

    def check(self) -> None:
        """Assert that every line was emitted once; a file rotated twice between polls waits for a new file."""
        if not self.path.exists():
            self._touch()
        self._source.poll()
        self._source.close()
        offsets = [fact.values["offset"] for fact in self.emitted if isinstance(fact, LogLine)]
        unfinished = self._written[-1:] if self._unfinished else []
        assert sorted(offsets + unfinished, key=int) == self._written


_OPERATIONS: st.SearchStrategy[tuple[str, dict[str, int]]] = st.one_of(
    st.tuples(st.just("append"), st.fixed_dictionaries({"count": st.integers(1, 3)})),
    st.tuples(st.just("rotate"), st.fixed_dictionaries({"create": st.booleans()})),
    st.tuples(st.sampled_from(["append_half", "copy_and_truncate", "poll", "restart", "crash"]), st.just({})),
)


@given(style=st.sampled_from(sorted(_STYLES)), operations=st.lists(_OPERATIONS, max_size=25), exists=st.booleans())
def test_every_line_is_emitted_exactly_once(
    style: str, operations: list[tuple[str, dict[str, int]]], *, exists: bool
) -> None:
    """Through any sequence of writing, both ways of rotation, polls, restarts and crashes."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        writer = Writer(Path(directory), style, patch, exists=exists)
        for name, arguments in operations:
            getattr(writer, name)(**arguments)
        writer.check()


@pytest.mark.parametrize("style", ["numbered", "dated"])
@pytest.mark.parametrize("stop", ["restart", "crash"])
def test_copy_is_read_if_the_truncated_file_was_renamed(
    style: str, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied, truncated and renamed between polls, restarted before a new file exists: only the copy has line 2."""
    writer = Writer(tmp_path, style, monkeypatch, exists=True)
    writer.append(1)
    writer.poll()
    writer.append(1)
    writer.copy_and_truncate()
    writer.rotate(create=False)
    getattr(writer, stop)()
    writer.poll()
    writer.check()


def test_copy_is_read_if_the_truncated_file_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a restart: the agent still has the truncated file open."""
    writer = Writer(tmp_path, "dated", monkeypatch, exists=True)
    writer.append(1)
    writer.poll()
    writer.append(1)
    writer.copy_and_truncate()
    writer.path.unlink()
    writer.poll()
    writer.check()
