"""One file of a log, read on from where it was left, and what becomes of a log's files when they are rotated.

Which paths are followed, and what is told of them: logs.py.
"""

import os
import re
import stat
from collections.abc import Container
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from agent.sources.logs.lines import MAX_LINE, begins_entry, codec_of, line_end, lines_end, time_of

BLOCK = 4 * 1024 * 1024
"""How many bytes are read at once. Of a line longer than that the rest is left out."""

HEAD = 1024
"""How many of its first bytes tell a file from others, once there are so many."""

_LOOK_BACK = 65_536
"""How far before the place where reading goes on the entry's beginning is sought, and in a file its first, bytes."""

_UTC = ZoneInfo("UTC")

_ROTATED = re.compile(r"[._-](?:.*\d.*|old|bak)")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".Z")


class Block(NamedTuple):
    """Complete lines. encoding: of each line; ASCII is ASCII in it. broken: how many bytes were none in the file's."""

    lines: bytes
    encoding: str
    broken: int


class LogPart:
    """A file as far as it has been read, whatever its name. It is itself while inode and beginning stay what they were.

    read: the first byte not read yet. header: the first line of the entry that was read last, "" where unknown.
    """

    def __init__(self, encoding: str, inode: int, read: int = 0, head: str = "", head_bytes: int = 0) -> None:
        """A file known from before, not open."""
        self.inode, self.read, self.head, self.head_bytes = inode, read, head, head_bytes
        self.header = ""
        self._encoding = encoding
        self._file: int | None = None
        self._within_line = False

    @classmethod
    def open(cls, path: str, encoding: str) -> "LogPart":
        """The file under the path, to be read from its start. Raises OSError."""
        file = _open(path)
        part = cls(encoding, os.fstat(file).st_ino)
        part._file = file
        part._learn_head()
        return part

    @property
    def is_open(self) -> bool:
        """Whether it can be read."""
        return self._file is not None

    def deleted(self) -> bool:
        """Whether no name leads to it any more."""
        return self._file is not None and not os.fstat(self._file).st_nlink

    def changed_at(self) -> int:
        """When it was last written to, ns; 0 where it is not open."""
        return 0 if self._file is None else os.fstat(self._file).st_mtime_ns

    def begins_at(self) -> int:
        """The time of its first entry, ms, as if it were UTC: of two files of a log the older has the earlier. 0 where
        it has none.
        """
        if self._file is None:
            return 0
        raw = os.pread(self._file, _LOOK_BACK, 0)
        lines = raw.decode(codec_of(self._encoding, raw).name, "replace").split("\n")
        return next((at for line in lines if (at := time_of(line, _UTC, 0)) is not None), 0)

    def close(self) -> None:
        """Let go of the file; it may be attached to again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def attach(self, path: str, *, copied: bool = False) -> bool:
        """Read on in the file under the path where it is this one, or, if asked, a copy of it. Raises OSError."""
        file = _open(path)
        inode = os.fstat(file).st_ino
        if copied == (inode == self.inode) or (copied and not self.head_bytes) or not self._is(file, self.read):
            os.close(file)
            return False
        self.close()
        self._file, self.inode = file, inode
        self._look_back()
        return True

    def whole(self) -> bool:
        """Whether nothing of what was read, or of the beginning, has been cut off or overwritten."""
        return self._file is not None and self._is(self._file, self.read)

    def skip_to_end(self) -> None:
        """Leave out all complete lines that there are."""
        if self._file is not None:
            self.read = os.fstat(self._file).st_size
            codec = codec_of(self._encoding, os.pread(self._file, 4, 0))
            begin = max(self.read - BLOCK, 0) // 4 * 4
            raw = os.pread(self._file, self.read - begin, begin)
            self.read = begin + lines_end(raw, codec)
            self._look_back()

    def next_block(self) -> Block | None:
        """The complete lines that follow, maybe none of them yet; None where there is nothing to be had for now."""
        if self._file is None:
            return None
        raw = os.pread(self._file, BLOCK, self.read)
        if not raw or not self._is(self._file, self.read + len(raw)):
            return None
        self._learn_head()
        codec = codec_of(self._encoding, os.pread(self._file, 4, 0))
        if codec.plain and raw.startswith(b"\0"):  # the hole that a writer leaves which does not know of a truncation
            whole = len(raw)
            raw = raw.lstrip(b"\0")
            self.read += whole - len(raw)
        begin = 0
        if self._within_line:
            begin = line_end(raw, codec)
            if not begin:
                self.read += len(raw) // 4 * 4
                return Block(b"", codec.name, 0) if len(raw) >= 4 else None
            self._within_line = False
        end = lines_end(raw, codec)
        if not end:
            if len(raw) < BLOCK:
                return None if raw else Block(b"", codec.name, 0)
            self._within_line = True
            end = len(raw)
        self.read += end
        lines = raw[begin : min(end, begin + 4 * MAX_LINE) if self._within_line else end]
        if codec.plain:
            return Block(lines, codec.name, 0)
        text = lines.decode(codec.name, "replace")
        return Block(text.encode(errors="replace"), "utf-8", text.count("\ufffd"))

    def _is(self, file: int, size: int) -> bool:
        """Whether the file begins as this one does and is at least so long."""
        return os.fstat(file).st_size >= size and (
            not self.head_bytes or _digest(os.pread(file, self.head_bytes, 0)) == self.head
        )

    def _learn_head(self) -> None:
        """Take more of the beginning into the digest while there is little of it."""
        if self._file is not None and self.head_bytes < HEAD:
            beginning = os.pread(self._file, HEAD, 0)
            if not self.head_bytes or _digest(beginning[: self.head_bytes]) == self.head:
                self.head, self.head_bytes = _digest(beginning), len(beginning)

    def _look_back(self) -> None:
        """Find what stands before the place to read on from: the entry's first line, or the beginning of a line."""
        self.header, self._within_line = "", False
        if self._file is None or not self.read:
            return
        codec = codec_of(self._encoding, os.pread(self._file, 4, 0))
        begin = max(self.read - _LOOK_BACK, 0) // 4 * 4
        raw = os.pread(self._file, self.read - begin, begin)
        self._within_line = not raw.endswith(codec.newline)
        lines = raw.decode(codec.name, "replace").split("\n")[1 if begin else 0 :]
        self.header = next((line for line in reversed(lines) if begins_entry(line)), "").rstrip("\r")


