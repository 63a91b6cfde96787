"""The session builder: one session a process, and stages that tell how far they are."""

import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_checks.session import overruled, session, stages_told


def test_a_second_session_is_refused_and_leaves_the_first_alone(spark: SparkSession) -> None:
    """It would silently have the settings of the first, and stop it."""
    with pytest.raises(RuntimeError, match="in this process already"), session("second", "local[1]"):
        pass
    assert spark.range(3).count() == 3


def test_packages_of_a_check_and_those_asked_for_come_together() -> None:
    """All else that is asked for counts alone; none at all where none are asked for."""
    own = {"spark.jars.packages": "a:b:1", "spark.x": "1"}
    assert overruled(own, {}) == own
    assert overruled(own, {"spark.jars.packages": "c:d:2", "spark.x": "2"}) == {
        "spark.jars.packages": "a:b:1,c:d:2",
        "spark.x": "2",
    }
    assert overruled(own, {"spark.jars.packages": ""}) == {"spark.jars.packages": "", "spark.x": "1"}
    assert overruled({}, {"spark.jars.packages": "c:d:2"}) == {"spark.jars.packages": "c:d:2"}


def test_running_stages_tell_how_many_of_their_tasks_are_done(spark: SparkSession) -> None:
    """While the body runs; here in eight tasks."""
    told: list[str] = []
    with stages_told(spark, told.append, "parts", every=0.01):
        while not told:
            spark.sparkContext.parallelize(range(8), 8).map(lambda number: number**1_000_000 % 7).collect()
    assert all(one.endswith("/8 parts") for one in told)


def test_progress_never_falls_from_stage_to_stage(spark: SparkSession) -> None:
    """Of two jobs of two stages each: what was done stays done, also when its stage is over."""
    told: list[str] = []

    def slow(number: int) -> tuple[int, int]:
        return number % 3, number**400_000 % 7

    with stages_told(spark, told.append, "parts", every=0.01):
        for _ in range(2):
            spark.sparkContext.parallelize(range(6), 6).map(slow).groupByKey(4).map(lambda one: slow(one[0])).collect()
    figures = [tuple(map(int, one.split()[0].split("/"))) for one in told]
    assert figures == sorted(figures)
    assert [total for _, total in figures] == sorted(total for _, total in figures)
    assert all(done <= total for done, total in figures)
    assert figures[-1][1] == 20


def test_workers_take_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:
    """Not from the zip that Spark puts before it, which is compiled at each start and listed again for each task."""

    def seen(_: int) -> tuple[str, list[str]]:
        return pyspark.__file__, [place for place in sys.path if place.endswith((".zip", ".jar"))]

    assert spark.sparkContext.parallelize([0], 1).map(seen).collect() == [(pyspark.__file__, [])]
