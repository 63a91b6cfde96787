"""Spark sessions: one per process, merged settings, progress of stages."""

import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_checks.session import merge_settings, report_stages, session


def test_a_second_session_is_refused_and_leaves_the_first_alone(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match="already has a Spark session"), session("second", "local[1]"):
        pass
    assert spark.range(3).count() == 3


def test_packages_of_a_check_and_given_ones_are_combined() -> None:
    own = {"spark.jars.packages": "a:b:1", "spark.x": "1"}
    assert merge_settings(own, {}) == own
    assert merge_settings(own, {"spark.jars.packages": "c:d:2", "spark.x": "2"}) == {
        "spark.jars.packages": "a:b:1,c:d:2",
        "spark.x": "2",
    }
    assert merge_settings(own, {"spark.jars.packages": ""}) == {"spark.jars.packages": "", "spark.x": "1"}
    assert merge_settings({}, {"spark.jars.packages": "c:d:2"}) == {"spark.jars.packages": "c:d:2"}


def test_running_stages_report_their_finished_tasks(spark: SparkSession) -> None:
    lines: list[str] = []
    with report_stages(spark, lines.append, "parts", every=0.01):
        while not lines:
            spark.sparkContext.parallelize(range(8), 8).map(lambda number: number**1_000_000 % 7).collect()
    assert all(line.endswith("/8 parts") for line in lines)


def test_progress_never_decreases(spark: SparkSession) -> None:
    lines: list[str] = []

    def slow(number: int) -> tuple[int, int]:
        return number % 3, number**400_000 % 7

    with report_stages(spark, lines.append, "parts", every=0.01):
        for _ in range(2):
            spark.sparkContext.parallelize(range(6), 6).map(slow).groupByKey(4).map(
                lambda pair: slow(pair[0])
            ).collect()
    figures = [tuple(map(int, line.split()[0].split("/"))) for line in lines]
    assert figures == sorted(figures)
    assert [total for _, total in figures] == sorted(total for _, total in figures)
    assert all(done <= total for done, total in figures)
    assert figures[-1][1] == 20


def test_workers_import_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:

    def seen(_: int) -> tuple[str, list[str]]:
        return pyspark.__file__, [place for place in sys.path if place.endswith((".zip", ".jar"))]

    assert spark.sparkContext.parallelize([0], 1).map(seen).collect() == [(pyspark.__file__, [])]
