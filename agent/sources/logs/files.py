"""One file of a log: decoded into lines from where reading stopped, and found again after log rotation.

Which logs are followed is up to `agent.sources.logs.followed_logs`.
"""

import os
import stat
from hashlib import blake2b
from typing import NamedTuple
from zoneinfo import ZoneInfo

from agent.sources.logs.timestamps import begins_entry, parse_timestamp

BLOCK = 4 * 1024 * 1024
"""Bytes read at once. The rest of a longer line is skipped."""

MAX_LINE = 65_536
"""Characters of a line that are searched."""

HEAD = 1024
"""How many of its first bytes identify a file, once it has so many."""

_LOOK_BACK = 65_536
"""Bytes searched for the first line of the current entry before the position, and for a file's first entry."""

_UTC = ZoneInfo("UTC")
_BOMS = {"utf-16": (b"\xfe\xff", "utf-16-be", "utf-16-le"), "utf-32": (b"\x00\x00\xfe\xff", "utf-32-be", "utf-32-le")}


class Codec(NamedTuple):
    """An encoding as a file has it.

    newline: a line's end. is_ascii_compatible: ASCII characters are encoded as themselves, in one byte.
    """

    name: str
    newline: bytes
    is_ascii_compatible: bool


def detect_codec(encoding: str, beginning: bytes) -> Codec:
    """Return the codec of a file with these first bytes; a byte order mark decides for UTF-16 and UTF-32."""
    name = encoding
    if encoding in _BOMS:
        mark, big, little = _BOMS[encoding]
        name = big if beginning.startswith(mark) else little
    newline = "\n".encode(name)
    return Codec(name, newline, newline == b"\n" and "[A]".encode(name) == b"[A]")


def find_last_line_end(raw: bytes, codec: Codec) -> int:
    """Return where the last complete line ends, newline included, or 0. raw begins with a whole character."""
    width = len(codec.newline)
    end = raw.rfind(codec.newline)
    while end >= 0 and end % width:
        end = raw.rfind(codec.newline, 0, end + width - 1)
    return end + width if end >= 0 else 0


def find_first_line_end(raw: bytes, codec: Codec) -> int:
    """Return where the first line ends, newline included, or 0. raw begins with a whole character."""
    width = len(codec.newline)
    end = raw.find(codec.newline)
    while end >= 0 and end % width:
        end = raw.find(codec.newline, end + 1)
    return end + width if end >= 0 else 0


class Block(NamedTuple):
    """Complete lines.

    encoding: of the lines, ASCII-compatible. undecodable: how many bytes are invalid in the file's encoding. size: how
    many bytes of the file were read for them.
    """

    lines: bytes
    encoding: str
    undecodable: int
    size: int


