"""A Spark standalone cluster on loopback: a master and workers as processes."""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.artifacts import ArtifactError
from testbed.processes import Process, free_port


class SparkCluster:
    """A master and its workers, from PySpark's jars; entering the context starts them. master: its URL.

    Each worker has one core and as much memory as its executor takes; executors die with their worker.
    """

    def __init__(self, workdir: Path, *, workers: int = 2, memory: str = "1g") -> None:
        """Prepare the processes. workdir: holds logs and executors' folders. memory: a worker's, as in Spark."""
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        self._master = self._process("master", "org.apache.spark.deploy.master.Master", arguments, workdir)
        own = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1")
        self.workers = [
            self._process(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                (*own, "--memory", memory, "--work-dir", str(workdir / f"executors-{number}"), self.master),
                workdir,
            )
            for number in range(1, workers + 1)
        ]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for process in (self._master, *self.workers):
                starting.callback(process.kill)
                starting.callback(process.stop)  # runs first: a worker that gets SIGTERM ends its executors
                process.start()
            self._master.wait_for_line("I have been elected leader")
            for worker in self.workers:
                worker.wait_for_line("Successfully registered with master")
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @staticmethod
    def _process(name: str, main: str, arguments: tuple[str, ...], workdir: Path) -> Process:
        home = _home()
        # spark-class sets what a worker builds its executors' commands from, then becomes the JVM.
        environment = ("env", f"SPARK_HOME={home}", "SPARK_LOCAL_IP=127.0.0.1", "SPARK_DAEMON_MEMORY=256m")
        command = (str(home / "bin" / "spark-class"), main)
        return Process(f"Spark's {name}", [*environment, *command, *arguments], workdir / f"{name}.log")


def _home() -> Path:
    """Return PySpark's folder. PySpark is located, not imported: an import would take a second."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, "jars").is_dir():
            return Path(place)
    msg = "PySpark is not installed here; run `make setup`."
    raise ArtifactError(msg)
