"""A real Spark standalone cluster on loopback: a master and workers as processes. What is run on it lives elsewhere."""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.artifacts import ArtifactError
from testbed.processes import Process, free_port


class SparkCluster:
    """A master and its workers, of PySpark's own jars. Enter it to start it; `master` is its URL then.

    Each worker gives one core and as much memory as its executor takes; executors die with their worker.
    """

    def __init__(self, workdir: Path, *, workers: int = 2, memory: str = "1g") -> None:
        """workdir: takes logs and the executors' folders. memory: what a worker has for executors, as in Spark."""
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
                starting.callback(process.stop)  # first: a worker that is asked to end ends its executors
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
        # spark-class tells a worker what it builds its executors' commands from, then becomes the JVM itself.
        environment = ("env", f"SPARK_HOME={home}", "SPARK_LOCAL_IP=127.0.0.1", "SPARK_DAEMON_MEMORY=256m")
        command = (str(home / "bin" / "spark-class"), main)
        return Process(f"Spark's {name}", [*environment, *command, *arguments], workdir / f"{name}.log")


def _home() -> Path:
    """Where PySpark keeps its jars. PySpark is only located: importing it would cost a second."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, "jars").is_dir():
            return Path(place)
    msg = "PySpark is not installed here; run `make setup`."
    raise ArtifactError(msg)
