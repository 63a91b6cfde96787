"""Work shared out to Spark's tasks: a task for each share, results of any kind, cores asked for without a job."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_checks.shares import cores, map_shares, run_shares

PLACES = pa.schema({"share": pa.int64(), "task": pa.int32()})

# PySpark leaves the socket of a result to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_each_share_has_a_task_of_its_own(spark: SparkSession) -> None:

    def places(share: list[int]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield pa.record_batch([pa.array(share), pa.array([context.partitionId()] * len(share), pa.int32())], PLACES)

    rows = map_shares(spark, [[number, -number] for number in range(40)], places, PLACES).collect()
    assert sorted((abs(row["share"]), row["task"]) for row in rows) == [(n, n) for n in range(40) for _ in range(2)]


def test_results_are_what_the_function_returns(spark: SparkSession) -> None:

    def result(share: tuple[Path, int]) -> dict[Path, int | None]:
        return {share[0]: share[1] or None}

    shares = [(Path(f"/{number}"), number) for number in range(5)]
    results = run_shares(spark, shares, result)
    assert sorted(next(iter(found.items())) for found in results if None not in found.values()) == shares[1:]
    assert {Path("/0"): None} in results


def test_no_shares_are_no_rows(spark: SparkSession) -> None:
    assert map_shares(spark, [], lambda _: [], PLACES).collect() == []
    assert run_shares(spark, [], os.path.exists) == []


def test_cores_are_those_of_the_session(spark: SparkSession) -> None:
    assert cores(spark) == 2
