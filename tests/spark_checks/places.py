"""Where the tests run Spark: on two local cores, or as the environment variable BACKFLOW_TEST_SPARK says.

It names a master or a Spark Connect server (sc://HOST:PORT); tests/integration/test_spark_cluster.py sets it.
"""

import os

_PLACE = os.environ.get("BACKFLOW_TEST_SPARK", "local[2]")
REMOTE = _PLACE if _PLACE.startswith("sc://") else None
MASTER = "local[2]" if REMOTE else _PLACE
OPTIONS = ("--remote", REMOTE) if REMOTE else ("--master", MASTER, "--conf", "spark.executor.memory=512m")
"""The same for the command line of a check."""
