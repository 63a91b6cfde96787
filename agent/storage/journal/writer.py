"""Writing the journal: one writer at a time appends observations, seals segments and removes old dates."""

import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from agent.model.batches import ObservationBatch
from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OffsetsPosition
from agent.storage.journal.batch_rows import BatchRows
from agent.storage.journal.columns import MISFITS
from agent.storage.journal.reader import COLUMNS, readable_batches, warn
from agent.storage.journal.retention import remove_expired
from agent.storage.journal.segments import (
    DAY_MS,
    FIRST_DAY,
    FOREVER,
    LAST_DAY,
    Stream,
    Unreadable,
    find,
    in_groups,
    recover,
    seal,
    streams,
)

SEGMENT_BYTES = 64 << 20
SEGMENT_MS = 3_600_000
_LATE_MS = 300_000
_SEAL_AGAIN_MS = 60_000
_ROWS_IN_PIECE = 32_768
"""Written at once: small batches each have a price, and large ones take memory."""

_NAMES = {kind: name for name, kind in KINDS.items()}
_POSITIONS = _NAMES[OffsetsPosition]

MAX_WAITING = 200_000
"""How many observations wait in memory while the journal cannot be written."""

VERSION = 1
"""Of the journal's format: files of a higher one cannot be read."""

_VERSION_FILE = "version"

_Row: TypeAlias = tuple[int, Observation]
"""A position and the observation there."""

_Part: TypeAlias = list[_Row] | pa.RecordBatch


class JournalError(Exception):
    """The journal cannot be written; the message says why."""


