"""The journal's files as Spark's workers read them: cut into pieces, only the columns and times needed.

`agent.storage.journal.segments` names and finds segments; `compaction` merges those of past dates.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from agent.model.observations import KINDS, kafka
from agent.model.text import count
from agent.storage.journal.archive import open_url
from agent.storage.journal.columns import Columns
from agent.storage.journal.failures import ArchivedFile, system_failures
from agent.storage.journal.places import JournalFiles, Place, find_segments, is_url
from agent.storage.journal.segments import DAY_MS, FOREVER, UNREADABLE, Segment, Unreadable, batches, find, holder_of
from spark_checks.shares import BATCH_ROWS, TASKS_PER_CORE, cores, map_shares, run_shares

T = TypeVar("T")

JOURNAL_POSITIONS = 1 << 48
"""How far apart the positions of an agent's journals begin, as `read` returns them: each counts its own from 0."""

PIECE_ROWS = 1 << 20
"""The most rows of a piece, as far as row groups permit: what a worker holds at once."""

KAFKA_KINDS = tuple(name for name, kind in KINDS.items() if kind.__module__ == kafka.__name__)
"""The kinds of observations of Kafka clusters; other kinds name Flink clusters and the agent."""

_LISTINGS = 3
"""How often files are listed if some are merged or removed between listing and opening them."""

_TIMES = pa.timestamp("ms", tz="UTC")
_STRINGS = pa.dictionary(pa.int32(), pa.string())

