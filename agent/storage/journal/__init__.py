"""The journal: observations written as they happen, and read back in the order in which they were taken.

Every observation has a position that increases across the whole journal. `segments` has the files, `columns` the Arrow
columns.
"""

import fcntl
import heapq
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO

import pyarrow as pa
import structlog

from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.storage.journal.columns import MISFITS, Columns
from agent.storage.journal.segments import (
    DAY_MS,
    FOREVER,
    UNREADABLE,
    Segment,
    Stream,
    Unreadable,
    batches,
    day_of,
    find,
    folders,
    recover,
    seal,
)

SEGMENT_BYTES = 64 << 20
SEGMENT_MS = 3_600_000
_LATE_MS = 300_000

_COLUMNS = {name: Columns(kind) for name, kind in KINDS.items()}
_NAMES = {kind: name for name, kind in KINDS.items()}

MAX_WAITING = 200_000
"""How many observations wait in memory while the journal cannot be written."""

VERSION = 1
"""Of the journal's format: files of a higher one cannot be read."""

_VERSION_FILE = "version"


class JournalError(Exception):
    """The journal cannot be written; the message says why."""


class JournalRefusedError(JournalError):
    """The journal must not be written: another agent does, or a newer one did."""


def warn(path: Path, reason: str) -> None:
    """Log what could not be read or written."""
    structlog.get_logger(__name__).warning("journal_left_out", path=str(path), reason=reason)


