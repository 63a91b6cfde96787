"""The journal's commits in Spark: the search for rewinds and jumps, and series of commits and logs for baselines.

Workers read files in order of position and shuffle only each share's first and last changes per key; `arrays` says
what these arrays mean.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from agent.storage.journal.segments import UNREADABLE, Unreadable
from spark_checks.journal.files import PIECE_ROWS, JournalWindow, Piece, read, share_out
from spark_checks.offsets.arrays import (
    EDGE_NUMBERS,
    MOVE_NUMBERS,
    NO_OFFSET,
    NO_ROWS,
    NO_TIME,
    Ints,
    Move,
    Rows,
    Share,
    join_shares,
    key_ranges,
    last_indices,
)
from spark_checks.offsets.coverage import Clock
from spark_checks.offsets.keys import Key, KeyCodes, Predicate, every
from spark_checks.shares import BATCH_ROWS, cores, map_shares

_COLUMNS = ("position", "at", "since", "cluster", "group", "topic", "partition", "offset")
_MOVE, _EDGES, _LATE, _DAMAGED, _LEFT_OUT = range(5)
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
_SHUFFLED = pa.schema([pa.field("bucket", pa.int32()), pa.field("rows", pa.binary())])
"""A bucket of keys and its rows of _SCHEMA, packed as an Arrow stream: Spark would copy each row by itself."""

_JOINED = "rows binary"
_COMMITS = pa.schema(
    {
        "group": pa.string(),
        "topic": pa.string(),
        "partition": pa.int64(),
        "time": pa.int64(),
        "position": pa.int64(),
        "offset": pa.int64(),
    }
)
MOST_MOVES = 200
"""How many moves of a key are kept, the last ones: if two readers commit for one group, each commit may be one."""

_JOINED_ROWS = 1_000_000
_BUCKETS = 512
_BUCKETS_PER_TASK = 4
"""Buckets are hashed to tasks: with one for each, some tasks would get several and others none."""

Intervals: TypeAlias = Mapping[Key, Sequence[tuple[int, int]]]
_Columns: TypeAlias = Sequence[Ints]
"""Times, positions and values."""


class CommitFilter(NamedTuple):
    """Which commits are searched. since, until: bounds of `at`, ms. min_records: the smallest rewind or jump."""

    cluster: str
    group: Predicate
    topic: Predicate
    since: int
    until: int
    min_records: int
    clock: Clock


class Found(NamedTuple):
    """Moves with their keys, in no order. left_out: the number of rewinds before those that are kept, by key."""

    moves: Sequence[tuple[Key, Move]]
    left_out: Mapping[Key, int]


class Series(NamedTuple):
    """Values over time (ms), in order of time."""

    time: Ints
    value: Ints


class Baseline(NamedTuple):
    """How a group usually moves on a partition: the medians of an hour. step: records; every: ms."""

    step: int
    every: int


def search(spark: SparkSession, pieces: Sequence[Piece], wanted: CommitFilter, unreadable: Unreadable) -> Found:
    """Return the rewinds and jumps of the commits in these pieces, of each key the last. Skips damaged pieces."""
    at_once, rows_read = cores(spark), sum(piece.rows for piece in pieces)
    shares = share_out(pieces, at_once)
    buckets = max(at_once * _BUCKETS_PER_TASK, min(rows_read // _JOINED_ROWS, _BUCKETS))
    shuffled = map_shares(spark, shares, partial(_search_share, wanted, buckets), _SHUFFLED)
    rows = _join_buckets(shuffled, buckets, wanted.min_records)
    for path, reason in {key[:2] for key, what, _ in rows if what == _DAMAGED}:
        unreadable(Path(path), reason)
    late = frozenset(key for key, what, _ in rows if what == _LATE)
    if late:
        # Late observations across chunks are rare: only of these keys is every commit shuffled.
        shuffled = map_shares(spark, shares, partial(_read_keys, wanted, buckets, late), _SHUFFLED)
        rows = [row for row in rows if row[0] not in late] + _join_buckets(shuffled, buckets, wanted.min_records)
    return Found(
        [(key, Move.of(numbers)) for key, what, numbers in rows if what == _MOVE],
        {key: numbers[0] for key, what, numbers in rows if what == _LEFT_OUT},
    )


def _search_share(
    wanted: CommitFilter, buckets: int, numbered: tuple[int, Sequence[Piece]]
) -> Iterator[pa.RecordBatch]:
    """Yield the moves within a share, and its edges."""
    number, pieces = numbered
    codes, share = KeyCodes((wanted.cluster.__eq__, wanted.group, wanted.topic)), Share(wanted.min_records)
    shuffle = partial(_shuffle, codes, buckets, number)
    damaged: list[tuple[str, str]] = []
    for rows in _chunks(pieces, codes, wanted, share, damaged):
        moves = share.search(rows)
        yield from shuffle(_MOVE, moves.code, moves.numbers.ravel(), np.full(moves.code.size, MOVE_NUMBERS))
    yield from shuffle(_EDGES, *share.edges())
    late = share.late_keys()
    yield from shuffle(_LATE, late, late[:0], np.zeros_like(late))
    for path, reason in damaged:
        row = {"group": path, "topic": reason, "partition": 0, "share": number, "what": _DAMAGED, "numbers": []}
        yield _pack([0], [pa.Table.from_pylist([row], schema=_SCHEMA)])


def _codes_of(wanted: CommitFilter, only: Collection[Key]) -> KeyCodes:
    groups, topics = {key.group for key in only}, {key.topic for key in only}
    return KeyCodes((wanted.cluster.__eq__, groups.__contains__, topics.__contains__), only)


def _read_keys(
    wanted: CommitFilter, buckets: int, only: Collection[Key], numbered: tuple[int, Sequence[Piece]]
) -> Iterator[pa.RecordBatch]:
    """Yield every commit of some keys, as edges of one share."""
    codes = _codes_of(wanted, only)
    for rows in _chunks(numbered[1], codes, wanted):
        fresh = np.ones(rows.code.size, np.int64)
        numbers = np.column_stack((rows.time, rows.position, rows.offset, rows.since, fresh))
        yield from _shuffle(codes, buckets, 0, _EDGES, rows.code, numbers.ravel(), EDGE_NUMBERS * fresh)


def _join(min_records: int, bucket: pa.Table) -> Iterator[pa.Table]:
    """Yield the moves and late keys of a bucket, including those that show only where shares meet."""
    table = pa.concat_tables([_SCHEMA.empty_table(), *map(_unpack, bucket["rows"])])
    what = table["what"].to_numpy()
    yield table.filter(pa.array((what != _EDGES) & (what != _MOVE)))
    edges = table.filter(pa.array(what == _EDGES)).combine_chunks()
    codes = KeyCodes((every, every, every))
    code, _ = codes.of(_with_dictionaries(edges))
    lists = edges["numbers"].combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy()) // EDGE_NUMBERS
    numbers = lists.flatten().to_numpy().reshape(-1, EDGE_NUMBERS).T
    code, share = np.repeat(code, lengths), np.repeat(edges["share"].to_numpy(), lengths)
    moves, late = join_shares(Rows(code, *numbers[:4]), share, numbers[4].astype(bool), min_records)
    joined = _rows_of(codes, -1, _MOVE, moves.code, moves.numbers.ravel(), np.full(moves.code.size, MOVE_NUMBERS))
    within = table.filter(pa.array(what == _MOVE))
    yield from _keep_last(pa.concat_tables([within, *(pa.Table.from_batches([rows]) for rows in joined)]))
    for rows in _rows_of(codes, -1, _LATE, late, late[:0], np.zeros_like(late)):
        yield pa.Table.from_batches([rows])


def _keep_last(moves: pa.Table) -> Iterator[pa.Table]:
    """Yield the last moves of each key, and how many rewinds are left out."""
    codes = KeyCodes((every, every, every))
    code, _ = codes.of(_with_dictionaries(moves))
    numbers = moves.combine_chunks()["numbers"].combine_chunks().flatten().to_numpy().reshape(-1, MOVE_NUMBERS)
    time, offset, before_offset = numbers[:, 0], numbers[:, 2], numbers[:, 6]
    order = np.lexsort((time, code))
    kept = order[last_indices(*key_ranges(code[order]), MOST_MOVES)]
    yield moves.take(pa.array(kept))
    is_left_out = offset < before_offset
    is_left_out[kept] = False
    rewinds = np.bincount(code[is_left_out])
    affected = np.flatnonzero(rewinds)
    for rows in _rows_of(codes, -1, _LEFT_OUT, affected, rewinds[affected], np.ones_like(affected)):
        yield pa.Table.from_batches([rows])


def _chunks(
    pieces: Sequence[Piece],
    codes: KeyCodes,
    wanted: CommitFilter,
    share: Share | None = None,
    damaged: list[tuple[str, str]] | None = None,
) -> Iterator[Rows]:
    """Yield the wanted commits of consecutive pieces, in chunks larger than what a share joins with each.

    damaged: collects path and reason of what cannot be read and is skipped.
    """
    waiting = NO_ROWS
    for piece in pieces:
        try:
            table = read(piece, _COLUMNS)
        except UNREADABLE as error:
            if damaged is not None:
                damaged.append((piece.path, str(error)))
            continue
        if piece.low < wanted.since or piece.high >= wanted.until:
            at = table["at"].to_numpy()
            table = table.filter(pa.array((at >= wanted.since) & (at < wanted.until))).unify_dictionaries()
        if table.num_rows:
            rows = _rows(table, codes, wanted.clock)
            waiting = waiting.then(rows) if waiting.code.size else rows
        if waiting.code.size >= max(PIECE_ROWS // 2, share.carried if share is not None else 0):
            yield waiting
            waiting = NO_ROWS
    if waiting.code.size:
        yield waiting


def _rows(table: pa.Table, codes: KeyCodes, clock: Clock) -> Rows:
    code, wanted = codes.of(table)
    if wanted is not None:
        table = table.filter(pa.array(wanted))
    position, at = table["position"].to_numpy(), table["at"].to_numpy()
    time = at + clock.shifts(position, at) if clock.steps else at
    return Rows(code, time, position, _fill(table["offset"], NO_OFFSET), _fill(table["since"], NO_TIME))


def _fill(column: pa.ChunkedArray, stand_in: int) -> Ints:
    filled: Ints = (column.fill_null(stand_in) if column.null_count else column).to_numpy()
    return filled


def _with_dictionaries(table: pa.Table) -> pa.Table:
    """Return a table without clusters as `KeyCodes` needs it: all of one cluster."""
    columns = {name: table[name].dictionary_encode().unify_dictionaries() for name in ("group", "topic")}
    cluster = pa.chunked_array([pa.array(["-"] * table.num_rows, pa.string())]).dictionary_encode()
    return pa.table({"cluster": cluster, **columns, "partition": table["partition"]})


def _shuffle(codes: KeyCodes, buckets: int, share: int, what: int, *columns: Ints) -> Iterator[pa.RecordBatch]:
    """Yield rows packed by bucket. columns: codes, numbers, and how many numbers each code has."""
    for rows in _rows_of(codes, share, what, *columns):
        bucket = codes.buckets(columns[0], buckets)
        order = np.argsort(bucket, kind="stable")
        numbers, begin = np.unique(bucket[order], return_index=True)
        parts = (rows.take(pa.array(chosen)) for chosen in np.split(order, begin[1:]))
        yield _pack(numbers.tolist(), [pa.Table.from_batches([part]) for part in parts])


def _rows_of(codes: KeyCodes, share: int, what: int, *columns: Ints) -> Iterator[pa.RecordBatch]:
    """Yield the rows of _SCHEMA of some codes, if there are any."""
    code, numbers, lengths = columns
    if code.size:
        lists = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32)), pa.array(numbers))
        constants = (pa.array(np.full(code.size, value, np.int32)) for value in (share, what))
        yield pa.RecordBatch.from_arrays([*codes.names(code), *constants, lists], schema=_SCHEMA)


def _pack(buckets: Sequence[int], tables: Sequence[pa.Table]) -> pa.RecordBatch:
    packed = pa.array(map(_stream, tables), pa.binary())
    return pa.record_batch([pa.array(buckets, pa.int32()), packed], schema=_SHUFFLED)


def _stream(table: pa.Table) -> bytes:
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_table(table)
        content: bytes = sink.getvalue().to_pybytes()
    return content


def _unpack(rows: pa.BinaryScalar) -> pa.Table:
    return pa.ipc.open_stream(rows.as_buffer()).read_all()


def _join_buckets(shuffled: DataFrame, buckets: int, min_records: int) -> list[tuple[Key, int, list[int]]]:
    """Return key, kind and numbers of the rows that `_join` finds. A task holds one bucket at a time."""

    def join(bucket: pa.Table) -> pa.Table:
        packed = pa.array([_stream(pa.concat_tables(_join(min_records, bucket)))], pa.binary())
        return pa.table({"rows": packed})

    tasks = -(-buckets // _BUCKETS_PER_TASK)
    joined = shuffled.repartition(tasks, "bucket").groupBy("bucket").applyInArrow(join, _JOINED).toArrow()
    table = pa.concat_tables([_SCHEMA.empty_table(), *map(_unpack, joined["rows"])])
    names = zip(*(table[name].to_pylist() for name in ("group", "topic", "partition")), strict=True)
    return [
        (Key(*name), what, numbers)
        for name, what, numbers in zip(names, table["what"].to_pylist(), table["numbers"].to_pylist(), strict=True)
    ]


def read_commits(
    spark: SparkSession, pieces: Sequence[Piece], wanted: CommitFilter, intervals: Intervals
) -> dict[Key, Series]:
    """Return the committed offsets of some keys in some intervals."""
    bounds = sorted(interval for of_key in intervals.values() for interval in of_key)
    near = [piece for piece in pieces if any(piece.low <= end and piece.high >= begin for begin, end in bounds)]
    shares, read_share = share_out(near, cores(spark)), partial(_read_intervals, wanted, dict(intervals))
    table = map_shares(spark, shares, read_share, _COMMITS).toArrow()
    codes = KeyCodes((every, every, every))
    code, _ = codes.of(_with_dictionaries(table))
    columns = [table[name].to_numpy() for name in ("time", "position", "offset")]
    order, keys = np.argsort(code, kind="stable"), codes.keys()
    own_rows = [order[begin:end] for begin, end in zip(*key_ranges(code[order]), strict=True)]
    return {keys[code[own[0]]]: _series([[column[own] for column in columns]]) for own in own_rows}


def _read_intervals(
    wanted: CommitFilter, intervals: Intervals, numbered: tuple[int, Sequence[Piece]]
) -> Iterator[pa.RecordBatch]:
    codes = _codes_of(wanted, intervals)
    for rows in _chunks(numbered[1], codes, wanted):
        keys = codes.keys()
        near = np.zeros(rows.code.size, np.bool_)
        for code in np.unique(rows.code).tolist():
            for begin, end in intervals[keys[code]]:
                near |= (rows.code == code) & (rows.time >= begin) & (rows.time <= end)
        own = rows.at(near & (rows.offset >= 0))
        columns = [*codes.names(own.code), *map(pa.array, (own.time, own.position, own.offset))]
        yield from pa.Table.from_arrays(columns, schema=_COMMITS).to_batches(BATCH_ROWS)


def _series(parts: Sequence[_Columns]) -> Series:
    time, position, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((position, time))
    return Series(time[order], value[order])


def baseline(series: Series, begin: int, end: int) -> Baseline | None:
    """Return the medians of the advances in [begin, end), or None for fewer than ten."""
    near = (series.time >= begin) & (series.time < end)
    time, offset = series.time[near], series.value[near]
    moved = np.append(True, offset[1:] != offset[:-1]) if offset.size else np.empty(0, np.bool_)
    every, step = np.diff(time[moved]), np.diff(offset[moved])
    ahead = step > 0
    if np.count_nonzero(ahead) < 10:
        return None
    return Baseline(int(np.median(step[ahead])), int(np.median(every[ahead])))


def read_log(window: JournalWindow, key: Key, begin: int, end: int) -> tuple[Series, Series]:
    """Return the log start and log end offsets of a partition in [begin, end]."""
    names = ("at", "cluster", "topic", "partition", "log_start", "log_end", "position")
    parts = []
    for piece in window.damaged.leave_out(window.pieces("log_offsets", begin, end + 1)):
        try:
            parts.append(_read_log(read(piece, names), window.cluster, key, begin, end))
        except UNREADABLE as error:
            window.damaged.take_page(piece, str(error))
    starts, ends = zip(*parts, strict=True) if parts else ((), ())
    nothing = [(np.empty(0, np.int64),) * 3]
    return _series(starts or nothing), _series(ends or nothing)


def _read_log(table: pa.Table, cluster: str, key: Key, begin: int, end: int) -> list[_Columns]:
    names = (table["cluster"].cast(pa.string()).to_pylist(), table["topic"].cast(pa.string()).to_pylist())
    same = np.array([name == (cluster, key.topic) for name in zip(*names, strict=True)], np.bool_)
    at, position = table["at"].to_numpy(), table["position"].to_numpy()
    near = same & (table["partition"].to_numpy() == key.partition) & (at >= begin) & (at <= end)
    return [[at[near], position[near], table[name].to_numpy()[near]] for name in ("log_start", "log_end")]
