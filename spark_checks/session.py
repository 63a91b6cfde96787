"""Spark sessions for checks: settings, the packages that remote workers need, and progress of stages."""

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

from spark_checks.jars import with_verified_jars
from spark_checks.options import Progress

SHIPPED = ("agent", "spark_checks")
"""The packages sent to Python workers on other machines; their dependencies must be installed there."""

QUICK_START: Mapping[str, str] = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a check that does little in the JVM: half the CPU time of a start goes to compiling what runs once (seen: 12 s of
CPU time to start Spark, run a job and stop, 6.5 s with these flags).
"""

_DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    # Report a damaged digest or journal file instead of reading it as if it were intact.
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
    # Remote workers get our packages with the first task only, after this process has started.
    "spark.python.daemon.module": "spark_checks.workers",
}
_PACKAGES = "spark.jars.packages"


class PackagesError(Exception):
    """Spark did not start with the packages that a check needs."""


def merge_settings(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a check's own settings overridden by those given. Packages are combined, unless given as ""."""
    packages = ",".join(dict.fromkeys(conf[_PACKAGES] for conf in (own, given) if conf.get(_PACKAGES)))
    merged = {**own, **given}
    return merged | {_PACKAGES: packages} if merged.get(_PACKAGES) else merged


def settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for a master: ours, overridden by `conf`."""
    return {**_DEFAULTS, **(_LOCAL if _is_local(master) else {}), **conf}


@contextmanager
def session(name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Provide a Spark session and stop it at the end.

    conf: any `spark.*` setting. `spark.pyspark.python` selects the workers' Python; by default the one that runs this,
    which must then exist at the same path on every worker. Raises RuntimeError if this process has a session already,
    PackagesError and JarsError.
    """
    if SparkSession.getActiveSession() is not None:
        msg = "This process already has a Spark session, with settings of its own."
        raise RuntimeError(msg)
    conf = with_verified_jars(settings(master, conf or {}))
    # The driver reads only the environment: `spark.pyspark.python` is a setting of spark-submit (SparkSubmit.scala).
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    # For the JVM that only builds the command of the other one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_START["spark.driver.extraJavaOptions"])
    builder = SparkSession.builder.master(master).appName(f"backflow {name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = _start(builder, conf.get(_PACKAGES, ""))
    try:
        if _is_local(master):
            yield spark
        else:
            with tempfile.TemporaryDirectory(prefix="backflow-") as folder:
                spark.sparkContext.addPyFile(str(_zip_packages(Path(folder) / "backflow.zip")))
                yield spark
    finally:
        # Stopping would wait up to a second for the server of accumulators, of which there are none. Its thread is a
        # daemon.
        spark.sparkContext._accumulatorServer = None  # type: ignore[assignment]  # noqa: SLF001
        spark.stop()


@contextmanager
def report_stages(spark: SparkSession, progress: Progress, what: str, every: float = 1.0) -> Iterator[None]:
    """Report how many tasks of all stages are done while the body runs. every: in s; what: names the tasks.

    Finished stages keep counting, and waiting stages count from the start of their job: neither number ever decreases.
    """
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def report() -> None:
        done: dict[int, int] = {}
        tasks: dict[int, int] = {}
        last = (0, 0)
        while not ended.wait(every):
            jobs = [job for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number))]
            running = {stage for job in jobs for stage in job.stageIds}
            for number in running:
                if stage := tracker.getStageInfo(number):
                    tasks[number] = max(tasks.get(number, 0), stage.numTasks)
                    done[number] = max(done.get(number, 0), stage.numCompletedTasks)
            done |= {number: total for number, total in tasks.items() if number not in running}
            if tasks and (now := (sum(done.values()), sum(tasks.values()))) != last:
                last = now
                progress(f"{now[0]}/{now[1]} {what}")

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _start(builder: SparkSession.Builder, packages: str) -> SparkSession:
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)  # the JVM inherits it: Ivy prints if spark.jars.ivySettings is set, and stdout is for findings only
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if not packages or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        msg = (
            f"Spark did not start; most likely it could not download {packages} from Maven Central or the repositories "
            "in spark.jars.repositories, which is needed once. Without a network, put the jars into "
            f'spark.jars and set {_PACKAGES} to ""'
        )
        raise PackagesError(msg) from error
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _is_local(master: str) -> bool:
    return master.partition("[")[0] == "local"


def _zip_packages(target: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED:
            spec = find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec else ():
                for path in sorted(Path(place).rglob("*.py")):
                    archive.write(path, path.relative_to(Path(place).parent))
    return target
