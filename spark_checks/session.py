"""Spark sessions for checks, classic or through Spark Connect: settings, and the packages that remote workers need."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import accumulators
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from agent.config.requirements import own_files
from spark_checks.jars import PACKAGES, with_verified_jars
from spark_checks.options import SESSION_SETTINGS
from spark_checks.progress import event_log

JVM_OPTIONS = "spark.driver.extraJavaOptions"
QUICK_START: Mapping[str, str] = {JVM_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a check that does little in the JVM: half the CPU time of a start goes to compiling what runs once (seen: 12 s of
CPU time to start Spark, run a job and stop, 6.5 s with these flags).
"""

_DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.log.level": "WARN",
    # Spark 4.0 passes it to the workers of some plans only, and then starts a fork server and workers for each kind.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
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


class PackagesError(Exception):
    """Spark did not start with the packages that a check needs."""


def merge_settings(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a check's own settings overridden by those given. Packages are combined, unless given as ""."""
    wanted = ",".join(dict.fromkeys(conf[PACKAGES] for conf in (own, given) if conf.get(PACKAGES)))
    merged = {**own, **given}
    return merged | {PACKAGES: wanted} if merged.get(PACKAGES) else merged


def settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for a master: ours, overridden by `conf`."""
    return {**_DEFAULTS, **(_LOCAL if _is_local(master) else {}), **conf}


def session_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a running Spark takes for a session; all others were chosen when it started."""
    return {key: value for key, value in {**_DEFAULTS, **conf}.items() if key.startswith(SESSION_SETTINGS)}


@contextmanager
def session(
    name: str,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    remote: str | None = None,
    submitted: bool = False,
) -> Iterator[SparkSession]:
    """Provide a Spark session and stop it at the end.

    conf: any `spark.*` setting. `spark.pyspark.python` selects the workers' Python; by default the one that runs this,
    which must then exist at the same path on every worker. remote: a Spark Connect server (sc://HOST:PORT) in place of
    a master. submitted: whether spark-submit started this process; the master is then that of its command line. Both
    take only the settings of SQL. Raises RuntimeError if this process has a session already, PackagesError and
    JarsError.
    """
    if SparkSession.getActiveSession() is not None:
        msg = "This process already has a Spark session, with settings of its own."
        raise RuntimeError(msg)
    given = conf or {}
    own_folders = (place for place in given.get("spark.local.dir", "").split(",") if Path(place).is_absolute())
    with tempfile.TemporaryDirectory(prefix="backflow-", dir=next(own_folders, None)) as folder:
        is_running = submitted or remote is not None
        spark = _join(name, remote) if is_running else _start(name, master, given, Path(folder))
        try:
            if is_running:
                for key, value in session_settings(given).items():
                    spark.conf.set(key, value)
            if is_running or not _is_local(master):
                spark.addArtifacts(str(_zip_packages(Path(folder) / "backflow.zip")), pyfile=True)
            yield spark
        finally:
            spark.stop()


class _AccumulatorServer(accumulators.AccumulatorServer):
    """PySpark's server of accumulators, which checks do not use.

    Its own `shutdown` waits up to a second for its thread, which is a daemon.
    """

    def shutdown(self) -> None:
        self.server_shutdown = True


def _join(name: str, remote: str | None) -> SparkSession:
    """Return a session of a Spark Connect server, or of the Spark that spark-submit has started."""
    builder = SparkSession.builder
    return (builder.remote(remote) if remote else builder.appName(f"backflow {name}")).getOrCreate()


def _start(name: str, master: str, given: Mapping[str, str], folder: Path) -> SparkSession:
    """Start classic Spark. folder: an empty one, for what belongs to the session."""
    events = folder / "events"
    events.mkdir()
    own = {} if "spark.eventLog.enabled" in given else event_log(events)
    conf = with_verified_jars({**own, **settings(master, given)})
    # The driver reads only the environment: `spark.pyspark.python` is a setting of spark-submit (SparkSubmit.scala).
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    # For the JVM that only builds the command of the other one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_START[JVM_OPTIONS])
    accumulators.AccumulatorServer = _AccumulatorServer  # type: ignore[misc]
    builder = SparkSession.builder.master(master).appName(f"backflow {name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return _start_jvm(builder, conf.get(PACKAGES, ""))


def _start_jvm(builder: SparkSession.Builder, packages: str) -> SparkSession:
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
            f'spark.jars and set {PACKAGES} to ""'
        )
        raise PackagesError(msg) from error
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _is_local(master: str) -> bool:
    return master.partition("[")[0] == "local"


def _zip_packages(target: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, place in own_files():
            if path.suffix == ".py":
                archive.write(path, place)
    return target
