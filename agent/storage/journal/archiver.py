"""Shipping the journal: a thread copies sealed segments to the archive, and removes what is past its retention there.

The files of a folder (a kind and a date) are shipped in order of position, each verified by reading it back before the
next. What the archive lists of a folder is therefore all up to its last position, and after a failure, a kill or a
merge of local files exactly the rest is shipped. The name of the file in flight is on the local disk: after a failure
or a kill the archive may have it without verification. It is removed there before anything else is shipped.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import structlog
from pyarrow import compute, parquet

from agent.clock import monotonic_ms, now_ms
from agent.model.text import count
from agent.storage.journal.archive import Archive, LocalFileError, measure, reading
from agent.storage.journal.places import read_id, write_id
from agent.storage.journal.reader import warn
from agent.storage.journal.retention import RETAIN_MS, TRUST_MS
from agent.storage.journal.segments import (
    DAY_MS,
    FOREVER,
    ROW_GROUP,
    UNREADABLE,
    Segment,
    Unreadable,
    apart,
    batches,
    day_of,
    folders,
    in_groups,
    segments_in,
    write,
)

_IN_FLIGHT = "archive-in-flight"
_IDLE_S = 600.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
PATIENCE_S = 600.0
"""How long nothing can be archived before that is a problem of the agent."""

_NOTHING = -1

log = structlog.get_logger(__name__)


class ArchiveProgress(NamedTuple):
    """How far the archive is behind.

    pending: sealed segments that are not archived. oldest_s: for how long the oldest has been sealed, s. archived: how
    many were since the start, in `size` bytes. failures: attempts that failed. problem: why the last one did, empty if
    it did not.
    """

    pending: int
    oldest_s: float
    archived: int
    size: int
    failures: int
    problem: str


class Archiver:
    """Ships the journal in a local directory. It never blocks the journal's writer."""

    def __init__(
        self,
        directory: Path,
        archive: Archive,
        agent: str,
        begin: int,
        *,
        retention: int | None = None,
        failed: Callable[[str], None] = lambda _: None,
        works: Callable[[], None] = lambda: None,
        unreadable: Unreadable = warn,
        patience: float = PATIENCE_S,
    ) -> None:
        """agent: the name to ship under. begin: the journal's position when the agent started.

        retention: in the archive, days; None: forever. failed: called with what is wrong if nothing could be archived
        for `patience` seconds. works: called when the archive works. unreadable: takes damaged files.
        """
        self._directory, self._archive, self._agent, self._begin = directory, archive, agent, begin
        self._retention, self._failed, self._works, self._patience = retention, failed, works, patience
        self._unreadable = unreadable
        self._journal = ""
        self._known: set[Path] = set()
        self._until: dict[Path, int] = {}
        self._pending: dict[Path, list[Segment]] = {}
        self._expired: set[str] = set()
        self._archived = self._size = self._failures = 0
        self._problem = ""
        self._failing_since: float | None = None
        self._retain_at = monotonic_ms() + TRUST_MS
        self._wake, self._stop = threading.Event(), threading.Event()
        # Not a daemon thread: the process must not take away the object store's client while it is in a call.
        self._thread = threading.Thread(target=self._run, name="journal archive")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Look for sealed segments now; from any thread."""
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Stop after the file in flight; return whether that was done within `timeout` seconds.

        What is not archived by then is shipped after the next start.
        """
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def progress(self) -> ArchiveProgress:
        """How far it is."""
        pending = [segment for segments in list(self._pending.values()) for segment in segments]
        oldest = min((sealed for segment in pending if (sealed := _sealed_at(segment)) is not None), default=None)
        age = 0.0 if oldest is None else max(0.0, time.time() - oldest)
        return ArchiveProgress(len(pending), age, self._archived, self._size, self._failures, self._problem)

    def is_archived(self, folder: Path) -> bool:
        """Return whether all in a local folder of a kind and a date is in the archive. Raises OSError."""
        if self._is_expired(folder):
            return True
        until = self._until.get(folder, _NOTHING)
        counted = apart(segments_in(folder))[0]
        return all(segment.last is not None and segment.last <= until for segment in counted)

    def ship(self) -> None:
        """Ship everything that is sealed, and apply the archive's retention.

        Raises OSError at the first failure of the archive. A local file that cannot be read holds back its folder only:
        LocalFileError is raised at the end.
        """
        self._identify()
        present = sorted(folders(self._directory), key=lambda folder: (day_of(folder), folder))
        self._until = {folder: until for folder, until in self._until.items() if folder in present}
        failures: list[LocalFileError] = []
        pending: dict[Path, list[Segment]] = {}
        for folder in present:
            with _noting(failures):
                pending[folder] = self._sealed(folder)
        self._pending = {folder: found for folder, found in pending.items() if found}
        for folder in list(self._pending):
            self._discard_unverified()
            with _noting(failures):
                while not self._stop.is_set() and not self._ship_folder(folder):
                    self._pending[folder] = self._sealed(folder)
        if self._retention is not None and monotonic_ms() >= self._retain_at:
            self._retain_at = monotonic_ms() + RETAIN_MS
            day = now_ms() // DAY_MS - self._retention
            removed = self._archive.remove_before(day, self._agent, self._expired)
            if removed:
                log.info("archive_retention_applied", folders=removed)
        if failures:
            raise failures[0]

    def _run(self) -> None:
        delay = 0.0
        while not self._stop.wait(delay):
            if not delay:
                self._wake.clear()
            try:
                self.ship()
            except UNREADABLE as error:
                self._report(_describe(error))
                delay = min(max(_FIRST_DELAY_S, 2 * delay), _LONGEST_DELAY_S)
            except Exception as error:  # a defect must not end the thread unnoticed
                log.exception("job_failed", job="journal archive", reason=repr(error))
                self._report(f"internal error: {error!r}")
                delay = _LONGEST_DELAY_S
            else:
                delay = 0.0
                self._report("")
                self._wake.wait(_IDLE_S)

    def _report(self, problem: str) -> None:
        """Log when the archive fails and works again; report it if it fails for long."""
        now = time.monotonic()
        if not problem:
            if self._problem:
                log.info("archive_resumed", archive=self._archive.url)
            self._problem, self._failing_since = "", None
            self._works()
            return
        self._failures += 1
        if not self._problem:
            log.warning("archive_failed", archive=self._archive.url, reason=problem)
        self._problem = problem
        self._failing_since = self._failing_since or now
        if now - self._failing_since >= self._patience:
            number = count(sum(map(len, self._pending.values())), "file")
            self._failed(
                f"The journal cannot be archived at {self._archive.url}: {problem}. {number} of the journal wait on "
                "the local disk, where retention does not remove them. All else works."
            )

    def _identify(self) -> None:
        """Read the journal's id; write it if it was deleted, or make one that sorts after those of earlier journals."""
        stored = read_id(self._directory)
        self._journal = self._journal or stored or _new_id()
        if stored != self._journal:
            write_id(self._directory, self._journal)

    def _is_expired(self, folder: Path) -> bool:
        """Return whether a date is past its retention in the archive."""
        return self._retention is not None and day_of(folder) < int(time.time()) * 1_000 // DAY_MS - self._retention

    def _sealed(self, folder: Path) -> list[Segment]:
        """Return the segments of a folder to ship: sealed, not archived as far as known, and before any open one."""
        try:
            with reading(folder):
                counted = apart(segments_in(folder))[0]
        except FileNotFoundError:  # past its retention
            return []
        until = self._until.get(folder, _NOTHING)
        sealed = takewhile(lambda segment: segment.last is not None, counted)
        return [] if self._is_expired(folder) else [segment for segment in sealed if (segment.last or 0) > until]

    def _ship_folder(self, folder: Path) -> bool:
        """Ship what is pending of a folder; return False if a merge replaced files meanwhile."""
        pending = self._pending[folder]
        if folder not in self._until and pending:
            self._until[folder] = self._look_up(folder)
        target = self._archive.folder(folder, self._agent, self._journal)
        while pending:
            segment, until = pending[0], self._until[folder]
            if self._stop.is_set():
                return True
            if (segment.last or 0) > until:
                try:
                    self._ship(segment, until, target)
                except UNREADABLE as error:
                    del self._until[folder]  # how far it is must be looked up again
                    if isinstance(error, FileNotFoundError) and not segment.path.exists():
                        return False
                    raise
                self._until[folder] = segment.last or 0
            del pending[0]
        del self._pending[folder]
        return True

    def _discard_unverified(self) -> None:
        """Remove the file that was in flight at a failure or a kill from the archive, if it is there."""
        mark = self._directory / _IN_FLIGHT
        target = _read(mark)
        if target.startswith(f"{self._archive.root}/"):  # otherwise that of another archive
            self._archive.discard(target)
        mark.unlink(missing_ok=True)

    def _look_up(self, folder: Path) -> int:
        """Return the position up to which the archive has a folder.

        If it has positions that this journal had not reached when the agent started, the journal was restored from an
        older copy: it gets another id, under which its positions are its own.
        """
        target = self._archive.folder(folder, self._agent, self._journal)
        sizes = self._archive.find_in(target)
        if folder not in self._known and any(last >= self._begin for _, last in sizes):
            log.warning("journal_restored", archive=self._archive.url, journal=self._journal)
            self._journal, self._begin = _new_id(), FOREVER  # what is archived under it is from this process
            write_id(self._directory, self._journal)
            self._until.clear()
            return _NOTHING
        self._known.add(folder)
        until = _NOTHING
        with reading(folder):
            here = {(segment.first, segment.last): segment.path for segment in segments_in(folder)}
            for positions in sorted(sizes):
                local = here.get(positions)
                if local is not None and local.stat().st_size != sizes[positions]:
                    break
                until = positions[1]
        return until

    def _ship(self, segment: Segment, until: int, folder: str) -> None:
        """Ship the rows of a segment after the position `until`, or report that it is damaged."""
        source, first = segment.path, segment.first
        try:
            with reading(segment.path):
                if first <= until:  # files that were merged after some of them were archived
                    source, first = _write_rest(segment, until)
                rows = parquet.read_metadata(source).num_rows
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._unreadable(segment.path, f"is not archived because it is damaged: {_describe(error)}")
            return
        target = f"{folder}/{_name(first, segment.last or 0)}"
        try:
            with reading(source), source.open("rb") as file:
                content = measure(file)
            _write(self._directory / _IN_FLIGHT, target)
            self._archive.put(source, content, target)
            (self._directory / _IN_FLIGHT).unlink(missing_ok=True)
        finally:
            if source != segment.path:
                source.unlink(missing_ok=True)
        self._archived += 1
        self._size += content.size
        log.debug("segment_archived", path=target, rows=rows, bytes=content.size)


