"""The one way to a Spark session: its settings, the packages that remote workers need, and how far its stages are.

What is computed in it lives in the checks.
"""

import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_checks.options import Progress

SHIPPED = ("agent", "spark_checks")
"""The packages that Python workers on other machines get from us; what these import must be installed there."""

QUICK_START: Mapping[str, str] = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a check that does little in the JVM: half the CPU time of a start goes to compiling what runs once (seen: 12 s of
CPU time to start Spark, run a job and stop, 6.5 s with these flags).
"""

_DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    # A damaged digest or journal file is told as such, and not read as if it were whole.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.log.level": "WARN",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Elsewhere our packages come with the first task only, when this process has been started.
    "spark.python.daemon.module": "spark_checks.workers",
}


_PACKAGES = "spark.jars.packages"


class PackagesError(Exception):
    """Spark did not start with the packages that a check needs; a sentence."""


def overruled(own: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """A check's own settings under those asked for. Packages come together, unless none are asked for: ""."""
    both = ",".join(dict.fromkeys(one[_PACKAGES] for one in (own, asked) if one.get(_PACKAGES)))
    made = {**own, **asked}
    return made | {_PACKAGES: both} if made.get(_PACKAGES) else made


def settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a master: ours, overruled by what was asked for."""
    return {**_DEFAULTS, **(_LOCAL if _local(master) else {}), **conf}


@contextmanager
def session(name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end. Raises RuntimeError where this process has one already, and PackagesError.

    conf: any `spark.*` setting. `spark.pyspark.python` says which Python the workers run; by default the one that runs
    this, which must then exist at the same path wherever a worker runs.
    """
    if SparkSession.getActiveSession() is not None:
        msg = "There is a Spark session in this process already, with settings of its own."
        raise RuntimeError(msg)
    made = settings(master, conf or {})
    # The driver reads the environment alone: `spark.pyspark.python` is a setting of spark-submit (SparkSubmit.scala).
    os.environ["PYSPARK_PYTHON"] = made.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    # The JVM that only puts together the command of the other one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_START["spark.driver.extraJavaOptions"])
    builder = SparkSession.builder.master(master).appName(f"backflow {name}")
    for key, value in made.items():
        builder = builder.config(key, value)
    spark = _started(builder, made.get(_PACKAGES, ""))
    try:
        if _local(master):
            yield spark
        else:
            with tempfile.TemporaryDirectory(prefix="backflow-") as folder:
                spark.sparkContext.addPyFile(str(_packed(Path(folder) / "backflow.zip")))
                yield spark
    finally:
        # The server of accumulators, of which there are none, would look only within a second whether it is to end:
        # nobody waits for it. Its thread is a daemon.
        spark.sparkContext._accumulatorServer = None  # type: ignore[assignment]  # noqa: SLF001
        spark.stop()


@contextmanager
def stages_told(spark: SparkSession, progress: Progress, what: str, every: float = 1.0) -> Iterator[None]:
    """While the body runs, tell how many tasks of all stages so far are done. every: in s; what: names the tasks.

    What was done stays done when its stage is over, and stages that wait count from the start of their job: neither
    number ever falls.
    """
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def tell() -> None:
        done: dict[int, int] = {}
        tasks: dict[int, int] = {}
        last = (0, 0)
        while not ended.wait(every):
            jobs = [job for one in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(one))]
            running = {stage for job in jobs for stage in job.stageIds}
            for one in running:
                if stage := tracker.getStageInfo(one):
                    tasks[one] = max(tasks.get(one, 0), stage.numTasks)
                    done[one] = max(done.get(one, 0), stage.numCompletedTasks)
            done |= {one: of for one, of in tasks.items() if one not in running}
            if tasks and (now := (sum(done.values()), sum(tasks.values()))) != last:
                last = now
                progress(f"{now[0]}/{now[1]} {what}")

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _started(builder: SparkSession.Builder, packages: str) -> SparkSession:
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)  # which the JVM inherits: with spark.jars.ivySettings Ivy prints, and we print nothing but findings
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if not packages or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        msg = (
            f"Spark did not start; most likely {packages} could not be fetched, which is done once, from Maven's own "
            "repository or those that spark.jars.repositories names. Where there is no network, give the jars in "
            f'spark.jars and set {_PACKAGES} to ""'
        )
        raise PackagesError(msg) from error
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _local(master: str) -> bool:
    return master.partition("[")[0] == "local"


def _packed(target: Path) -> Path:
    """Our packages' sources as one zip, from which Python imports."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in SHIPPED:
            spec = find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec else ():
                for path in sorted(Path(place).rglob("*.py")):
                    packed.write(path, path.relative_to(Path(place).parent))
    return target
