"""The journal's segments: how they are named, found, written, sealed and read.

`<directory>/<kind>/date=YYYY-MM-DD/` holds the segments of a kind and a UTC date of `at`. The open one is an Arrow IPC
stream, readable up to where a kill ended it; the others are Parquet. Both are named after their first position, so that
a crash between the two leaves no duplicates: the sealed one counts. Names of open and unfinished files begin with an
underscore, so that Spark ignores them.
"""

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from errno import ENOENT
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow.fs import FileSystem

from agent.storage.journal.failures import ArchivedFile

DAY_MS = 86_400_000
FOREVER = 1 << 63
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)
"""What damaged files raise: pyarrow a KeyError for types that it does not know."""

Unreadable: TypeAlias = Callable[[Path, str], None]
"""Called with the path and the reason for what the journal had to leave out."""

_EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
"""What is dated before or after is filed under these dates (days since the epoch): folders have no others."""

_FOLDER = re.compile(r"date=\d{4}-\d\d-\d\d")
_NAME = re.compile(r"_?(\d{19})(?:-(\d{19})\.parquet|\.arrow)")
ROW_GROUP = 65_536
"""Rows in a row group of a sealed segment."""

_BATCH = 8_192


class Segment(NamedTuple):
    """A file of the journal. day: days since the epoch. first, last: positions; last is None while it is open.

    journal: the id of an archived journal, whose positions they are. files: where the path is; None: on the local disk.
    """

    kind: str
    day: int
    first: int
    last: int | None
    path: Path
    journal: str = ""
    files: FileSystem | None = None

    def holds(self, other: "Segment") -> bool:
        """Return whether it is sealed and contains all of the other."""
        return self.last is not None and self.first <= other.first and (other.last or other.first) <= self.last

    def open(self) -> Path | ArchivedFile:
        """Return a sealed file as Parquet's reader takes it. Raises FileNotFoundError, ArchiveError."""
        path = str(self.path)
        return self.path if self.files is None else ArchivedFile(self.files, path, f"{path} in the archive")


def find(directory: Path, kinds: Container[str] | None = None, days: range | None = None) -> list[Segment]:
    """Return the segments of these kinds and days by first position.

    Of two files with the same positions the larger sealed one counts: a crash while sealing or merging left the other.
    """
    found: list[Segment] = []
    for folder in folders(directory):
        if (kinds is None or folder.parent.name in kinds) and (days is None or day_of(folder) in days):
            found += apart(segments_in(folder))[0]
    return sorted(found, key=lambda segment: segment.first)


def segments_in(folder: Path) -> list[Segment]:
    """Return a folder's segments by first position; of those with the same, the largest first."""
    named = [(path, positions) for path in folder.iterdir() if (positions := positions_in(path.name)) is not None]
    kind, day = folder.parent.name, day_of(folder) if named else 0
    return sorted((Segment(kind, day, *positions, path) for path, positions in named), key=by_first_position)


def positions_in(name: str) -> tuple[int, int | None] | None:
    """Return the first and last position in the name of a file, the last as None if it is open; None for others."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), None if match[2] is None else int(match[2]))


def by_first_position(segment: Segment) -> tuple[int, int]:
    """Sort key: the first position; of segments with the same, the largest first."""
    return segment.first, 0 if segment.last is None else -segment.last


def apart(segments: Iterable[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Separate segments, in the order of `segments_in`, into those that count and those contained in one of them."""
    counted: list[Segment] = []
    left: list[Segment] = []
    for segment in segments:
        (left if counted and counted[-1].holds(segment) else counted).append(segment)
    return counted, left


def folders(directory: Path) -> list[Path]:
    """Return the folders with a kind's segments of a date; others, such as date=2026-13-45, are not the journal's."""
    return [folder for folder in directory.glob("*/date=*") if is_date(folder.name)]


