"""The journal's commits searched in Spark for falls and leaps: what is read, what is shuffled, what comes back.

Workers read files in order of position and shuffle only each share's first and last changes per key. What those arrays
mean lives in `moves` and `stitch`, what is made of a hit in `offset_history`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark import RDD
from pyspark.sql import SparkSession

from agent.storage.journal.segments import UNREADABLE, Unreadable
from spark_checks.history.clock import Clock
from spark_checks.history.files import PIECE_ROWS, Piece, read, shared
from spark_checks.history.keys import Key, Keys, Wants
from spark_checks.history.moves import FORGOTTEN, NEVER, NONE, Ints, Rows
from spark_checks.history.stitch import EDGE_NUMBERS, HIT_NUMBERS, Hit, Share, joined

_COLUMNS = ("position", "at", "since", "cluster", "group", "topic", "partition", "offset")
_HIT, _EDGES, _UNRULY, _DAMAGED = range(4)
_SCHEMA = pa.schema(
    {
        "group": pa.string(),
        "topic": pa.string(),
        "partition": pa.int64(),
        "share": pa.int32(),
        "what": pa.int32(),
        "numbers": pa.list_(pa.int64()),
    }
)
_JOINED_ROWS = 4_000_000
_BUCKETS = 512

Told: TypeAlias = tuple[int, bytes]
"""A bucket of keys, and rows of _SCHEMA of it as an Arrow stream: Spark's own Arrow calls want pandas."""


class Asked(NamedTuple):
    """Which commits are looked at. since, until: bounds of `at`, ms. least: the smallest fall or leap, in records."""

    cluster: str
    group: Wants
    topic: Wants
    since: int
    until: int
    least: int
    clock: Clock