def rotated(path: str) -> list[Path]:
    """The files beside the path that were it once, by name; compressed ones left out; the oldest change first."""
    name = Path(path).name
    found = []
    for one in _siblings(path):
        if one.name.startswith(name) and not is_compressed(one.name) and _ROTATED.fullmatch(one.name[len(name) :]):
            with suppress(OSError):
                found.append((one.stat().st_mtime_ns, one))
    return [one for _, one in sorted(found)]


def is_rotated(path: str, paths: Container[str]) -> bool:
    """Whether the path is by its name a rotated file of one of the paths."""
    begin = len(path) - len(Path(path).name)
    return any(
        path[index] in "._-" and path[:index] in paths and _ROTATED.fullmatch(path[index:])
        for index in range(begin + 1, len(path))
    )


def is_compressed(path: str) -> bool:
    """Whether the file is a compressed one, by its name: what is in it was read before."""
    return path.endswith(_COMPRESSED)


def find_moved(part: LogPart, path: str) -> bool:
    """Attach a file that was renamed to where it is now, beside its old path. False where it is not there."""
    return any(_attached(part, one, copied=False) for one in _siblings(path) if _inode(one) == part.inode)


def find_copy(part: LogPart, path: str) -> bool:
    """Attach a file that was copied and emptied to its copy. False where there is none."""
    return any(_attached(part, one, copied=True) for one in rotated(path))


def _attached(part: LogPart, path: Path, *, copied: bool) -> bool:
    try:
        return part.attach(str(path), copied=copied)
    except OSError:
        return False


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _siblings(path: str) -> list[Path]:
    try:
        return [one for one in Path(path).parent.iterdir() if str(one) != path]
    except OSError:
        return []


def _open(path: str) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "not a regular file")
    return file


def _digest(beginning: bytes) -> str:
    return blake2b(beginning, digest_size=8).hexdigest()
