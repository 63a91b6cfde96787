"""One Spark session for all tests that need one; those that do not ask for it start none."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_checks.session import QUICK_START, session

PLACE = "BACKFLOW_TEST_SPARK"
"""The environment variable that names a master or a Spark Connect server (sc://...) in place of two local cores."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, settings as the checks have them."""
    place = os.environ.get(PLACE, "local[2]")
    small = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.executor.memory": "512m"}
    with session(
        "tests", place, {**small, **QUICK_START}, remote=place if place.startswith("sc://") else None
    ) as started:
        yield started
