"""The process that Spark forks its Python workers from: PySpark's own, with PySpark imported as it is installed.

Spark puts its zip of PySpark's sources and a jar before all else on a worker's path. So each start compiles PySpark
anew, and `importlib.invalidate_caches`, which PySpark calls for each task, reads both of their directories again (seen
with 4.0: 0.1 s of CPU time a task, and a second for the first). Run by Spark as `spark.python.daemon.module`.
"""

import sys
from importlib import import_module


def main() -> None:
    """Serve as `pyspark.daemon` does."""
    sys.path[:] = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    import_module("spark_checks.logs.replicas")  # once, for all that are forked
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
