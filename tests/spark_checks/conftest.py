"""One Spark session for all tests that need one; those that do not ask for it start none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_checks.session import QUICK_START, session
from tests.spark_checks import disks
from tests.spark_checks.places import MASTER, REMOTE, SHARE


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, settings as the checks have them."""
    small = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", **SHARE}
    with session("tests", MASTER, {**small, **QUICK_START}, remote=REMOTE) as started:
        yield started


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """Return a log directory whose offsets decrease once."""
    entries = [*disks.log(2, "none", 30), *disks.log(2, "none", 40, start=20)]
    disks.write(tmp_path / "logs", "t", 0, {0: b"".join(entries)})
    return tmp_path / "logs"
