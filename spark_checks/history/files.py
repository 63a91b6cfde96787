"""The journal's files as Spark's workers read them: cut into pieces, columns and times asked for, nothing else.

How segments are named and found lives in `agent.storage.journal.segments`; merging those of past dates in `compaction`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from agent.model.observations import KINDS
from agent.storage.journal.columns import Columns
from agent.storage.journal.segments import DAY_MS, FOREVER, UNREADABLE, Segment, Unreadable, batches, find

PIECE_ROWS = 1 << 20
"""How many rows a piece has at most, as far as row groups permit: what a worker holds at once."""

_TASKS_PER_CORE = 4
_TIMES = pa.timestamp("ms", tz="UTC")


class Piece(NamedTuple):
    """Consecutive row groups of a segment. last: None for an open one, which is a single piece.

    low, high: bounds of `at` in it, ms.
    """

    kind: str
    path: str
    first: int
    last: int | None
    groups: tuple[int, ...]
    rows: int
    low: int
    high: int


log = logging.getLogger(__name__)


def pieces(directory: Path, kind: str, since: int, until: int, unreadable: Unreadable) -> list[Piece]:
    """What may hold observations with since <= at < until (ms), in order of date and position.

    Only the dates asked for are opened. What cannot be read is told to `unreadable` and left out.
    """
    made = []
    days = range(since // DAY_MS, (until - 1) // DAY_MS + 1)
    for segment in sorted(find(directory, [kind], days), key=lambda one: (one.day, one.first)):
        try:
            for one in _pieces(segment):
                if one.low < until and one.high >= since:
                    made.append(one)  # noqa: PERF401 - what came before damage is kept
        except UNREADABLE as error:
            unreadable(segment.path, str(error))
    return made


def no_journal(directory: Path) -> list[str]:
    """A sentence where the directory holds no journal, with the one that was meant where that is plain; empty where it
    does.
    """
    if find(directory):
        return []
    inside = directory / "journal"
    hint = (
        f"did you mean {inside}?" if find(inside) else "an agent's is the directory `journal` in its state directory."
    )
    return [f"--journal {directory}: this directory holds no journal; {hint}"]


def clusters(directory: Path) -> Iterator[str]:
    """The clusters that a journal names, as they are come across: commits first, of those the newest. What cannot be
    read names none.
    """
    kinds = [kind for kind in KINDS if "cluster" in _columns(kind).names]
    for segment in sorted(find(directory, kinds), key=lambda one: (one.kind != "commit", -one.day, -one.first)):
        with suppress(*UNREADABLE):
            for piece in _pieces(segment):
                yield from filter(None, read(piece, ["cluster"])["cluster"].unique().to_pylist())


def _pieces(segment: Segment) -> Iterator[Piece]:
    kind, path = segment.kind, str(segment.path)
    begin = segment.day * DAY_MS
    if segment.last is None:
        # At most an hour or 64 MB of it, written until now.
        times = [one.column("at").cast(pa.int64()).to_numpy() for one in batches(segment, -FOREVER, FOREVER)]
        if times:
            low, high = min(int(one.min()) for one in times), max(int(one.max()) for one in times)
            yield Piece(kind, path, segment.first, None, (), sum(map(len, times)), low, high)
        return
    metadata = parquet.read_metadata(path)
    at = metadata.schema.to_arrow_schema().get_field_index("at")
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
            yield Piece(kind, path, segment.first, segment.last, tuple(groups), rows, low, high)
            groups, rows, low, high = [], 0, FOREVER, -FOREVER


def read(piece: Piece, names: Sequence[str]) -> pa.Table:
    """The columns of a piece, strings as dictionaries; one that an older version did not write is null.

    Raises one of UNREADABLE.
    """
    if piece.last is None:
        segment = Segment(piece.kind, 0, piece.first, None, Path(piece.path))
        taken = [
            _chosen(pa.Table.from_batches([one]), piece.kind, names) for one in batches(segment, -FOREVER, FOREVER)
        ]
        return pa.concat_tables(taken).unify_dictionaries() if taken else _schema(piece.kind, names).empty_table()
    strings = [name for name in names if _schema(piece.kind, names).field(name).type == _WORDS]
    with parquet.ParquetFile(piece.path, read_dictionary=strings, page_checksum_verification=True) as file:
        there = [name for name in names if name in file.schema_arrow.names]
        table = file.read_row_groups(list(piece.groups), columns=there, use_threads=False)
    return _chosen(table, piece.kind, names).unify_dictionaries()


_WORDS = pa.dictionary(pa.int32(), pa.string())


@cache
def _columns(kind: str) -> pa.Schema:
    return Columns(KINDS[kind]).schema


def _schema(kind: str, names: Iterable[str]) -> pa.Schema:
    """As `read` gives it: times as integers, strings as dictionaries."""
    kinds = {_TIMES: pa.int64(), pa.string(): _WORDS}
    fields = [_columns(kind).field(name) for name in names]
    return pa.schema([(field.name, kinds.get(field.type, field.type)) for field in fields])


def _chosen(table: pa.Table, kind: str, names: Sequence[str]) -> pa.Table:
    """The columns by name and of their types; missing ones are null."""
    there = set(table.column_names)
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in there
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in _schema(kind, names)
    ]
    return pa.table(columns, schema=_schema(kind, names))


def shared(spark: SparkSession, every: Sequence[Piece]) -> RDD[tuple[int, list[Piece]]]:
    """The pieces in few partitions, each one worker's share: its number and consecutive pieces in order."""
    tasks = max(1, min(len(every), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE))
    size = sum(one.rows for one in every) / tasks
    shares: list[list[Piece]] = [[] for _ in range(tasks)]
    before = 0
    for one in every:
        shares[min(int(before / size), tasks - 1)].append(one)
        before += one.rows
    return spark.sparkContext.parallelize(list(enumerate(shares)), tasks)


def scan(
    spark: SparkSession,
    every: Sequence[Piece],
    schema: str,
    names: Sequence[str],
    *,
    since: int,
    until: int,
    only: Mapping[str, Sequence[Any]],
) -> DataFrame:
    """The observations in the pieces with since <= at < until and the values wanted, by column: `only`.

    names: the columns; schema: theirs, for Spark. Times are integers, ms.
    """
    asked = list(dict.fromkeys([*names, *only, "at"]))

    def rows(piece: Piece) -> Iterator[tuple[Any, ...]]:
        try:
            table = read(piece, asked)
        except UNREADABLE as error:
            log.warning("%s is left out: %s", piece.path, error)
            return iter(())
        keep = pc.and_(pc.greater_equal(table["at"], since), pc.less(table["at"], until))
        for column, values in only.items():
            keep = pc.and_(keep, _among(table[column], values))
        return zip(*(column.to_pylist() for column in table.filter(keep).select(names).columns), strict=True)

    found = shared(spark, every).flatMap(lambda share: chain.from_iterable(map(rows, share[1])))
    return spark.createDataFrame(found, schema, verifySchema=False)


def _among(column: pa.ChunkedArray, values: Sequence[Any]) -> pa.ChunkedArray:
    """Which of the column's values are among these."""
    plain = column.cast(pa.string()) if column.type == _WORDS else column
    return pc.is_in(plain, value_set=pa.array(values, type=plain.type))
