"""The logs found by shell patterns, and the files that each consists of across rotation, truncation and deletion."""

import errno
import os
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import escape, glob
from operator import itemgetter
from pathlib import Path

import structlog

from agent.model.observations.logs import LogFile
from agent.sources.logs.files import Block, TailedFile
from agent.sources.logs.rotation import (
    find_copy,
    find_renamed,
    get_inode,
    is_compressed,
    is_rotated,
    list_rotated,
)

IDLE_MS = 600_000
"""How long after its last change a file is closed until it grows: there may be more files than may be open."""

_MAX_DIRECTORIES = 100_000
"""How many directories `**` searches."""

_RESERVED_DESCRIPTORS = 200
"""File descriptors that logs leave for connections, the journal and the database."""

log = structlog.get_logger(__name__)


def find_paths(pattern: str) -> Iterator[str]:
    """Yield the paths that a shell pattern matches; `**` matches directories at any depth, each of them once.

    glob() follows symbolic links that lead back to a directory above them until the path is too long: two of them
    make a billion paths.
    """
    head, found, rest = pattern.partition("**/")
    if not found or (head and not head.endswith("/")):
        yield from glob(pattern)  # noqa: PTH207 - patterns may be absolute
        return
    for base in glob(head) if head else [""]:  # noqa: PTH207
        for directory in _walk(base):
            yield from find_paths(f"{escape(directory)}{rest}")


def is_path_of(pattern: str, path: str) -> bool:
    """Return whether a shell pattern finds a path if there is such a file."""
    return _match_components([part for part in pattern.split("/") if part], [part for part in path.split("/") if part])