@contextmanager
def _noting(failures: list[LocalFileError]) -> Iterator[None]:
    """Take note of a local file that cannot be read, and end the body there."""
    try:
        yield
    except LocalFileError as error:
        failures.append(error)


def _write_rest(segment: Segment, until: int) -> tuple[Path, int]:
    """Write the rows after a position beside the segment, in row groups; return the file and its first position."""
    read = batches(segment, -FOREVER, FOREVER)
    after = (batch.filter(compute.greater(batch.column("position"), until)) for batch in read)
    rest = (batch for batch in after if batch.num_rows)
    earliest = next(rest, None)
    if earliest is None:
        raise FileNotFoundError(ENOENT, "removed while it was being read", str(segment.path))
    path = segment.path.with_name(f"_{segment.first:019d}-rest.tmp")
    try:
        write(path, earliest.schema, in_groups(chain([earliest], rest), ROW_GROUP))
    except UNREADABLE:
        path.unlink(missing_ok=True)
        raise
    return path, earliest.column("position")[0].as_py()


def _new_id() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def _name(first: int, last: int) -> str:
    return f"{first:019d}-{last:019d}.parquet"


def _sealed_at(segment: Segment) -> float | None:
    with suppress(OSError):  # archived and removed, or merged, meanwhile; or it cannot be read
        return segment.path.stat().st_mtime
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


def _describe(error: BaseException) -> str:
    return (str(error).splitlines() or [repr(error)])[0].rstrip(".")[:300]