log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Consecutive row groups of a segment. last: None for an open segment, which is a single piece.

    first, last: of the segment. path: on the local disk, or the URL of an archived file. low, high: bounds of `at`, ms.
    begin, end: bounds of its positions. journal: the number of its journal among those of the agent.
    """

    kind: str
    path: str
    first: int
    last: int | None
    groups: tuple[int, ...]
    rows: int
    low: int
    high: int
    begin: int
    end: int
    journal: int = 0


class DamagedFiles(list[Path]):
    """Files of the journal that are damaged; a callable for what reads them.

    A damaged page makes a query fail in Spark's workers. It is then repeated without the file (`without_damaged`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: set[Piece] = set()
        self._paths: set[str] = set()

    def __call__(self, path: Path, reason: str) -> None:
        """Log and keep a file that is skipped, once."""
        if path not in self:
            log.warning("journal_file_skipped path=%s reason=%s", path, reason)
            self.append(path)

    def leave_out(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return the pieces without those of damaged files, as far as these are known; they are about to be read."""
        whole = [piece for piece in pieces if piece.path not in self._paths]
        self._pieces.update(whole)
        return whole

    def take_page(self, piece: Piece, reason: str) -> None:
        """Keep the file of a piece that cannot be read."""
        self._paths.add(piece.path)
        self(Path(piece.path), reason)

    def search(self, spark: SparkSession) -> bool:
        """Read all that was about to be read in full, and return whether any of it is damaged."""
        pieces = sorted(piece for piece in self._pieces if piece.path not in self._paths)
        shares = share_out(pieces, cores(spark))
        found = [damage for damages in run_shares(spark, shares, _find_damage) for damage in damages]
        for piece, reason in sorted(found):
            self.take_page(piece, reason)
        return bool(found)

    def summary(self) -> list[str]:
        """Return the part of a check's summary about them, empty if there are none."""
        return [f"{count(len(self), 'damaged journal file')} skipped"] if self else []


class JournalWindow(NamedTuple):
    """The part of a journal that a check reads, for one cluster. since, until: ms."""

    spark: SparkSession
    journal: Place
    cluster: str
    since: int
    until: int
    damaged: DamagedFiles

    def pieces(self, kind: str, since: int | None = None, until: int | None = None) -> list[Piece]:
        """Return the pieces of a kind, of the whole window or of a part of it."""
        begin, end = self.since if since is None else since, self.until if until is None else until
        return find_pieces(self.journal, kind, begin, end, self.damaged)

    def without_damaged(self, query: Callable[[], T]) -> T:
        """Return the result of a query over the pieces, repeated without those that are damaged."""
        return without_damaged(self.spark, self.damaged, query)


def without_damaged(spark: SparkSession, damaged: DamagedFiles, query: Callable[[], T]) -> T:
    """Return the result of a query that scans pieces, repeated without damaged ones as long as it fails over them."""
    while True:
        try:
            return query()
        except (Py4JJavaError, PySparkException):
            if not damaged.search(spark):
                raise


def find_pieces(journal: Place, kind: str, since: int, until: int, unreadable: Unreadable) -> list[Piece]:
    """Return what may hold observations with since <= at < until (ms), in order of date and position.

    Opens only the dates asked for. Passes damaged files to `unreadable` and skips them. Raises ReadError, OSError.
    """
    days = range(since // DAY_MS, (until - 1) // DAY_MS + 1)
    for _ in range(_LISTINGS):
        found, gone = [], False
        segments = find_segments(journal, [kind], days)
        for segment in sorted(segments, key=lambda segment: (segment.day, segment.journal, segment.first)):
            try:
                for piece in _split(segment, journal):
                    if piece.low < until and piece.high >= since:
                        found.append(piece)  # noqa: PERF401 - keeps what comes before damage
            except FileNotFoundError:
                gone = True
            except UNREADABLE as error:
                unreadable(segment.path, str(error))
        if not gone:
            break
    return found


def check_journal(directory: Path) -> list[str]:
    """Return why the directory is not a journal, with the likely directory; empty if it is one."""
    if not directory.is_dir():
        return [f"--journal {directory}: no such directory."]
    if find(directory):
        return []
    inside = directory / "journal"
    hint = f"did you mean {inside}?" if find(inside) else "it is `journal` in the agent's state directory."
    return [f"--journal {directory}: this directory is not a journal; {hint}"]


def clusters(journal: Place, kinds: Collection[str] | None = None, days: range | None = None) -> Iterator[str]:
    """Yield the clusters named in a journal as they are found, the newest date first. Skips what is damaged.

    kinds: of the observations that name them; None: all. days: only these; None: all. Reads no more than is asked for,
    of files with one cluster the footer only. Raises ReadError, OSError.
    """
    named = [kind for kind in kinds or KINDS if "cluster" in _columns(kind).names]
    segments = find_segments(journal, named, days)
    for segment in sorted(segments, key=lambda segment: (-segment.day, segment.kind != "commit", -segment.first)):
        with suppress(*UNREADABLE), system_failures(segment.path):
            yield from _clusters_in(segment, journal)


def _clusters_in(segment: Segment, journal: Place) -> Iterator[str]:
    if segment.last is not None:
        metadata = parquet.read_metadata(segment.open())
        index = metadata.schema.names.index("cluster")
        groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
        if all(found is not None and found.has_min_max and found.min == found.max for found in groups):
            yield from {str(found.min) for found in groups}
            return
    for piece in _pieces(segment, journal):
        yield from filter(None, read(piece, ["cluster"])["cluster"].unique().to_pylist())


def _split(segment: Segment, journal: Place) -> Iterator[Piece]:
    """Yield the pieces of a segment. Raises one of UNREADABLE, ReadError."""
    with system_failures(segment.path):
        yield from _pieces(segment, journal)


def _pieces(segment: Segment, journal: Place) -> Iterator[Piece]:
    kind, path, of = segment.kind, str(segment.path), 0
    if isinstance(journal, JournalFiles):
        of = journal.number_of(segment.journal)
        if segment.files is not None and journal.archive is not None:
            path = journal.archive.url_of(segment)
    if segment.last is None:
        # At most an hour or 64 MB of it, written until now.
        moments = [batch.column("at").cast(pa.int64()).to_numpy() for batch in batches(segment, -FOREVER, FOREVER)]
        if moments:
            low, high = min(int(at.min()) for at in moments), max(int(at.max()) for at in moments)
            yield Piece(
                kind, path, segment.first, None, (), sum(map(len, moments)), low, high, segment.first, FOREVER, of
            )
        return
    metadata = parquet.read_metadata(segment.open())
    at, position = (metadata.schema.names.index(name) for name in ("at", "position"))
    groups: list[int] = []
    rows, low, high, begin, end = 0, FOREVER, -FOREVER, segment.first, segment.last
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times, positions = (_bounds(group.column(index)) for index in (at, position))
        groups.append(number)
        rows += group.num_rows
        low = min(low, segment.day * DAY_MS if times is None else times[0])
        high = max(high, (segment.day + 1) * DAY_MS if times is None else times[1])
        end = segment.last if positions is None else positions[1]
        following = metadata.row_group(number + 1).num_rows if number + 1 < metadata.num_row_groups else PIECE_ROWS
        if rows + following > PIECE_ROWS:
            yield Piece(kind, path, segment.first, segment.last, tuple(groups), rows, low, high, begin, end, of)
            groups, rows, low, high, begin = [], 0, FOREVER, -FOREVER, end + 1


def _bounds(chunk: parquet.ColumnChunkMetaData) -> tuple[int, int] | None:
    """Return the least and greatest value of a column in a row group; None if the file does not say."""
    known = chunk.statistics
    return (known.min_raw, known.max_raw) if known is not None and known.has_min_max else None


def read(piece: Piece, names: Sequence[str]) -> pa.Table:
    """Return the columns of a piece, strings as dictionaries; null for those that an older version did not write.

    Positions are those of the agent, so that each has one observation. Of a file that was merged into another since it
    was listed, that one is read; of a file that was removed there are no rows. Raises one of UNREADABLE, ReadError.
    """
    with system_failures(piece.path):
        try:
            table = _read(piece, names)
        except FileNotFoundError:
            table = _read_merged(piece, names)
    if not piece.journal or "position" not in names:
        return table
    index, column = table.schema.get_field_index("position"), table["position"]
    return table.set_column(index, "position", pc.add(column, piece.journal * JOURNAL_POSITIONS))


def _read(piece: Piece, names: Sequence[str]) -> pa.Table:
    if piece.last is None:
        segment = Segment(piece.kind, 0, piece.first, None, Path(piece.path))
        tables = [
            _select(pa.Table.from_batches([batch]), piece.kind, names) for batch in batches(segment, -FOREVER, FOREVER)
        ]
        return pa.concat_tables(tables).unify_dictionaries() if tables else _schema(piece.kind, names).empty_table()
    with _open(piece, open_url(piece.path) if is_url(piece.path) else piece.path, names) as file:
        there = [name for name in names if name in file.schema_arrow.names]
        table = file.read_row_groups(list(piece.groups), columns=there, use_threads=False)
    return _select(table, piece.kind, names).unify_dictionaries()


def _read_merged(piece: Piece, names: Sequence[str]) -> pa.Table:
    """Return the rows of a piece from the file into which its own was merged; none if there is no such file."""
    segment = Segment(piece.kind, 0, piece.first, piece.last, Path(piece.path))
    holder = None if is_url(piece.path) else holder_of(segment)
    tables = [_schema(piece.kind, names).empty_table()]
    if holder is not None:
        columns = dict.fromkeys((*names, "position"))
        with _open(piece, holder.path, list(columns)) as file:
            index = file.metadata.schema.names.index("position")
            there = [name for name in columns if name in file.schema_arrow.names]
            for number in range(file.metadata.num_row_groups):
                bounds = _bounds(file.metadata.row_group(number).column(index))
                if bounds is None or (bounds[0] <= piece.end and piece.begin <= bounds[1]):
                    table = file.read_row_group(number, columns=there, use_threads=False)
                    position = table["position"]
                    own = pc.and_(pc.greater_equal(position, piece.begin), pc.less_equal(position, piece.end))
                    tables.append(_select(table.filter(own), piece.kind, names))
    return pa.concat_tables(tables).unify_dictionaries()


def _open(piece: Piece, source: str | Path | ArchivedFile, names: Iterable[str]) -> parquet.ParquetFile:
    """Open a sealed file; strings are read as dictionaries."""
    strings = [name for name in names if _schema(piece.kind, names).field(name).type == _STRINGS]
    return parquet.ParquetFile(source, read_dictionary=strings, page_checksum_verification=True)


@cache
def _columns(kind: str) -> pa.Schema:
    return Columns(KINDS[kind]).schema


def _schema(kind: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema as `read` gives it: times as integers, strings as dictionaries."""
    kinds = {_TIMES: pa.int64(), pa.string(): _STRINGS}
    fields = [_columns(kind).field(name) for name in names]
    return pa.schema([(field.name, kinds.get(field.type, field.type)) for field in fields])


def _select(table: pa.Table, kind: str, names: Sequence[str]) -> pa.Table:
    there = set(table.column_names)
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in there
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in _schema(kind, names)
    ]
    return pa.table(columns, schema=_schema(kind, names))


def share_out(pieces: Sequence[Piece], cores: int) -> list[tuple[int, list[Piece]]]:
    """Return the pieces in few shares, one a task: its number, and consecutive pieces in order."""
    tasks = min(len(pieces), cores * TASKS_PER_CORE)
    shares: list[list[Piece]] = [[] for _ in range(tasks)]
    size = sum(piece.rows for piece in pieces) / max(tasks, 1)
    before = 0
    for piece in pieces:
        shares[min(int(before / size), tasks - 1)].append(piece)
        before += piece.rows
    return list(enumerate(shares))


def scan(
    spark: SparkSession,
    kind: str,
    pieces: Sequence[Piece],
    names: Sequence[str],
    *,
    since: int,
    until: int,
    only: Mapping[str, Sequence[Any]],
    damaged: DamagedFiles,
    distinct: bool = False,
) -> DataFrame:
    """Return the observations of a kind with since <= at < until and, by column, one of the values in `only`.

    pieces: of this kind; names: the columns. Times are integers, ms. Files in `damaged` are left out; another damaged
    file lets the query fail (`without_damaged`). distinct: of a file's equal rows only one, so that few leave it.
    """
    columns = list(dict.fromkeys([*names, *only, "at"]))
    schema = _plain_schema(kind, names)

    def rows(share: tuple[int, list[Piece]]) -> Iterator[pa.RecordBatch]:
        for piece in share[1]:
            table = read(piece, columns)
            keep = pc.and_(pc.greater_equal(table["at"], since), pc.less(table["at"], until))
            for column, values in only.items():
                keep = pc.and_(keep, _is_among(table[column], values))
            found = table.filter(keep).select(names).cast(schema)
            yield from (found.group_by(names).aggregate([]) if distinct else found).to_batches(BATCH_ROWS)

    return map_shares(spark, share_out(damaged.leave_out(pieces), cores(spark)), rows, schema)


def _find_damage(share: tuple[int, list[Piece]]) -> list[tuple[Piece, str]]:
    """Return the pieces of a share that cannot be read in full, each with the reason."""
    found = []
    for piece in share[1]:
        try:
            read(piece, _columns(piece.kind).names)
        except UNREADABLE as error:
            found.append((piece, str(error)))
    return found


def _plain_schema(kind: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema of `_schema` with plain strings."""
    fields = _schema(kind, names)
    return pa.schema([field.with_type(pa.string()) if field.type == _STRINGS else field for field in fields])


def _is_among(column: pa.ChunkedArray, values: Sequence[Any]) -> pa.ChunkedArray:
    plain = column.cast(pa.string()) if column.type == _STRINGS else column
    return pc.is_in(plain, value_set=pa.array(values, type=plain.type))