def search(spark: SparkSession, every: Sequence[Piece], asked: Asked, unreadable: Unreadable) -> list[tuple[Key, Hit]]:
    """All falls and leaps of the commits in these pieces, in no order. What is damaged is told and passed over."""
    cores = spark.sparkContext.defaultParallelism
    buckets = max(cores, min(sum(one.rows for one in every) // _JOINED_ROWS, _BUCKETS))
    files = shared(spark, every)
    rows = _collected(files.flatMap(partial(_first_look, asked, buckets)), buckets, asked.least)
    unruly = frozenset(key for key, what, _ in rows if what == _UNRULY)
    found = [(key, Hit.of(numbers)) for key, what, numbers in rows if what == _HIT and key not in unruly]
    if unruly:
        # Late observations across chunks are rare: only of these keys is every commit shuffled.
        again = _collected(files.flatMap(partial(_all_of, asked, buckets, unruly)), buckets, asked.least)
        found += [(key, Hit.of(numbers)) for key, what, numbers in again if what == _HIT]
    for path, reason in {key[:2] for key, what, _ in rows if what == _DAMAGED}:
        unreadable(Path(path), reason)
    return found


def _first_look(asked: Asked, buckets: int, taken: tuple[int, Sequence[Piece]]) -> Iterator[Told]:
    """What is found within a share, and its edges."""
    number, pieces = taken
    keys, share = Keys((asked.cluster.__eq__, asked.group, asked.topic)), Share(asked.least)
    told = partial(_told, keys, buckets, number)
    damaged: list[tuple[str, str]] = []
    for rows in chunks(pieces, keys, asked, share, damaged):
        hits = share.take(rows)
        yield from told(_HIT, hits.code, hits.numbers.ravel(), np.full(hits.code.size, HIT_NUMBERS))
    yield from told(_EDGES, *share.edges())
    late = share.unruly()
    yield from told(_UNRULY, late, late[:0], np.zeros_like(late))
    for path, reason in damaged:
        row = {"group": path, "topic": reason, "partition": 0, "share": number, "what": _DAMAGED, "numbers": []}
        yield 0, _stream(pa.Table.from_pylist([row], schema=_SCHEMA))


def _all_of(asked: Asked, buckets: int, only: Collection[Key], taken: tuple[int, Sequence[Piece]]) -> Iterator[Told]:
    """Every commit of some keys, as edges of one share."""
    groups, topics = {key.group for key in only}, {key.topic for key in only}
    keys = Keys((asked.cluster.__eq__, groups.__contains__, topics.__contains__), only)
    for rows in chunks(taken[1], keys, asked):
        fresh = np.ones(rows.code.size, np.int64)
        numbers = np.column_stack((rows.time, rows.position, rows.offset, rows.since, fresh))
        yield from _told(keys, buckets, 0, _EDGES, rows.code, numbers.ravel(), EDGE_NUMBERS * fresh)


def _join(least: int, arriving: Iterable[Told]) -> Iterator[bytes]:
    """Hits and unruly keys of some buckets, those included that show only where shares meet."""
    table = pa.concat_tables([_SCHEMA.empty_table(), *(pa.ipc.open_stream(one).read_all() for _, one in arriving)])
    what = table["what"].to_numpy()
    yield _stream(table.filter(pa.array(what != _EDGES)))
    edges = table.filter(pa.array(what == _EDGES)).combine_chunks()
    keys = Keys((bool, bool, bool))
    code, _ = keys.of(_with_dictionaries(edges))
    lists = edges["numbers"].combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy()) // EDGE_NUMBERS
    numbers = lists.flatten().to_numpy().reshape(-1, EDGE_NUMBERS).T
    code, share = np.repeat(code, lengths), np.repeat(edges["share"].to_numpy(), lengths)
    hits, late = joined(Rows(code, *numbers[:4]), share, numbers[4].astype(bool), least)
    for one in (
        (_HIT, hits.code, hits.numbers.ravel(), np.full(hits.code.size, HIT_NUMBERS)),
        (_UNRULY, late, late[:0], np.zeros_like(late)),
    ):
        yield from (told for _, told in _told(keys, 1, -1, *one))


def chunks(
    pieces: Sequence[Piece],
    keys: Keys,
    asked: Asked,
    share: Share | None = None,
    damaged: list[tuple[str, str]] | None = None,
) -> Iterator[Rows]:
    """The wanted commits of consecutive pieces, in chunks larger than what a share joins with each.

    damaged: takes the path and the reason of what cannot be read; it is passed over.
    """
    waiting = NONE
    for piece in pieces:
        try:
            table = read(piece, _COLUMNS)
        except UNREADABLE as error:
            if damaged is not None:
                damaged.append((piece.path, str(error)))
            continue
        if piece.low < asked.since or piece.high >= asked.until:
            at = table["at"].to_numpy()
            table = table.filter(pa.array((at >= asked.since) & (at < asked.until))).unify_dictionaries()
        if table.num_rows:
            waiting = (
                waiting.then(_rows(table, keys, asked.clock)) if waiting.code.size else _rows(table, keys, asked.clock)
            )
        if waiting.code.size >= max(PIECE_ROWS // 2, share.carried if share is not None else 0):
            yield waiting
            waiting = NONE
    if waiting.code.size:
        yield waiting


def _rows(table: pa.Table, keys: Keys, clock: Clock) -> Rows:
    code, wanted = keys.of(table)
    if wanted is not None:
        table = table.filter(pa.array(wanted))
    position, at = table["position"].to_numpy(), table["at"].to_numpy()
    time = at + clock.shifts(position, at) if clock.steps else at
    return Rows(code, time, position, _filled(table["offset"], FORGOTTEN), _filled(table["since"], NEVER))


def _filled(column: pa.ChunkedArray, stand_in: int) -> Ints:
    filled: Ints = (column.fill_null(stand_in) if column.null_count else column).to_numpy()
    return filled


def _with_dictionaries(table: pa.Table) -> pa.Table:
    """As `Keys` wants a table that has no cluster: all of one."""
    names = ["group", "topic"]
    columns = {name: table[name].dictionary_encode().unify_dictionaries() for name in names}
    cluster = pa.chunked_array([pa.array(["-"] * table.num_rows, pa.string())]).dictionary_encode()
    return pa.table({"cluster": cluster, **columns, "partition": table["partition"]})


def _told(keys: Keys, buckets: int, share: int, what: int, *told: Ints) -> Iterator[Told]:
    """Rows by bucket. told: codes, numbers, and how many of the numbers each code has."""
    code, numbers, lengths = told
    if not code.size:
        return
    lists = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32)), pa.array(numbers))
    same = (pa.array(np.full(code.size, one, np.int32)) for one in (share, what))
    batch = pa.RecordBatch.from_arrays([*keys.names(code), *same, lists], schema=_SCHEMA)
    bucket = keys.buckets(code, buckets)
    made = np.argsort(bucket, kind="stable")
    numbered, begin = np.unique(bucket[made], return_index=True)
    for number, chosen in zip(numbered.tolist(), np.split(made, begin[1:]), strict=True):
        yield number, _stream(pa.Table.from_batches([batch.take(pa.array(chosen))]))


def _stream(table: pa.Table) -> bytes:
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_table(table)
        made: bytes = sink.getvalue().to_pybytes()
    return made


def _collected(told: RDD[Told], buckets: int, least: int) -> list[tuple[Key, int, list[int]]]:
    """What was told, with what else shows where shares meet."""
    joined_up = told.partitionBy(buckets).mapPartitions(partial(_join, least))
    table = pa.concat_tables([pa.ipc.open_stream(one).read_all() for one in joined_up.collect()])
    names = zip(*(table[name].to_pylist() for name in ("group", "topic", "partition")), strict=True)
    return [
        (Key(*name), what, numbers)
        for name, what, numbers in zip(names, table["what"].to_pylist(), table["numbers"].to_pylist(), strict=True)
    ]
