"""Fork server of Spark's Python workers: PySpark's own, but with PySpark imported from where it is installed.

Spark puts its zip of PySpark's sources and a jar first on a worker's path. Each start then compiles PySpark again, and
`importlib.invalidate_caches`, which PySpark calls for each task, reads both of their directories again (seen with 4.0:
0.1 s of CPU time a task, and a second for the first). Spark runs this module as `spark.python.daemon.module`.
"""

import sys
from importlib import import_module

_PRELOADED = ("spark_checks.logs.replicas", "spark_checks.offsets.commits")
"""What workers call; with their imports, these cover almost all that any check needs there."""


def main() -> None:
    """Serve as `pyspark.daemon` does. Nothing may import PySpark before the path is cleaned."""
    sys.path[:] = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    for module in _PRELOADED:  # once, for all forks
        import_module(module)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