class JournalRefusedError(JournalError):
    """The journal must not be written: another agent does, or a newer one did."""


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
        *,
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        """position: the lowest to start from, if files are missing. sealed: called after a segment is sealed.

        A directory that cannot be written is tried again at each flush. Raises JournalRefusedError.
        """
        self._directory, self._unreadable = directory, unreadable
        self._segment_bytes, self._segment_ms, self._sealed = segment_bytes, segment_ms, sealed
        self._waiting: defaultdict[tuple[str, int], list[_Part]] = defaultdict(list)
        self._batch_rows = BatchRows()
        self._dropped = 0
        self._open: dict[tuple[str, int], Stream] = {}
        self._unsealed: list[Path] = []
        self._seal_failed_at, self._seal_problem = 0, ""
        self._lock: IO[str] | None = None
        try:
            self._lock = _locked(directory)
            recover(directory, unreadable)
        except JournalRefusedError:
            raise
        except (JournalError, OSError) as error:
            unreadable(directory, f"cannot be recovered: {error}")
            self._unsealed = streams(directory)
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

    def append(self, observations: Collection[Observation]) -> int:
        """Keep observations in memory until the next flush; return the next position."""
        if isinstance(observations, ObservationBatch):
            rows = self._batch_rows.to_arrow(self.position, observations)
            days = np.clip(observations.at // DAY_MS, FIRST_DAY, LAST_DAY)
            distinct_days = np.unique(days).tolist()
            for day in distinct_days:
                part = rows if len(distinct_days) == 1 else rows.filter(pa.array(days == day))
                self._waiting[_NAMES[observations.kind], day].append(part)
        else:
            for position, observation in enumerate(observations, self.position):
                day = min(max(observation.at // DAY_MS, FIRST_DAY), LAST_DAY)
                parts = self._waiting[_NAMES[type(observation)], day]
                if not parts or not isinstance(parts[-1], list):
                    parts.append([])
                parts[-1].append((position, observation))
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
            waiting = sum(len(part) for parts in self._waiting.values() for part in parts)
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
            self._open, self._unsealed = {}, []
            msg = f"the journal {self._directory} was deleted while the agent was running; a new one begins"
            raise JournalError(msg)
        if self._lock is None:
            self._lock = _locked(self._directory)

    def _flush(self) -> None:
        """Write what can be written: a kind whose folder takes no writes must not keep others from the disk."""
        failures: list[OSError] = []
        for key in sorted(self._waiting, key=lambda key: key[0] == _POSITIONS):
            if failures and key[0] == _POSITIONS:
                break  # a restarted agent takes what is before a position for written
            try:
                self._write(*key)
            except OSError as error:
                failures.append(error)
                if isinstance(error, FileNotFoundError) and key in self._open:
                    self._open.pop(key).close()
        if failures:
            msg = f"the journal {self._directory} cannot be written: {failures[0]}; observations wait in memory"
            raise JournalError(msg) from failures[0]

    def _write(self, kind: str, day: int) -> None:
        """Write what waits of a kind and a date. Raises OSError, and all of it waits on."""
        parts = self._waiting[kind, day]
        batches = [self._batch(kind, part) if isinstance(part, list) else part for part in parts]
        batches = [batch for batch in batches if batch.num_rows]
        if batches:
            stream = self._open.get((kind, day))
            if stream is None:
                first = batches[0].column("position")[0].as_py()
                stream = self._open[kind, day] = Stream(self._directory, kind, day, first, batches[0].schema)
            stream.write(batch for table in in_groups(batches, _ROWS_IN_PIECE) for batch in table.to_batches())
        del self._waiting[kind, day]

    def seal(self, now: int) -> None:
        """Seal the segments that are large, old, or of another date than now (ms); call it every few seconds.

        What cannot be sealed is tried again every minute. Raises JournalError until all is sealed.
        """
        for key, stream in list(self._open.items()):
            if stream.noticed_at is None:
                stream.noticed_at = now
            limit = self._segment_ms if key[1] == now // DAY_MS else _LATE_MS
            if stream.size >= self._segment_bytes or now - stream.noticed_at >= limit:
                self._end(key)
        if not self._unsealed:
            self._seal_problem = ""
        elif not self._seal_problem or abs(now - self._seal_failed_at) >= _SEAL_AGAIN_MS:
            self._seal_failed_at = now
            self._seal_ended()
        if self._seal_problem:
            raise JournalError(self._seal_problem)

    def close(self) -> None:
        """Write what is in memory, seal all segments and unlock the journal, even if that raises JournalError."""
        try:
            self.flush()
            for key in list(self._open):
                self._end(key)
            self._seal_ended()
            if self._seal_problem:
                raise JournalError(self._seal_problem)
        finally:
            if self._lock is not None:
                self._lock.close()

    def retain(self, days: int, now: int, is_archived: Callable[[Path], bool] = lambda _: True) -> int:
        """Remove the dates more than `days` before now (ms), but not the folder of the last position.

        is_archived: whether a folder may be removed. Returns how many folders may not. Raises JournalError.
        """
        try:
            return remove_expired(self._directory, days, now, self._close_folder, is_archived)
        except OSError as error:
            msg = f"{error.filename or self._directory} is past its retention and cannot be removed: {error}"
            raise JournalError(msg) from error

    def _close_folder(self, folder: Path) -> None:
        for key in [key for key, stream in self._open.items() if stream.path.parent == folder]:
            self._open.pop(key).close()
        self._unsealed = [path for path in self._unsealed if path.parent != folder]

    def _batch(self, kind: str, rows: Sequence[_Row]) -> pa.RecordBatch:
        """Return a batch without values that fit no column: one wrong value must not keep the rest from the disk."""
        columns = COLUMNS[kind]
        try:
            return columns.batch(rows)
        except MISFITS:
            fitting = []
            for row in rows:
                try:
                    columns.batch([row])
                    fitting.append(row)
                except MISFITS as error:
                    self._unreadable(self._directory / kind, f"cannot be written: {row[1]}: {error}")
            return columns.batch(fitting)

    def _end(self, key: tuple[str, int]) -> None:
        """Write no more to a segment, which is sealed next."""
        stream = self._open.pop(key)
        stream.close()
        self._unsealed.append(stream.path)

    def _seal_ended(self) -> None:
        """Seal what is no longer written, and take note of why the first one cannot be sealed."""
        problems, unsealed = [], []
        for path in self._unsealed:
            try:
                seal(path, self._unreadable)
            except OSError as error:
                unsealed.append(path)
                problems.append(f"{path} cannot be sealed: {error}; it can be read as it is and is tried again")
            else:
                pa.default_memory_pool().release_unused()  # several times the segment would stay with the process
                self._sealed()
        self._unsealed, self._seal_problem = unsealed, next(iter(problems), "")


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
            for _, batch in readable_batches([segment], -FOREVER, FOREVER, unreadable):
                last = max(last, compute.max(batch.column("position")).as_py() or 0)
        else:
            last = max(last, segment.last)
    return last + 1