def entries(
    directory: Path,
    since: int | None = None,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    unreadable: Unreadable = warn,
) -> Iterator[tuple[int, Observation]]:
    """Return positions and observations with since <= at < until (ms), in order of position, even during writes.

    Only the requested dates are read, a batch of each kind at a time. What cannot be read is passed to `unreadable` and
    skipped.
    """
    since, until = -FOREVER if since is None else since, FOREVER if until is None else until
    days = range(since // DAY_MS, (until - 1) // DAY_MS + 1)
    # Consecutive segments share a lane, so that hardly more files are open at once than there are kinds.
    lanes: list[list[Segment]] = []
    for segment in find(directory, _COLUMNS if kinds is None else kinds, days):
        lane = next((lane for lane in lanes if lane[-1].last is not None and lane[-1].last < segment.first), None)
        if lane is None:
            lanes.append([segment])
        else:
            lane.append(segment)

    def rows(segment: Segment) -> Iterator[tuple[int, Observation]]:
        try:
            for batch in batches(segment, since, until):
                for entry in _readable_rows(segment, batch, unreadable):
                    if since <= entry[1].at < until:
                        yield entry
        except UNREADABLE as error:
            unreadable(segment.path, str(error))

    return heapq.merge(*(chain.from_iterable(map(rows, lane)) for lane in lanes), key=itemgetter(0))


def read(
    directory: Path,
    since: int | None = None,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    unreadable: Unreadable = warn,
) -> Iterator[Observation]:
    """Return the observations of `entries` without their positions."""
    return map(itemgetter(1), entries(directory, since, until, kinds, unreadable))


def last_at(directory: Path, until: int = FOREVER) -> int | None:
    """Return the time of the newest tick before `until` (ms): until then the writer was alive.

    Of the newest observation if there is no tick, as after a kill in the first second; None in an empty journal.
    """
    for kinds in (["tick"], None):
        named = [folder for folder in folders(directory) if kinds is None or folder.parent.name in kinds]
        for day in sorted({day_of(folder) for folder in named if day_of(folder) * DAY_MS < until}, reverse=True):
            observations = read(directory, day * DAY_MS, min(until, (day + 1) * DAY_MS), kinds)
            newest = max((observation.at for observation in observations), default=None)
            if newest is not None:
                return newest
    return None


def _readable_rows(
    segment: Segment, batch: pa.RecordBatch, unreadable: Unreadable
) -> Iterable[tuple[int, Observation]]:
    """Return the rows of a batch that can be read; the others are reported as one."""
    columns = _COLUMNS[segment.kind]
    try:
        return columns.rows(batch)
    except MISFITS:
        rows: list[tuple[int, Observation]] = []
        reasons = []
        for number in range(batch.num_rows):
            try:
                rows += columns.rows(batch.slice(number, 1))
            except MISFITS as error:
                reasons.append(str(error))
        unreadable(segment.path, f"{len(reasons)} of {batch.num_rows} rows cannot be read; the first: {reasons[0]}")
        return rows


class Journal:
    """The journal's only writer, for one thread. It recovers what a killed writer left.

    position: that of the next observation. What cannot be read or written is passed to `unreadable`.
    """

    def __init__(
        self,
        directory: Path,
        position: int = 0,
        unreadable: Unreadable = warn,
        segment_bytes: int = SEGMENT_BYTES,
        segment_ms: int = SEGMENT_MS,
    ) -> None:
        """position: the lowest to start from, if files are missing.

        A directory that cannot be written is tried again at each flush. Raises JournalRefusedError.
        """
        self._directory, self._unreadable = directory, unreadable
        self._segment_bytes, self._segment_ms = segment_bytes, segment_ms
        self._waiting: defaultdict[tuple[str, int], tuple[list[int], list[Observation]]] = defaultdict(lambda: ([], []))
        self._dropped = 0
        self._open: dict[tuple[str, int], Stream] = {}
        self._lock: IO[str] | None = None
        try:
            self._lock = _locked(directory)
            recover(directory, unreadable)
        except JournalRefusedError:
            raise
        except (JournalError, OSError) as error:
            unreadable(directory, f"cannot be recovered: {error}")
        try:
            self.position = max(position, _next_position(directory, unreadable))
        except OSError as error:
            unreadable(directory, f"cannot be read: {error}")
            self.position = position

    def continue_at(self, position: int) -> int:
        """Continue at this position or later; return how many of the last observations before it the files lack.

        position: that up to which observations were evaluated. They were on disk before, so the files lack none unless
        they were damaged or could not be written.
        """
        missing = max(0, position - self.position)
        self.position += missing
        return missing

    def append(self, observations: Sequence[Observation]) -> int:
        """Keep observations in memory until the next flush; return the next position."""
        kinds = set(map(type, observations))
        days = {observation.at // DAY_MS for observation in observations}
        if len(kinds) == len(days) == 1:
            positions, waiting = self._waiting[_NAMES[kinds.pop()], days.pop()]
            positions.extend(range(self.position, self.position + len(observations)))
            waiting.extend(observations)
        else:
            for position, observation in enumerate(observations, self.position):
                key = _NAMES[type(observation)], observation.at // DAY_MS
                positions, waiting = self._waiting[key]
                positions.append(position)
                waiting.append(observation)
        self.position += len(observations)
        return self.position

    def flush(self) -> None:
        """Write what is in memory and return when it is on disk. Raises JournalError; what was not written stays.

        Of more than MAX_WAITING observations none stays: the error says how many were dropped.
        """
        try:
            self._check_directory()
            self._flush()
        except JournalError as error:
            waiting = sum(len(positions) for positions, _ in self._waiting.values())
            if waiting > MAX_WAITING:
                self._waiting.clear()
                self._dropped += waiting
            if not self._dropped:
                raise
            msg = f"{error}; {self._dropped:,} observations were dropped"
            raise JournalError(msg) from error
        self._dropped = 0

    def _check_directory(self) -> None:
        """Lock the journal unless that is done. Raises JournalError, also if it was deleted."""
        if self._lock is not None and os.fstat(self._lock.fileno()).st_nlink == 0:
            self._lock.close()
            self._lock = None
            for stream in self._open.values():
                stream.close()
            self._open = {}
            msg = f"the journal {self._directory} was deleted while the agent was running; a new one begins"
            raise JournalError(msg)
        if self._lock is None:
            self._lock = _locked(self._directory)

    def _flush(self) -> None:
        for (kind, day), (positions, observations) in list(self._waiting.items()):
            batch = self._batch(kind, positions, observations)
            try:
                if batch.num_rows:
                    stream = self._open.get((kind, day))
                    if stream is None:
                        stream = Stream(self._directory, kind, day, positions[0], batch.schema)
                        self._open[kind, day] = stream
                    stream.write(batch)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and (kind, day) in self._open:
                    self._open.pop((kind, day)).close()
                msg = f"the journal {self._directory} cannot be written: {error}; observations wait in memory"
                raise JournalError(msg) from error
            del self._waiting[kind, day]

    def seal(self, now: int) -> None:
        """Seal the segments that are large, old, or of another date than now (ms); call it every few seconds."""
        for key, stream in list(self._open.items()):
            if stream.noticed_at is None:
                stream.noticed_at = now
            limit = self._segment_ms if key[1] == now // DAY_MS else _LATE_MS
            if stream.size >= self._segment_bytes or now - stream.noticed_at >= limit:
                self._seal(key)

    def close(self) -> None:
        """Write what is in memory, seal all segments and unlock the journal, even if that raises JournalError."""
        try:
            self.flush()
            for key in list(self._open):
                self._seal(key)
        finally:
            if self._lock is not None:
                self._lock.close()

    def retain(self, days: int, now: int) -> None:
        """Remove the dates more than `days` before now (ms), but not the folder of the last position.

        Raises JournalError.
        """
        last = max(find(self._directory), key=_end, default=None)
        for folder in folders(self._directory):
            if last is not None and folder != last.path.parent and day_of(folder) < now // DAY_MS - days:
                for key in [key for key, stream in self._open.items() if stream.path.parent == folder]:
                    self._open.pop(key).close()
                try:
                    shutil.rmtree(folder)
                except OSError as error:
                    msg = f"{folder} is past its retention and cannot be removed: {error}"
                    raise JournalError(msg) from error

    def _batch(self, kind: str, positions: Sequence[int], observations: Sequence[Observation]) -> pa.RecordBatch:
        """Return a batch without values that fit no column: one wrong value must not keep the rest from the disk."""
        columns = _COLUMNS[kind]
        try:
            return columns.batch(positions, observations)
        except MISFITS:
            fitting = []
            for entry in zip(positions, observations, strict=True):
                try:
                    columns.batch(entry[:1], entry[1:])
                    fitting.append(entry)
                except MISFITS as error:
                    self._unreadable(self._directory / kind, f"cannot be written: {entry[1]}: {error}")
            return columns.batch([position for position, _ in fitting], [observation for _, observation in fitting])

    def _seal(self, key: tuple[str, int]) -> None:
        stream = self._open.pop(key)
        stream.close()
        try:
            seal(stream.path, self._unreadable)
        except OSError as error:
            msg = f"{stream.path} cannot be sealed: {error}; it can be read as it is and is sealed at the next start"
            raise JournalError(msg) from error


def _end(segment: Segment) -> tuple[int, int]:
    """Sort key: the last position; that of an open segment is yet to come."""
    return (FOREVER if segment.last is None else segment.last, segment.first)


def _locked(directory: Path) -> IO[str]:
    """Return the lock file, held until it is closed or the process dies. Raises JournalError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_version(directory)
        _write_version(directory)
        lock = (directory / "writer.lock").open("a+")
    except OSError as error:
        msg = f"the journal {directory} cannot be opened: {error}"
        raise JournalError(msg) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        writer = lock.read().strip() or "unknown"
        lock.close()
        msg = f"the journal {directory} is being written by process {writer}: stop that one or name another directory"
        raise JournalRefusedError(msg) from None
    with suppress(OSError):  # on a full disk the lock holds without the number
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())
    return lock


def _write_version(directory: Path) -> None:
    file = directory / _VERSION_FILE
    if not file.exists():
        half = file.with_suffix(".tmp")
        half.write_text(f"{VERSION}\n", encoding="ascii")
        half.rename(file)


def check_version(directory: Path) -> None:
    """Raise JournalRefusedError if a newer version wrote the journal. One without a version is of the first."""
    try:
        written = (directory / _VERSION_FILE).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return
    if re.fullmatch(r"[0-9]{1,9}", written) and int(written) > VERSION:
        msg = (
            f"the journal {directory} was written by a newer Backflow (version {written}, this one knows {VERSION}); "
            "run that version again or start with another state directory"
        )
        raise JournalRefusedError(msg)


def _next_position(directory: Path, unreadable: Unreadable) -> int:
    """Return the position after the last one in any segment. Raises OSError."""
    last = -1
    for segment in find(directory):
        if segment.last is None:  # a stream that could not be sealed
            for position, _ in entries(directory, kinds=[segment.kind], unreadable=unreadable):
                last = max(last, position)
        else:
            last = max(last, segment.last)
    return last + 1
