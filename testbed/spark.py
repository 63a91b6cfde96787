"""A Spark standalone cluster and a Spark Connect server on loopback, as processes; and spark-submit."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess, run

from testbed.artifacts import ArtifactError, java_home
from testbed.processes import Process, ProcessGroup, free_port

_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkCluster(ProcessGroup):
    """A master and its workers, from PySpark's jars; entering the context starts them. master: its URL.

    Executors die with their worker.
    """

    def __init__(self, workdir: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        """Prepare the processes. workdir: holds logs and executors' folders. cores, memory: a worker's, as in Spark."""
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        self._master = _process("master", ("spark-class", "org.apache.spark.deploy.master.Master", *arguments), workdir)
        own = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores))
        self.workers = [
            _process(
                f"worker-{number}",
                (
                    *("spark-class", "org.apache.spark.deploy.worker.Worker", *own, "--memory", memory),
                    *("--work-dir", str(workdir / f"executors-{number}"), self.master),
                ),
                workdir,
            )
            for number in range(1, workers + 1)
        ]
        super().__init__(self._master, *self.workers)

    def wait_until_ready(self) -> None:
        """Wait until all workers are known to the master. Raises ProcessEndedError, TimeoutError."""
        self._master.wait_for_line("I have been elected leader")
        for worker in self.workers:
            worker.wait_for_line("Successfully registered with master")


class SparkConnectServer(ProcessGroup):
    """A Spark Connect server, from PySpark's jars; entering the context starts it. remote: its URL.

    Its Python workers run in `workdir`, where none of our packages are.
    """

    def __init__(self, workdir: Path, *, jars: Sequence[Path] = (), memory: str = "1g") -> None:
        """Prepare the process. workdir: holds its log. jars: those of connectors. memory: of its JVM."""
        port = free_port()
        self.remote = f"sc://127.0.0.1:{port}"
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.jars": ",".join(jar.as_uri() for jar in jars),
            "spark.local.dir": str(workdir / "local"),
            "spark.sql.warehouse.dir": str(workdir / "warehouse"),
        }
        settings = (part for key, value in conf.items() for part in ("--conf", f"{key}={value}"))
        arguments = ("spark-submit", "--class", _CONNECT, "--master", "local[2]", *settings)
        self.process = _process("Connect server", arguments, workdir, memory)
        super().__init__(self.process)

    def wait_until_ready(self) -> None:
        """Wait until it listens. Raises ProcessEndedError, TimeoutError."""
        self.process.wait_for_line("Spark Connect server started at")


def _process(name: str, command: tuple[str, ...], workdir: Path, memory: str = "256m") -> Process:
    home, (program, *arguments) = spark_home(), command
    workdir.mkdir(parents=True, exist_ok=True)
    # spark-class sets what a worker builds its executors' commands from, then becomes the JVM.
    settings = (f"SPARK_HOME={home}", "SPARK_LOCAL_IP=127.0.0.1", f"SPARK_DAEMON_MEMORY={memory}")
    environment = ("env", f"--chdir={workdir}", *settings, f"PYSPARK_PYTHON={sys.executable}")
    return Process(f"Spark's {name}", [*environment, str(home / "bin" / program), *arguments], workdir / f"{name}.log")


def submit(arguments: Sequence[str], workdir: Path, variables: Mapping[str, str]) -> CompletedProcess[str]:
    """Run spark-submit on loopback until the application has ended, in an environment with these variables.

    Of the environment of this process it inherits only the path.
    """
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home())}
    return run(
        [str(spark_home() / "bin" / "spark-submit"), *arguments],
        cwd=workdir,
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def spark_home() -> Path:
    """Return PySpark's folder. PySpark is located, not imported: an import would take a second."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, "jars").is_dir():
            return Path(place)
    msg = "PySpark is not installed here; run `make setup`."
    raise ArtifactError(msg)
