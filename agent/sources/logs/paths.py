"""Which files the logs followed are made of, from poll to poll: found by shell patterns, rotated, gone, found again."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from operator import itemgetter
from pathlib import Path

import structlog

from agent.model.observations import LogFile
from agent.sources.logs.files import Block, LogPart, find_copy, find_moved, is_compressed, is_rotated, rotated

RESTING_MS = 600_000
"""How long after its last change a file is let go of until it grows: there may be more of them than may be open."""

log = structlog.get_logger(__name__)


class Log:
    """What has been written under one path: the file there now, and before it what is left to read of older ones."""

    def __init__(self, path: str, part: LogPart, seen_at: int) -> None:
        """seen_at: as of when the part is known, ns."""
        self.path = path
        self.parts = deque([part])
        self.left: LogPart | None = None
        """The file before, read to its end: who writes may not have taken up the new one yet."""
        self._seen_at = seen_at
        self._stat: tuple[int, int, int] | None = None
        self._drained = False

    @property
    def drained(self) -> bool:
        """Whether all that there was when it was last read has been read: what follows has been written since."""
        return self._drained

    @property
    def part(self) -> LogPart:
        """What is to be read first."""
        return self.parts[0]

    def all_parts(self) -> list[LogPart]:
        """The files that it holds."""
        return [*self.parts, *([] if self.left is None else [self.left])]

    def look(self, encoding: str) -> bool:
        """See what stands under the path now. False where nothing does and nothing is left. Raises OSError."""
        current = self.parts[-1]
        try:
            stat = Path(self.path).stat()
        except FileNotFoundError:
            self._stat = None
            if not current.inode:
                return True
            if not current.is_open and not find_moved(current, self.path):
                return False
            if not current.head_bytes:  # see below
                self.parts.extend(self._between(self._seen_at, encoding))
                self.parts = deque(sorted(self.parts, key=LogPart.changed_at))
            return True
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now == self._stat:
            return True
        renamed = stat.st_ino != current.inode
        # One that was empty when it was last seen may have been written, copied and emptied since.
        if renamed or not current.head_bytes or not (current.whole() if current.is_open else current.attach(self.path)):
            self._take_up(LogPart.open(self.path, encoding), encoding, renamed=renamed)
        self._stat, self._seen_at = now, stat.st_mtime_ns
        return True

    def _take_up(self, new: LogPart, encoding: str, *, renamed: bool) -> None:
        """Another file, or the same emptied, stands there: first the rest of the old one, then what was in between."""
        old = self.parts[-1]
        if old.inode:
            moved = renamed and (old.whole() or find_moved(old, self.path))
            found = moved or find_copy(old, self.path)
            if not found:
                old.close()
                self.parts.pop()
                if old.head_bytes:
                    log.warning("a log was cut off or taken away", log=self.path, read=old.read)
            known = found and old.head_bytes
            since = old.changed_at() if known else self._seen_at
            self.parts += self._between(since, encoding, new, begun=old.begins_at() if known else 0)
        self.parts.append(new)

    def _between(self, since: int, encoding: str, *others: LogPart, begun: int = 0) -> list[LogPart]:
        """The rotated files that were written to after that moment, ns, and are held neither here nor among others.

        begun: when the first entry was written of the file that was rotated first, ms, where that is known: who wrote
        it may have gone on after others had come and gone, so that when it was last written to tells nothing.
        """
        held = {one.inode for one in (*self.all_parts(), *others)}
        found: list[tuple[int, LogPart]] = []
        seen_at = self._seen_at
        for one in rotated(self.path):
            with suppress(OSError):
                stat = one.stat()
                if stat.st_mtime_ns <= min(since, seen_at) or stat.st_ino in held:
                    continue
                part = LogPart.open(str(one), encoding)
                begins_at = part.begins_at()
                if stat.st_mtime_ns > since or (begun and begins_at > begun):
                    found.append((begins_at, part))
                    self._seen_at = stat.st_mtime_ns
                else:
                    part.close()
        if all(begins_at for begins_at, _ in found):
            found.sort(key=itemgetter(0))
        return [part for _, part in found]

    def give_up(self, part: LogPart, encoding: str) -> None:
        """Part with a file that stands under another path now."""
        if part is self.left:
            self.left = None
            return
        if part is self.parts[-1]:
            self._stat = None
            try:
                self.parts.append(LogPart.open(self.path, encoding))
            except OSError:
                self.parts.append(LogPart(encoding, 0))  # stands for what will be there
        self.parts.remove(part)

    def next_block(self) -> tuple[LogPart, Block] | None:
        """The lines that follow, and of which file; None where there are none for now."""
        while (block := self.part.next_block()) is None and len(self.parts) > 1:
            done = self.parts.popleft()
            self.part.header = self.part.header or done.header
            if self.left is not None:
                self.left.close()
            self.left = done
        self._drained = block is None
        if block is not None:
            return self.part, block
        if self.left is None:
            return None
        block = self.left.next_block()
        if block is not None:
            return self.left, block
        if self.left.deleted():
            self.left.close()
            self.left = None
        return None

    def rest(self, now: int) -> bool:
        """Let go of a file that nobody writes to. False where it was deleted and nothing stands under the path."""
        if self._drained and len(self.parts) == 1 and self.left is None:
            if self._stat is None and self.part.deleted():
                return False
            if self.part.changed_at() < (now - RESTING_MS) * 1_000_000:
                self.part.close()
        return True

    def close(self) -> None:
        """Let go of all files."""
        for part in self.all_parts():
            part.close()


class LogPaths:
    """The logs that shell patterns find. What was there before the first look ever is not read; what comes later is."""

    def __init__(self, patterns: Sequence[str], encoding: str, known: Iterable[LogFile], *, first: bool) -> None:
        """known: how far files were read before this run. first: whether there was no run before."""
        self._patterns, self._encoding = patterns, encoding
        self._from_end = first
        self._logs = {
            one.log: Log(one.log, LogPart(encoding, one.inode, one.read, one.head, one.head_bytes), one.at * 1_000_000)
            for one in known
        }

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def look(self) -> Mapping[str, str]:
        """See what there is now. Returns what cannot be seen: path or pattern -> why, a sentence."""
        unseen: dict[str, str] = {}
        found: dict[str, None] = {}
        for pattern in self._patterns:
            matching = sorted(glob(pattern, recursive=True))  # noqa: PTH207 - patterns may be absolute
            paths = [path for path in matching if not Path(path).is_dir()]
            found |= dict.fromkeys(paths)
            if not paths:
                unseen[pattern] = f"no file matches {pattern}"
        for one in self:
            if is_rotated(one.path, found):  # there was nothing yet that it could have been
                self._drop(one)
        bases = {*found, *self._logs}
        for path in found:
            if path not in self._logs and not is_compressed(path) and not is_rotated(path, bases):
                try:
                    self._begin(path)
                except OSError as error:
                    unseen[path] = f"{path} cannot be read: {error.strerror}"
        self._from_end = False
        for one in self:
            try:
                if not one.look(self._encoding):
                    self._drop(one)
            except OSError as error:
                unseen[one.path] = f"{one.path} cannot be read: {error.strerror}"
        return unseen

    def rest(self, now: int) -> None:
        """Let go of what needs not be open, and forget what is gone for good. now: ms."""
        for one in self:
            if not one.rest(now):
                self._drop(one)

    def close(self) -> None:
        """Let go of all files."""
        for one in self:
            one.close()

    def _drop(self, one: Log) -> None:
        one.close()
        del self._logs[one.path]

    def _begin(self, path: str) -> None:
        part = LogPart.open(path, self._encoding)
        for other in self:
            for held in other.all_parts():
                if held.inode == part.inode and held.attach(path):
                    part.close()
                    if _inode(other.path) != held.inode:  # else it is the same file by two names
                        other.give_up(held, self._encoding)
                        self._logs[path] = Log(path, held, held.changed_at())
                    return
        if self._from_end:
            part.skip_to_end()
        self._logs[path] = Log(path, part, part.changed_at())


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None
