"""The journal's files as Spark's workers read them: cut into pieces, only the columns and times needed.

`agent.storage.journal.segments` names and finds segments; `compaction` merges those of past dates.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from agent.model.observations import KINDS, kafka
from agent.model.text import count
from agent.storage.journal.archive import open_url
from agent.storage.journal.columns import Columns
from agent.storage.journal.places import JournalFiles, Place, find_segments, is_url
from agent.storage.journal.segments import DAY_MS, FOREVER, UNREADABLE, Segment, Unreadable, batches, find
from spark_checks.shares import BATCH_ROWS, TASKS_PER_CORE, cores, map_shares

JOURNAL_POSITIONS = 1 << 48
"""How far apart the positions of an agent's journals begin, as `read` returns them: each counts its own from 0."""

PIECE_ROWS = 1 << 20
"""The most rows of a piece, as far as row groups permit: what a worker holds at once."""

KAFKA_KINDS = tuple(name for name, kind in KINDS.items() if kind.__module__ == kafka.__name__)
"""The kinds of observations of Kafka clusters; other kinds name Flink clusters and the agent."""

_TIMES = pa.timestamp("ms", tz="UTC")
_STRINGS = pa.dictionary(pa.int32(), pa.string())

log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Consecutive row groups of a segment. last: None for an open segment, which is a single piece.

    path: on the local disk, or the URL of an archived file. low, high: bounds of `at`, ms. journal: the number of its
    journal among those of the agent.
    """

    kind: str
    path: str
    first: int
    last: int | None
    groups: tuple[int, ...]
    rows: int
    low: int
    high: int
    journal: int = 0


class DamagedFiles(list[Path]):
    """Files of the journal that could not be read; a callable for what reads them."""

    def __call__(self, path: Path, reason: str) -> None:
        """Log and keep a file that is skipped, once."""
        if path not in self:
            log.warning("journal_file_skipped path=%s reason=%s", path, reason)
            self.append(path)

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
    unreadable: Unreadable

    def pieces(self, kind: str, since: int | None = None, until: int | None = None) -> list[Piece]:
        """Return the pieces of a kind, of the whole window or of a part of it."""
        begin, end = self.since if since is None else since, self.until if until is None else until
        return find_pieces(self.journal, kind, begin, end, self.unreadable)


def find_pieces(journal: Place, kind: str, since: int, until: int, unreadable: Unreadable) -> list[Piece]:
    """Return what may hold observations with since <= at < until (ms), in order of date and position.

    Opens only the dates asked for. Passes what cannot be read to `unreadable` and skips it.
    """
    found = []
    days = range(since // DAY_MS, (until - 1) // DAY_MS + 1)
    segments = find_segments(journal, [kind], days)
    for segment in sorted(segments, key=lambda segment: (segment.day, segment.journal, segment.first)):
        try:
            for piece in _split(segment, journal):
                if piece.low < until and piece.high >= since:
                    found.append(piece)  # noqa: PERF401 - keeps what comes before damage
        except UNREADABLE as error:
            unreadable(segment.path, str(error))
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


def clusters(journal: Place, kinds: Collection[str] | None = None) -> Iterator[str]:
    """Yield the clusters named in a journal as they are found, newest commits first. Skips what cannot be read.

    kinds: of the observations that name them; None: all.
    """
    named = [kind for kind in kinds or KINDS if "cluster" in _columns(kind).names]
    segments = find_segments(journal, named)
    for segment in sorted(segments, key=lambda segment: (segment.kind != "commit", -segment.day, -segment.first)):
        with suppress(*UNREADABLE):
            for piece in _split(segment, journal):
                yield from filter(None, read(piece, ["cluster"])["cluster"].unique().to_pylist())


def _split(segment: Segment, journal: Place) -> Iterator[Piece]:
    kind, path, of = segment.kind, str(segment.path), 0
    if isinstance(journal, JournalFiles):
        of = journal.number_of(segment.journal)
        if segment.files is not None and journal.archive is not None:
            path = journal.archive.url_of(segment)
    begin = segment.day * DAY_MS
    if segment.last is None:
        # At most an hour or 64 MB of it, written until now.
        times = [batch.column("at").cast(pa.int64()).to_numpy() for batch in batches(segment, -FOREVER, FOREVER)]
        if times:
            low, high = min(int(at.min()) for at in times), max(int(at.max()) for at in times)
            yield Piece(kind, path, segment.first, None, (), sum(map(len, times)), low, high, of)
        return
    metadata = parquet.read_metadata(segment.open())
    at = metadata.schema.names.index("at")
    groups: list[int] = []
    rows, low, high = 0, FOREVER, -FOREVER
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times = group.column(at).statistics
        known = times is not None and times.has_min_max
        groups.append(number)
        rows += group.num_rows
        low = min(low, times.min_raw if known else begin)
        high = max(high, times.max_raw if known else begin + DAY_MS)
        following = metadata.row_group(number + 1).num_rows if number + 1 < metadata.num_row_groups else PIECE_ROWS
        if rows + following > PIECE_ROWS:
            yield Piece(kind, path, segment.first, segment.last, tuple(groups), rows, low, high, of)
            groups, rows, low, high = [], 0, FOREVER, -FOREVER


def read(piece: Piece, names: Sequence[str]) -> pa.Table:
    """Return the columns of a piece, strings as dictionaries; null for those that an older version did not write.

    Positions are those of the agent, so that each has one observation. Raises one of UNREADABLE.
    """
    table = _read(piece, names)
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
    strings = [name for name in names if _schema(piece.kind, names).field(name).type == _STRINGS]
    source = open_url(piece.path) if is_url(piece.path) else piece.path
    with parquet.ParquetFile(source, read_dictionary=strings, page_checksum_verification=True) as file:
        there = [name for name in names if name in file.schema_arrow.names]
        table = file.read_row_groups(list(piece.groups), columns=there, use_threads=False)
    return _select(table, piece.kind, names).unify_dictionaries()


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
    skips_damage: bool = True,
) -> DataFrame:
    """Return the observations of a kind with since <= at < until and, by column, one of the values in `only`.

    pieces: of this kind; names: the columns. Times are integers, ms. skips_damage: whether pieces that cannot be read
    are left out, which is logged; otherwise they let the query fail.
    """
    columns = list(dict.fromkeys([*names, *only, "at"]))
    schema = _plain_schema(kind, names)

    def rows(share: tuple[int, list[Piece]]) -> Iterator[pa.RecordBatch]:
        for piece in share[1]:
            try:
                table = read(piece, columns)
            except UNREADABLE as error:
                if not skips_damage:
                    raise
                log.warning("journal_file_skipped path=%s reason=%s", piece.path, error)
                continue
            keep = pc.and_(pc.greater_equal(table["at"], since), pc.less(table["at"], until))
            for column, values in only.items():
                keep = pc.and_(keep, _is_among(table[column], values))
            yield from table.filter(keep).select(names).cast(schema).to_batches(BATCH_ROWS)

    return map_shares(spark, share_out(pieces, cores(spark)), rows, schema)


def _plain_schema(kind: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema of `_schema` with plain strings."""
    fields = _schema(kind, names)
    return pa.schema([field.with_type(pa.string()) if field.type == _STRINGS else field for field in fields])


def _is_among(column: pa.ChunkedArray, values: Sequence[Any]) -> pa.ChunkedArray:
    plain = column.cast(pa.string()) if column.type == _STRINGS else column
    return pc.is_in(plain, value_set=pa.array(values, type=plain.type))
