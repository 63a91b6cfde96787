"""One Spark session for all tests that need one; those that do not ask for it start none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_checks.session import JVM_OPTIONS, QUICK_START, session
from tests.spark_checks import disks
from tests.spark_checks.places import MASTER, REMOTE, SHARE


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, settings as the checks have them."""
    # The code of many checks is compiled in one JVM; a quick start leaves 48 MiB for it.
    options = {JVM_OPTIONS: f"{QUICK_START[JVM_OPTIONS]} -XX:ReservedCodeCacheSize=240m"}
    small = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", **SHARE}
    with session("tests", MASTER, {**small, **options}, remote=REMOTE) as started:
        yield started


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """Return a log directory whose offsets decrease once."""
    entries = [*disks.log(2, "none", 30), *disks.log(2, "none", 40, start=20)]
    disks.write(tmp_path / "logs", "t", 0, {0: b"".join(entries)})
    return tmp_path / "logs"
