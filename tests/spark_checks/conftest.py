"""One Spark session for all tests that need one; those that do not ask for it start none."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_checks.session import QUICK_START, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session of two cores, settings as the checks have them."""
    small = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", **QUICK_START}
    with session("tests", "local[2]", small) as started:
        yield started