def is_date(name: str) -> bool:
    """Return whether this is the name of a date's folder."""
    if not _FOLDER.fullmatch(name):
        return False
    try:
        date.fromisoformat(name.removeprefix("date="))
    except ValueError:
        return False
    return True


def day_of(folder: Path) -> int:
    """Return a folder's date as days since the epoch."""
    return date.fromisoformat(folder.name.removeprefix("date=")).toordinal() - _EPOCH


class Stream:
    """An open segment being written. Raises OSError; a write that failed can be tried again."""

    def __init__(self, directory: Path, kind: str, day: int, first: int, schema: pa.Schema) -> None:
        """day: days since the epoch, from FIRST_DAY to LAST_DAY."""
        filed = date.fromordinal(day + _EPOCH)
        self.path = directory / kind / f"date={filed.isoformat()}" / f"_{first:019d}.arrow"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            for folder in (self.path.parent, self.path.parent.parent, directory):
                sync(folder)
        except OSError:
            self.close()
            raise
        self._schema = schema
        self.size = 0
        self.noticed_at: int | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write batches and return when they are on disk."""
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(ENOENT, "deleted while it was being written", str(self.path))
        try:
            size = self.size or self._write(self._schema, 0)
            for batch in batches:
                size = self._write(batch, size)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self.size)  # what is written next may be less, and would end in half a batch
            raise
        self.size = size

    def _write(self, part: pa.Schema | pa.RecordBatch, size: int) -> int:
        """Write a part of the stream at the end, `size`; return the end after it."""
        content = memoryview(part.serialize())
        while content:
            written = os.pwrite(self._file, content, size)
            content, size = content[written:], size + written
        return size

    def close(self) -> None:
        """Close the file; as a segment it stays open until it is sealed."""
        os.close(self._file)


def seal(path: Path, unreadable: Unreadable) -> None:
    """Turn a stream into Parquet beside it, atomically. If it raises OSError, the stream remains.

    What precedes damage is sealed; the damaged stream is reported to `unreadable` and kept as `.damaged`.
    """
    damage: list[Exception] = []

    def readable() -> Iterator[pa.RecordBatch]:
        with _noting(damage):
            yield from _stream(path)

    with _noting(damage):
        _write_sealed(path, readable())
    if not damage:
        path.unlink()
        return
    kept = path.with_suffix(".damaged")
    for error in damage:
        unreadable(kept, str(error))
    path.rename(kept)


@contextmanager
def _noting(damage: list[Exception]) -> Iterator[None]:
    """Take note of what a file cannot be read for, and end the body there. Raises what is not the file's fault."""
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's error (permissions, too many open files), not the file's; Arrow's have no errno
        damage.append(error)


def _write_sealed(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Write what could be read of a stream beside it. Raises one of UNREADABLE, without a trace left."""
    earliest = next(batches, None)
    if earliest is None:
        return
    last: int | None = None

    def row_groups() -> Iterator[pa.Table]:
        nonlocal last
        for table in in_groups(chain([earliest], batches), ROW_GROUP):
            last = table.column("position")[-1].as_py()
            yield table

    half = path.with_suffix(".tmp")
    try:
        write(half, earliest.schema, row_groups())
        half.rename(path.with_name(f"{path.stem.removeprefix('_')}-{last:019d}.parquet"))
    finally:
        half.unlink(missing_ok=True)
    sync(path.parent)


def in_groups(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Yield the rows of batches, so many at a time, in one piece: many small ones take four times as long."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        while count >= size:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, size).combine_chunks()
            waiting, count = table.slice(size).to_batches(), count - size
    if count:
        yield pa.Table.from_batches(waiting).combine_chunks()


def write(target: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a sealed segment's rows and return when they are on disk. Raises OSError."""
    # Half the size and time of the defaults: positions, times and offsets increase slowly.
    increasing = [field.name for field in schema if field.type in (pa.int64(), pa.timestamp("ms", tz="UTC"))]
    with target.open("wb") as file:
        with parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=[field.name for field in schema if field.type == pa.string()],
            column_encoding=dict.fromkeys(increasing, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        ) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP)
        file.flush()
        os.fsync(file.fileno())