def _match_components(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**" and len(pattern) > 1:
        return any(_match_components(pattern[1:], path[index:]) for index in range(len(path)))
    return fnmatchcase(path[0], pattern[0]) and _match_components(pattern[1:], path[1:])


def _walk(base: str) -> Iterator[str]:
    """Yield a directory and those below it, with a slash at the end, each directory once, up to _MAX_DIRECTORIES."""
    seen: set[tuple[int, int]] = set()
    waiting = deque([base])
    while waiting and len(seen) < _MAX_DIRECTORIES:
        directory = waiting.popleft()
        try:
            status = Path(directory or ".").stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(directory or ".") as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        except OSError:
            continue
        yield directory
        waiting += [f"{directory}{name}/" for name in names]


def _free_descriptors() -> int:
    """Return how many more files the logs may open: some descriptors are left for the rest of the agent."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit - _RESERVED_DESCRIPTORS - len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not used


class FollowedLog:
    """What is written under one path: the current file, and older files that are not read to their end yet."""

    def __init__(self, path: str, file: TailedFile, seen_at: int) -> None:
        """Follow a log from `file` on. seen_at: as of when the file is known, ns."""
        self.path = path
        self.files = deque([file])
        self.previous: TailedFile | None = None
        """The file before, read to its end: its writer may not have switched to the new one yet."""
        self._seen_at = seen_at
        self._stat: tuple[int, int, int] | None = None
        self._is_drained = False

    @property
    def is_drained(self) -> bool:
        """Whether the last read reached the end, so that what follows was written since."""
        return self._is_drained

    @property
    def file(self) -> TailedFile:
        """The file to read first."""
        return self.files[0]

    @property
    def resumed_from(self) -> TailedFile:
        """The file from which a later run goes on: the one before, as long as nothing is in the new one."""
        return self.file if self.file.head_bytes or self.previous is None else self.previous

    def all_files(self) -> list[TailedFile]:
        """Return all files it holds, the previous one included."""
        return [*self.files, *([] if self.previous is None else [self.previous])]

    def refresh(self, encoding: str) -> bool:
        """Find out which file is at the path now. Raises OSError.

        Returns False if there is none and the file known from before is not found either.
        """
        self._close_stale()
        current = self.files[-1]
        try:
            stat = Path(self.path).stat()
        except FileNotFoundError:
            self._stat = None
            return not current.inode or self._refresh_missing(current, encoding)
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now == self._stat:
            return True
        is_other = stat.st_ino != current.inode
        # A file that was empty when last seen may have been written, copied and truncated since.
        is_same = not is_other and current.head_bytes
        if not is_same or not (current.is_intact() if current.is_open else current.attach(self.path)):
            self._switch_to(TailedFile.open(self.path, encoding), encoding, is_other=is_other)
        self._stat, self._seen_at = now, stat.st_mtime_ns
        return True

    def _close_stale(self) -> None:
        """Close files that can no longer be read; the current one is opened again, if it is still there."""
        for file in self.all_files():
            if file.is_stale():
                log.warning("log_file_stale", log=self.path, read_bytes=file.position)
                file.close()
                self._stat = None

    def _refresh_missing(self, current: TailedFile, encoding: str) -> bool:
        """Find the current file while none is at the path; return False if it is not found."""
        if not current.is_intact():
            # It may have been copied and truncated before it was renamed: then only the copy holds what is unread.
            is_found = find_renamed(current, self.path) or find_copy(current, self.path)
            if not is_found and not current.is_open:
                return False
        if not current.head_bytes:  # see refresh()
            self.files.extend(self._open_rotated(self._seen_at, encoding))
            self.files = deque(sorted(self.files, key=TailedFile.modified_at))
        return True

    def _switch_to(self, new: TailedFile, encoding: str, *, is_other: bool) -> None:
        """Add a new or truncated file after the rest of the old one and those rotated in between."""
        old = self.files[-1]
        if old.inode:
            is_renamed = is_other and (old.is_intact() or find_renamed(old, self.path))
            is_found = is_renamed or find_copy(old, self.path)
            if not is_found:
                old.close()
                self.files.pop()
                if old.head_bytes:
                    log.warning("log_file_lost", log=self.path, read_bytes=old.position)
            is_known = is_found and old.head_bytes
            since = old.modified_at() if is_known else self._seen_at
            before = old if is_known else self.previous
            self.files += self._open_rotated(since, encoding, new, before=before)
        self.files.append(new)

    def _open_rotated(
        self, since: int, encoding: str, *others: TailedFile, before: TailedFile | None = None
    ) -> list[TailedFile]:
        """Open the rotated files that were written to after `since`, ns, and are held neither here nor in `others`.

        before: the file that was rotated first, if known. Its writer may have continued after later files were rotated,
        so that its modification time is no bound: they begin later. Copies of it are left out.
        """
        held = {file.inode for file in (*self.all_files(), *others)}
        begun = 0 if before is None else before.begins_at()
        found: list[tuple[int, TailedFile]] = []
        seen_at = self._seen_at
        for path in list_rotated(self.path):
            with suppress(OSError):
                stat = path.stat()
                if stat.st_mtime_ns <= min(since, seen_at) or stat.st_ino in held:
                    continue
                file = TailedFile.open(str(path), encoding)
                begins_at = file.begins_at()
                is_later = stat.st_mtime_ns > since or (begun and begins_at > begun)
                is_copy = before is not None and begun and begins_at == begun and file.begins_like(before)
                if is_later and not is_copy:
                    found.append((begins_at, file))
                    held.add(file.inode)
                    self._seen_at = stat.st_mtime_ns
                else:
                    file.close()
        if all(begins_at for begins_at, _ in found):
            found.sort(key=itemgetter(0))
        return [file for _, file in found]

    def release(self, file: TailedFile, encoding: str) -> None:
        """Hand over a file that is at another path now."""
        if file is self.previous:
            self.previous = None
            return
        if file is self.files[-1]:
            self._stat = None
            try:
                self.files.append(TailedFile.open(self.path, encoding))
            except OSError:
                self.files.append(TailedFile(encoding, 0))  # a placeholder for the next file at the path
        self.files.remove(file)

    def read_block(self) -> tuple[TailedFile, Block] | None:
        """Return the next lines and their file, or None if there are none for now."""
        while (block := self.file.read_block()) is None and len(self.files) > 1:
            finished = self.files.popleft()
            self.file.header = self.file.header or finished.header
            if self.previous is not None:
                self.previous.close()
            self.previous = finished
        self._is_drained = block is None
        if block is not None:
            return self.file, block
        if self.previous is None:
            return None
        block = self.previous.read_block()
        if block is not None:
            return self.previous, block
        if self.previous.is_deleted():
            self.previous.close()
            self.previous = None
        return None

    def close_idle(self, now: int) -> bool:
        """Close files that are no longer written to; return False if the log was deleted. now: ms."""
        idle_since = (now - IDLE_MS) * 1_000_000
        if self.previous is not None and self.file.position and self.previous.modified_at() < idle_since:
            self.previous.close()  # its writer has switched
            self.previous = None
        if self._is_drained and len(self.files) == 1 and self.previous is None:
            if self._stat is None and self.file.is_deleted():
                return False
            if self.file.modified_at() < idle_since:
                self.file.close()
        return True

    def close(self) -> None:
        """Close all files."""
        for file in self.all_files():
            file.close()


_TOO_MANY_FILES = (
    "not all log files can be followed: the agent may not open more files; raise LimitNOFILE of its unit (ulimit -n)"
)


def describe_missing(pattern: str) -> str:
    """Return why a pattern is unavailable that no file matches."""
    return f"no file matches {pattern}"


def describe_refusal(path: str, reason: str | None) -> str:
    """Return why a file cannot be followed."""
    return f"cannot read {path}: {reason}"


def was_refused(path: str, unavailable: str) -> bool:
    """Return whether a file could not be followed, by what was unavailable; if that leaves files out, it is unknown."""
    if describe_refusal(path, "") in unavailable:
        return describe_refusal(path, os.strerror(errno.ENOENT)) not in unavailable
    return unavailable.endswith(" more") or _TOO_MANY_FILES in unavailable


class FollowedLogs:
    """The logs that shell patterns find.

    Lines that were there before the first poll of their pattern are skipped, in files that cannot be followed yet until
    they can; all later ones are read.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        encoding: str,
        known: Iterable[LogFile],
        *,
        is_first_run: bool,
        is_refused: Callable[[str], bool] = lambda _: False,
        is_missing: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Continue from `known`: how far files were read before this run, except those that no pattern finds any more.

        is_first_run: whether no file has ever been looked for; if any is known, the patterns that find none are new.
        is_refused: whether a file that is not known could not be followed when the last run ended. is_missing: whether
        a pattern had no file then.
        """
        self._patterns, self._encoding = patterns, encoding
        known = list(known)
        self._new_patterns = {
            pattern
            for pattern in patterns
            if (known or is_first_run)
            and not is_missing(pattern)
            and not any(is_path_of(pattern, known_file.log) for known_file in known)
        }
        self._logs = {
            known_file.log: FollowedLog(
                known_file.log,
                TailedFile(encoding, known_file.inode, known_file.read, known_file.head, known_file.head_bytes),
                known_file.at * 1_000_000,
            )
            for known_file in known
            if any(is_path_of(pattern, known_file.log) for pattern in patterns)
        }
        self._is_refused = is_refused
        self._refused: set[str] = set()
        """Files whose lines so far are to be skipped, but which cannot be followed yet."""

    def __iter__(self) -> Iterator[FollowedLog]:
        return iter(list(self._logs.values()))

    def refresh(self) -> Mapping[str, str]:
        """Find the current files; return why paths or patterns are unavailable."""
        unavailable: dict[str, str] = {}
        found: dict[str, bool] = {}  # whether only new patterns find it
        for pattern in self._patterns:
            matching = sorted(find_paths(pattern))
            # Unlike Path.is_dir(), this raises nothing if a link leads to what may not be looked at.
            paths = [path for path in matching if not os.path.isdir(path)]  # noqa: PTH112
            for path in paths:
                found[path] = found.get(path, True) and pattern in self._new_patterns
            if not paths:
                unavailable[pattern] = describe_missing(pattern)
        for followed in self:
            if is_rotated(followed.path, found):  # the log it belongs to was not there yet
                self._drop(followed)
        bases = {*found, *self._logs}
        free = _free_descriptors()
        for path, is_new in found.items():
            if path not in self._logs and not is_compressed(path) and not is_rotated(path, bases):
                free -= 1
                if is_new or self._is_refused(path):
                    self._refused.add(path)
                if free < 0:
                    unavailable[""] = _TOO_MANY_FILES
                    continue
                try:
                    self._follow(path, skip_existing=path in self._refused)
                except OSError as error:
                    unavailable[path] = describe_refusal(path, error.strerror)
                    if isinstance(error, FileNotFoundError):  # a link to a file that will be new
                        self._refused.discard(path)
                self._refused -= self._logs.keys()
        self._refused &= found.keys()
        self._new_patterns, self._is_refused = set(), lambda _: False
        for followed in self:
            try:
                if not followed.refresh(self._encoding):
                    self._drop(followed)
            except OSError as error:
                unavailable[followed.path] = describe_refusal(followed.path, error.strerror)
        return unavailable

    def close_idle(self, now: int) -> None:
        """Close files that are no longer written to, and forget logs that were deleted. now: ms."""
        for followed in self:
            if not followed.close_idle(now):
                self._drop(followed)

    def close(self) -> None:
        """Close all files."""
        for followed in self:
            followed.close()

    def _drop(self, followed: FollowedLog) -> None:
        followed.close()
        del self._logs[followed.path]

    def _follow(self, path: str, *, skip_existing: bool) -> None:
        file = TailedFile.open(path, self._encoding)
        for other in self:
            for held in other.all_files():
                if held.inode == file.inode and held.attach(path):
                    file.close()
                    if get_inode(other.path) != held.inode:  # else two paths lead to the same file
                        other.release(held, self._encoding)
                        self._logs[path] = FollowedLog(path, held, held.modified_at())
                    return
        if skip_existing:
            file.skip_to_end()
        self._logs[path] = FollowedLog(path, file, file.modified_at())
