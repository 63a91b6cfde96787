"""The session builder: one session a process, and stages that tell how far they are."""

import pytest
from pyspark.sql import SparkSession

from spark_checks.session import session, stages_told


def test_a_second_session_is_refused_and_leaves_the_first_alone(spark: SparkSession) -> None:
    """It would silently have the settings of the first, and stop it."""
    with pytest.raises(RuntimeError, match="in this process already"), session("second", "local[1]"):
        pass
    assert spark.range(3).count() == 3


def test_running_stages_tell_how_many_of_their_tasks_are_done(spark: SparkSession) -> None:
    """While the body runs; here in eight tasks."""
    told: list[str] = []
    with stages_told(spark, told.append, "parts", every=0.01):
        while not told:
            spark.sparkContext.parallelize(range(8), 8).map(lambda number: number**1_000_000 % 7).collect()
    assert all(one.endswith("/8 parts") for one in told)
