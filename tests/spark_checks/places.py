"""Where the tests run Spark: on two local cores, or as the environment variable BACKFLOW_TEST_SPARK says.

It names a master or a Spark Connect server (sc://HOST:PORT); tests/integration/test_spark_cluster.py sets it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from testbed.object_store import ObjectStore

_PLACE = os.environ.get("BACKFLOW_TEST_SPARK", "local[2]")
REMOTE = _PLACE if _PLACE.startswith("sc://") else None
MASTER = "local[2]" if REMOTE else _PLACE
SHARE = {"spark.executor.memory": "512m", "spark.cores.max": "2"}
"""What each session takes of a cluster: tests start commands, with sessions of their own, while they have one."""

OPTIONS = (
    ("--remote", REMOTE)
    if REMOTE
    else ("--master", MASTER, *(part for key, value in SHARE.items() for part in ("--conf", f"{key}={value}")))
)
"""The same for the command line of a check."""


@contextmanager
def reachable_store(spark: SparkSession, folder: Path, bucket: str) -> Iterator[ObjectStore]:
    """An object store that this process and Spark's workers reach by AWS's variables.

    folder: for its log. bucket: of no other store, as the workers keep their connection by it.
    """
    with ObjectStore(folder, bucket) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.variables().items():
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        yield store