class TailedFile:
    """A file and how far it has been read, whatever its name.

    It is the same file as long as its inode and its first bytes stay the same. position: the first byte not read yet.
    header: the first line of the entry that was read last, "" if unknown.
    """

    def __init__(self, encoding: str, inode: int, position: int = 0, head: str = "", head_bytes: int = 0) -> None:
        """Create a file known from before, not open."""
        self.inode, self.position, self.head, self.head_bytes = inode, position, head, head_bytes
        self.device: int | None = None
        """The file system that the inode is of, once the file was opened."""
        self.header = ""
        self._encoding = encoding
        self._file: int | None = None
        self._is_within_line = False

    @classmethod
    def open(cls, path: str, encoding: str) -> "TailedFile":
        """Open the file at `path`, to be read from its start. Raises OSError."""
        file = _open(path)
        status = os.fstat(file)
        tailed = cls(encoding, status.st_ino)
        tailed._file, tailed.device = file, status.st_dev
        tailed._update_head()
        return tailed

    @property
    def is_open(self) -> bool:
        """Whether it can be read."""
        return self._file is not None

    def is_stale(self) -> bool:
        """Return whether it is open and can no longer be read: NFS returns ESTALE once the server deleted the file."""
        try:
            if self._file is not None:
                os.fstat(self._file)
                os.pread(self._file, 1, 0)
        except OSError:
            return True
        return False

    def is_deleted(self) -> bool:
        """Return whether no path leads to it any more."""
        return self._file is not None and not os.fstat(self._file).st_nlink

    def modified_at(self) -> int:
        """Return when it was last written to, ns; 0 if it is not open."""
        return 0 if self._file is None else os.fstat(self._file).st_mtime_ns

    def begins_at(self) -> int:
        """Return the time of its first entry, ms, read as UTC, or 0 if it has none.

        Of two files of a log, the older one has the earlier time.
        """
        if self._file is None:
            return 0
        raw = os.pread(self._file, _LOOK_BACK, 0)
        lines = raw.decode(detect_codec(self._encoding, raw).name, "replace").split("\n")
        return next((at for line in lines if (at := parse_timestamp(line, _UTC, 0)) is not None), 0)

    def begins_like(self, other: "TailedFile") -> bool:
        """Return whether it has the beginning of another file, and at least what was read of that."""
        return self._file is not None and other.head_bytes > 0 and other._matches(self._file, other.position)  # noqa: SLF001

    def close(self) -> None:
        """Close the file; it may be attached again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def attach(self, path: str, *, copied: bool = False) -> bool:
        """Continue with the file at `path` if it is this one (or, if `copied`, a copy of it). Raises OSError."""
        file = _open(path)
        status = os.fstat(file)
        is_this = status.st_ino == self.inode and self.device in (None, status.st_dev)
        if copied == is_this or (copied and not self.head_bytes) or not self._matches(file, self.position):
            os.close(file)
            return False
        self.close()
        self._file, self.inode, self.device = file, status.st_ino, status.st_dev
        self._look_back()
        return True

    def is_intact(self) -> bool:
        """Return whether it is open and nothing that was read, nor its beginning, was truncated or overwritten."""
        return self._file is not None and self._matches(self._file, self.position)

    def skip_to_end(self) -> None:
        """Skip all complete lines."""
        if self._file is not None:
            self.position = os.fstat(self._file).st_size
            codec = detect_codec(self._encoding, os.pread(self._file, 4, 0))
            begin = max(self.position - BLOCK, 0) // 4 * 4
            raw = os.pread(self._file, self.position - begin, begin)
            self.position = begin + find_last_line_end(raw, codec)
            self._look_back()

    def read_block(self) -> Block | None:
        """Return the next complete lines, possibly none yet; None if there is nothing more to read for now."""
        if self._file is None:
            return None
        raw = os.pread(self._file, BLOCK, self.position)
        if not raw or not self._matches(self._file, self.position + len(raw)):
            return None
        self._update_head()
        start = self.position
        codec = detect_codec(self._encoding, os.pread(self._file, 4, 0))
        if codec.is_ascii_compatible and raw.startswith(b"\0"):  # left by a writer that did not notice a truncation
            size = len(raw)
            raw = raw.lstrip(b"\0")
            self.position += size - len(raw)
        begin = 0
        if self._is_within_line:
            begin = find_first_line_end(raw, codec)
            if not begin:
                self.position += len(raw) // 4 * 4
                return Block(b"", codec.name, 0, self.position - start) if len(raw) >= 4 else None
            self._is_within_line = False
        end = find_last_line_end(raw, codec)
        if not end:
            if len(raw) < BLOCK:
                return None if raw else Block(b"", codec.name, 0, self.position - start)
            self._is_within_line = True
            end = len(raw)
        self.position += end
        lines = raw[begin : min(end, begin + 4 * MAX_LINE) if self._is_within_line else end]
        if codec.is_ascii_compatible:
            return Block(lines, codec.name, 0, self.position - start)
        text = lines.decode(codec.name, "replace")
        return Block(text.encode(errors="replace"), "utf-8", text.count("\ufffd"), self.position - start)

    def _matches(self, file: int, size: int) -> bool:
        """Return whether `file` begins like this one and has at least `size` bytes."""
        return os.fstat(file).st_size >= size and (
            not self.head_bytes or _digest(os.pread(file, self.head_bytes, 0)) == self.head
        )

    def _update_head(self) -> None:
        """Extend the digest of the first bytes while the file is shorter than HEAD."""
        if self._file is not None and self.head_bytes < HEAD:
            beginning = os.pread(self._file, HEAD, 0)
            if not self.head_bytes or _digest(beginning[: self.head_bytes]) == self.head:
                self.head, self.head_bytes = _digest(beginning), len(beginning)

    def _look_back(self) -> None:
        """Find the first line of the current entry, and whether the position is within a line."""
        self.header, self._is_within_line = "", False
        if self._file is None or not self.position:
            return
        codec = detect_codec(self._encoding, os.pread(self._file, 4, 0))
        begin = max(self.position - _LOOK_BACK, 0) // 4 * 4
        raw = os.pread(self._file, self.position - begin, begin)
        self._is_within_line = not raw.endswith(codec.newline)
        lines = raw.decode(codec.name, "replace").split("\n")[1 if begin else 0 :]
        self.header = next((line for line in reversed(lines) if begins_entry(line)), "").rstrip("\r")


def _open(path: str) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "not a regular file")
    return file


def _digest(beginning: bytes) -> str:
    return blake2b(beginning, digest_size=8).hexdigest()
