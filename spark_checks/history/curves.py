"""Commits and logs of a few partitions over a stretch of time: for what is usual, and for plots."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from spark_checks.history.files import Piece, read, shared
from spark_checks.history.keys import Key, Keys
from spark_checks.history.moves import Ints
from spark_checks.history.scan import Asked, chunks
from spark_checks.history.words import Usual

Stretches: TypeAlias = Mapping[Key, Sequence[tuple[int, int]]]


_Rows: TypeAlias = tuple[Ints, Ints, Ints]


class Series(NamedTuple):
    """What one thing was over time, in order of time, ms."""

    time: Ints
    value: Ints


def commits(spark: SparkSession, every: Sequence[Piece], asked: Asked, wanted: Stretches) -> dict[Key, Series]:
    """The committed offsets of some keys in some stretches of time."""
    stretches = sorted(one for ones in wanted.values() for one in ones)
    some = [one for one in every if any(one.low <= end and one.high >= begin for begin, end in stretches)]
    told = defaultdict(list)
    for key, rows in shared(spark, some).flatMap(partial(_commits, asked, dict(wanted))).collect():
        told[key].append(rows)
    return {key: _joined(ones) for key, ones in told.items()}


def _commits(asked: Asked, wanted: Stretches, taken: tuple[int, Sequence[Piece]]) -> Iterator[tuple[Key, _Rows]]:
    groups, topics = {key.group for key in wanted}, {key.topic for key in wanted}
    keys = Keys((asked.cluster.__eq__, groups.__contains__, topics.__contains__), wanted)
    for rows in chunks(taken[1], keys, asked):
        names = keys.every()
        for code in np.unique(rows.code).tolist():
            near = np.zeros(rows.code.size, np.bool_)
            for begin, end in wanted[names[code]]:
                near |= (rows.time >= begin) & (rows.time <= end)
            own = rows.at(near & (rows.code == code) & (rows.offset >= 0))
            yield names[code], (own.time, own.position, own.offset)


def _joined(parts: Sequence[_Rows]) -> Series:
    time, position, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    made = np.lexsort((position, time))
    return Series(time[made], value[made])


def usual(series: Series, begin: int, end: int) -> Usual | None:
    """The medians of the advances in [begin, end); None where there are fewer than ten."""
    near = (series.time >= begin) & (series.time < end)
    time, offset = series.time[near], series.value[near]
    moved = np.append(True, offset[1:] != offset[:-1]) if offset.size else np.empty(0, np.bool_)
    every, step = np.diff(time[moved]), np.diff(offset[moved])
    ahead = step > 0
    if np.count_nonzero(ahead) < 10:
        return None
    return Usual(int(np.median(step[ahead])), int(np.median(every[ahead])))


def log(every: Sequence[Piece], cluster: str, key: Key, begin: int, end: int) -> tuple[Series, Series]:
    """The start and the end of a partition's log in [begin, end]."""
    names = ("at", "cluster", "topic", "partition", "log_start", "log_end", "position")
    parts = [_log(read(one, names), cluster, key, begin, end) for one in every if one.low <= end and one.high >= begin]
    starts, tops = zip(*parts, strict=True) if parts else ((), ())
    nothing = [(np.empty(0, np.int64),) * 3]
    return _joined(starts or nothing), _joined(tops or nothing)


def _log(table: pa.Table, cluster: str, key: Key, begin: int, end: int) -> list[_Rows]:
    names = (table["cluster"].cast(pa.string()).to_pylist(), table["topic"].cast(pa.string()).to_pylist())
    same = np.array([one == (cluster, key.topic) for one in zip(*names, strict=True)], np.bool_)
    at, position = table["at"].to_numpy(), table["position"].to_numpy()
    near = same & (table["partition"].to_numpy() == key.partition) & (at >= begin) & (at <= end)
    return [(at[near], position[near], table[name].to_numpy()[near]) for name in ("log_start", "log_end")]
