"""The journal: observations written as they happen, and read back in the order in which they were taken.

Every observation has a position that increases across the whole journal. `segments` has the files, `columns` the Arrow
columns.
"""

import fcntl
import heapq
import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
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


class JournalError(Exception):
    """The journal cannot be written; the message says why."""


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
                for entry in _COLUMNS[segment.kind].rows(batch):
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


def last_at(directory: Path) -> int | None:
    """Return the time of the newest tick (ms), until which the writer was alive; None in an empty journal."""
    newest = max((day_of(folder) for folder in folders(directory) if folder.parent.name == "tick"), default=None)
    since = None if newest is None else newest * DAY_MS
    ticks = () if newest is None else read(directory, since=since, kinds=["tick"])
    return max((tick.at for tick in ticks), default=None)


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
        """position: the lowest to start from, if files are missing. Raises JournalError, as for a second writer."""
        self._directory, self._unreadable = directory, unreadable
        self._segment_bytes, self._segment_ms = segment_bytes, segment_ms
        self._waiting: defaultdict[tuple[str, int], tuple[list[int], list[Observation]]] = defaultdict(lambda: ([], []))
        self._open: dict[tuple[str, int], Stream] = {}
        self._lock = _locked(directory)
        try:
            recover(directory, unreadable)
        except OSError as error:
            self._lock.close()
            msg = f"the journal {directory} cannot be recovered: {error}"
            raise JournalError(msg) from error
        self.position = max((position, *(segment.last + 1 for segment in find(directory) if segment.last is not None)))

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
        """Write what is in memory and return when it is on disk. Raises JournalError; what was not written stays."""
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
                msg = f"the journal {self._directory} cannot be written: {error}; observations stay in memory"
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
    """Return the lock file, held until it is closed or the process dies."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
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
        raise JournalError(msg) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
