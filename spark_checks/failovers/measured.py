"""The log ends of all compared partitions, read and measured by Spark: a task takes a partition and its mirror."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from spark_checks.failovers.log_ends import LogEnds, Measured, measure
from spark_checks.failovers.positions import Comparison, Log

_COLUMNS = ("at", "since", "log_start", "log_end")
_SCHEMA = pa.schema({"number": pa.int32(), **dict.fromkeys(Measured._fields, pa.int64()), "is_early": pa.bool_()})


class Effect(NamedTuple):
    """A move on a partition, and what it repeats or skips there."""

    compared: Comparison
    measured: Measured


def read_effects(
    readings: DataFrame, partitions: DataFrame, comparisons: Sequence[Comparison], least_delay: int
) -> list[Effect]:
    """Return what the moves repeat and skip, as far as the logs show it.

    readings: columns cluster, topic, partition, at, since, log_start, log_end. partitions: cluster, topic and partition
    of all that were observed. Topics with another number of partitions on the other cluster are left out.
    """
    if not comparisons:
        return []
    counts = _count(partitions)
    by_pair: dict[tuple[Log, Log], list[tuple[int, Comparison]]] = {}
    for number, compared in enumerate(comparisons):
        pair = compared.logs
        if counts.get(pair[0][:2]) == counts.get(pair[1][:2]):
            by_pair.setdefault(pair, []).append((number, compared))
    pairs = list(by_pair)
    wanted = list(by_pair.values())

    def measure_pair(table: pa.Table) -> pa.Table:
        is_origin = table["is_origin"].to_numpy(zero_copy_only=False)
        origin, target = (_log_ends(table.filter(pa.array(side))) for side in (is_origin, ~is_origin))
        rows = []
        for number, compared in wanted[table["pair"][0].as_py()]:
            measured = measure(origin, target, compared, least_delay)
            if measured is not None:
                rows.append({"number": number, **measured._asdict()})
        return pa.Table.from_pylist(rows, schema=_SCHEMA)

    places = [(number, log is pair[0], *log) for number, pair in enumerate(pairs) for log in pair]
    named = readings.sparkSession.createDataFrame(
        places, "pair int, is_origin boolean, cluster string, topic string, partition long"
    )
    rows = (
        readings.join(sf.broadcast(named), ["cluster", "topic", "partition"])
        .select("pair", "is_origin", *_COLUMNS)
        .groupBy("pair")
        .applyInArrow(measure_pair, from_arrow_schema(_SCHEMA))
        .collect()
    )
    effects = [Effect(comparisons[row["number"]], Measured(*row[1:])) for row in rows]
    return sorted(effects, key=lambda effect: (effect.compared.target.at, effect.compared.move, *effect.compared.logs))


def _count(partitions: DataFrame) -> Mapping[tuple[str, str], int]:
    rows = partitions.groupBy("cluster", "topic").agg(sf.count_distinct("partition").alias("partitions")).collect()
    return {(row["cluster"], row["topic"]): row["partitions"] for row in rows}


def _log_ends(table: pa.Table) -> LogEnds:
    columns = (table[name].fill_null(-1).to_numpy() for name in _COLUMNS)
    return LogEnds.of(*(np.asarray(column, np.int64) for column in columns))