def recover(directory: Path, unreadable: Unreadable) -> None:
    """Seal the streams and remove the unfinished files that a killed writer left; keep damaged ones.

    Raises the first OSError once the rest is done; what could not be sealed is among the `streams`.
    """
    failures = []
    for path in sorted(path for folder in folders(directory) for path in folder.glob("_*")):
        is_stream = path.suffix == ".arrow"
        is_sealed = is_stream and any(path.parent.glob(f"{path.stem.removeprefix('_')}-*.parquet"))
        try:
            if is_sealed or path.suffix == ".tmp":
                path.unlink(missing_ok=True)  # a stream sealed just now has taken its .tmp with it
            elif is_stream:
                seal(path, unreadable)
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def streams(directory: Path) -> list[Path]:
    """Return the streams that `recover` could not seal."""
    return sorted(path for folder in folders(directory) for path in folder.glob("_*.arrow"))


def batches(segment: Segment, since: int, until: int) -> Iterator[pa.RecordBatch]:
    """Return the batches of a segment that may hold observations with since <= at < until.

    Raises one of UNREADABLE, ArchiveError.
    """
    try:
        yield from _stream(segment.path) if segment.last is None else _parquet(segment.open(), since, until)
    except FileNotFoundError:
        if segment.files is not None:
            return  # past the archive's retention
        # Since it was listed, a live writer sealed it, or a merge made it part of a larger one, or it was removed.
        holder = holder_of(segment)
        if holder is not None:
            for batch in _parquet(holder.path, since, until):
                position = batch.column("position")
                within = compute.greater_equal(position, segment.first)
                if segment.last is not None:
                    within = compute.and_(within, compute.less_equal(position, segment.last))
                yield batch.filter(within)


def holder_of(segment: Segment) -> Segment | None:
    """Return the sealed segment on the local disk that now has the rows of one that is gone; None if it was removed."""
    present = segments_in(segment.path.parent) if segment.path.parent.exists() else ()
    return next((candidate for candidate in present if candidate.holds(segment)), None)


def _stream(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                index = stream.schema.get_field_index("position")
                if index < 0 or stream.schema.field(index).type != pa.int64():
                    msg = "the stream has no positions"
                    raise ValueError(msg)
                for batch in stream:
                    batch.validate(full=True)
                    yield batch
        except (pa.ArrowException, OSError):
            # After a kill the stream ends early and all of the file has been read; anything else is damage.
            if file.tell() < file.size():
                raise


def _parquet(source: Path | ArchivedFile, since: int, until: int) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(source, page_checksum_verification=True) as file:
        for group in range(file.metadata.num_row_groups):
            if not _overlaps(file, group, since, until):
                continue
            stated, read = file.metadata.row_group(group).num_rows, 0
            for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group], use_threads=False):
                read += batch.num_rows
                yield batch
            if read != stated:  # pyarrow ends without an error where the shortest column ends
                msg = f"the file is damaged: of {stated} rows {read} can be read"
                raise ValueError(msg)


def _overlaps(file: parquet.ParquetFile, group: int, since: int, until: int) -> bool:
    """Return whether a row group may hold rows with since <= at < until.

    The column itself is read: pyarrow aborts the process over some damage when asked for statistics (seen with 26).
    """
    if since <= -FOREVER and until >= FOREVER:
        return True
    bounds = [
        compute.min_max(batch.column(0).cast(pa.int64())).as_py()
        for batch in file.iter_batches(batch_size=ROW_GROUP, row_groups=[group], columns=["at"], use_threads=False)
        if batch.num_columns == 1
    ]
    known = [bound for bound in bounds if bound["min"] is not None]
    return not known or any(bound["max"] >= since and bound["min"] < until for bound in known)


def sync(folder: Path) -> None:
    """Write a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
