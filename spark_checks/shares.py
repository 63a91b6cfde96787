"""Work shared out to Spark's tasks, a share for each task, as DataFrames.

The same calls run on classic Spark and through Spark Connect. Shares travel as pickles within PySpark's function.
"""

import io
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

TASKS_PER_CORE = 4
"""Cores that finish early take over from others; a task itself costs a few milliseconds."""

BATCH_ROWS = 65_536
"""The most rows of an Arrow batch for Spark: it holds each batch in memory at once."""

_SLICES = re.compile(r"Range \(.*splits=(\d+)\)")
_RESULT = pa.schema([pa.field("result", pa.binary(), nullable=False)])

S = TypeVar("S")
R = TypeVar("R")


def cores(spark: SparkSession) -> int:
    """Return how many tasks run at once, as Spark slices data by default: in a plan, without a job."""
    with redirect_stdout(io.StringIO()) as plan:
        spark.range(1).explain()  # SQL's EXPLAIN would need Spark's parser, which takes 0.5 s of CPU time to load
    found = _SLICES.search(plan.getvalue())
    if found is None:
        msg = f"Spark's plan does not say into how many slices it divides a range: {plan.getvalue()}"
        raise RuntimeError(msg)
    return int(found[1])


def map_shares(
    spark: SparkSession, shares: Sequence[S], function: Callable[[S], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Return the rows of the record batches that the function makes of each share; schema: theirs."""
    if not shares:
        return spark.createDataFrame([], from_arrow_schema(schema))

    pickled = [pickle.dumps(share) for share in shares]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"]:
                yield from function(pickle.loads(pickled[number.as_py()]))  # noqa: S301 - the driver wrote it

    # Hashed or dealt out, several numbers could meet in one task; a range has exactly one in each.
    numbers = spark.range(0, len(shares), 1, len(shares))
    return numbers.mapInArrow(read, from_arrow_schema(schema))


def run_shares(spark: SparkSession, shares: Sequence[S], function: Callable[[S], R]) -> list[R]:
    """Return what the function returns for each share, in any order."""

    def result(share: S) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([pickle.dumps(function(share))], pa.binary())], schema=_RESULT)

    return [pickle.loads(row["result"]) for row in map_shares(spark, shares, result, _RESULT).collect()]  # noqa: S301
