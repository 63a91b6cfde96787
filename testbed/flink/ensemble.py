"""The processes that make a Flink cluster: started, looked at, waited for. What is done to them: cluster.py."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from testbed.artifacts import java
from testbed.flink.dialects import FLINK, Checkpoints, Config, Job
from testbed.flink.rest import ask
from testbed.flink.znodes import JobGraph, Leadership, Tree
from testbed.processes import Process, free_port
from testbed.proxy import Proxy
from testbed.waiting import wait_until
from testbed.zookeeper import FAST_START

DEFAULTS: Config = {
    "jobmanager.rpc.address": "127.0.0.1",
    "high-availability.zookeeper.path.root": "/flink",
    "high-availability.zookeeper.client.session-timeout": 6000,  # ms, like all that follow
    "high-availability.zookeeper.client.connection-timeout": 3000,
    "metrics.fetcher.update-interval": 2000,
}
"""What all processes are given unless the caller says otherwise."""

_TEMPORARY = "temporary"  # in a process's folder

ENDED = ("FINISHED", "CANCELED", "FAILED")
"""The states that a job does not leave. SUSPENDED is none of them: another JobManager takes the job up."""


class FlinkEnsemble:
    """JobManagers, of which one leads, and TaskManagers; a context manager. They are numbered from 1.

    Each JobManager reaches ZooKeeper through a proxy of its own, so that its link can be cut. rest, logs, pids tell
    where its REST address is, where a process writes its log ("jobmanager-1", "taskmanager-1"), and what was started.
    All waits raise TimeoutError.
    """

    def __init__(
        self,
        version: str,
        zookeeper: str,
        *,
        workdir: Path,
        job_managers: int = 2,
        task_managers: int = 1,
        slots: int = 4,
        name: str = "testbed",
        config: Config | None = None,
    ) -> None:
        """version: a key of dialects.FLINK. zookeeper: host:port of a running server. workdir: takes logs, checkpoints
        and the HA storage; it must not hold another cluster's. slots: of each TaskManager. name: the HA cluster id.
        config: properties, over DEFAULTS.
        """
        self.version = version
        self.name = name
        self.workdir = workdir.absolute()  # Flink takes them as URLs
        self.storage_dir = self.workdir / "ha"
        self.checkpoint_dir = self.workdir / "checkpoints"
        self.zookeeper = zookeeper
        self.zookeeper_path = f"/flink/{name}"
        self.zookeeper_client = KazooClient(zookeeper)
        self.job_managers = range(1, job_managers + 1)
        self.task_managers = range(1, task_managers + 1)
        self.rest: dict[int, str] = {}
        self._slots = slots
        self._flink = FLINK[version]
        self._tree = Tree(self.zookeeper_client, self.zookeeper_path, self._flink)
        self._config = dict(config or {})
        self._servers: dict[str, Process] = {}
        self._links: dict[int, Proxy] = {}
        self._leads_at: dict[str, int] = {}
        self._closing = ExitStack()

    # --- lifecycle

    def __enter__(self) -> Self:
        with self._closing:
            self.zookeeper_client.start(30)
            self._closing.callback(self.zookeeper_client.close)
            self._closing.callback(self.zookeeper_client.stop)
            host, port = self.zookeeper.split(":")
            for number in self.job_managers:
                link = self._links[number] = self._closing.enter_context(Proxy(host, int(port)))
                rpc, rest = free_port(), free_port()
                self.rest[number] = f"http://127.0.0.1:{rest}"
                self._leads_at[self._flink.leads_at(rpc, rest)] = number
                folder = self._configure(f"jobmanager-{number}", link.address, rpc, rest)
                self._add(folder, self._flink.heap_mb, self._flink.job_manager(folder, rest))
            for number in self.task_managers:
                folder = self._configure(f"taskmanager-{number}", self.zookeeper, rpc, rest)
                self._add(folder, 256, self._flink.task_manager(folder, number))
            self._client = self._configure("client", self.zookeeper, rpc, rest)
            for server in self._servers.values():
                self._closing.callback(server.kill)
                server.start()
            self.wait_for_leader()
            self.wait_for_slots(len(self.task_managers) * self._slots)
            self._closing = self._closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _configure(self, name: str, zookeeper: str, rpc_port: int, rest_port: int) -> Path:
        """Write the properties of a process into a folder of its own."""
        folder = self.workdir / name
        temporary = folder / _TEMPORARY
        temporary.mkdir(parents=True)
        properties = {
            **DEFAULTS,
            "jobmanager.rpc.port": rpc_port,
            "high-availability.jobmanager.port": rpc_port,
            "high-availability.zookeeper.quorum": zookeeper,
            "high-availability.cluster-id": self.name,
            "high-availability.storageDir": f"file://{self.storage_dir}",
            "taskmanager.numberOfTaskSlots": self._slots,
            **self._flink.config(rest_port, self.checkpoint_dir, temporary),
            **self._config,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in properties.items())
        (folder / self._flink.conf_file).write_text(lines)
        return folder

    def _add(self, folder: Path, heap_mb: int, arguments: list[str]) -> None:
        flags = ["-XX:MaxDirectMemorySize=128m"]
        command = self._command(folder, heap_mb, [*flags, *arguments], "INFO")
        self._servers[folder.name] = Process(f"Flink's {folder.name}", command, self.workdir / f"{folder.name}.log")

    def _command(self, folder: Path, heap_mb: int, arguments: list[str], level: str) -> list[str]:
        flags = [
            f"-Xmx{heap_mb}m",
            *FAST_START,
            f"-Djava.io.tmpdir={folder / _TEMPORARY}",
            *self._flink.flags(folder, level),
        ]
        return [java(), *flags, "-cp", self._flink.class_path(), *arguments]

    # --- looking

    @property
    def logs(self) -> Mapping[str, Path]:
        """The log file of each process."""
        return {name: server.log for name, server in self._servers.items()}

    @property
    def pids(self) -> list[int]:
        """The process ids of all that was started."""
        return [server.pid for server in self._servers.values() if server.pid is not None]

    def leader(self) -> Leadership | None:
        """Who leads, as ZooKeeper says; None while nobody does. A dead leader does until its session has expired."""
        return self._tree.leader(self._leads_at)

    def job_graphs(self) -> dict[str, JobGraph]:
        """The job graphs in ZooKeeper, by job id."""
        return self._tree.job_graphs()

    def graph_path(self, job: str) -> str:
        """The path of a job graph's znode."""
        return self._tree.graph(job)

    def jobs(self) -> dict[str, Job]:
        """The leader's jobs by id, the ended ones that it remembers included."""
        return {job.id: job for job in self._flink.jobs(self.ask(self._flink.jobs_path))}

    def live_jobs(self) -> list[str]:
        """The ids of the leader's jobs that have not ended."""
        return [job.id for job in self.jobs().values() if job.state not in ENDED]

    def checkpoints(self, job: str) -> Checkpoints:
        """What the leader says of a job's checkpoints: for 3 s after it took the job up, 1.20 may still say what was
        before that (web.refresh-interval).
        """
        told = self.ask(f"/jobs/{job}/checkpoints")
        counts, latest = told["counts"], told["latest"]
        completed, restored = latest.get("completed"), latest.get("restored")  # absent in 1.4, null in the others
        return Checkpoints(
            counts["completed"],
            counts["failed"],
            counts["restored"],
            completed["id"] if completed else None,
            completed["trigger_timestamp"] if completed else None,
            restored["id"] if restored else None,
        )

    def ask(self, path: str, method: str = "GET", seconds: float = 60) -> Any:
        """The leader's answer to a request, asked again until it gives one."""

        def answer() -> tuple[Any] | None:
            leader = self.leader()
            told = ask(self.rest[leader.job_manager], path, method) if leader else None
            return None if told is None else (told,)

        return wait_until(answer, f"the leading JobManager to answer {method} {path}", seconds)[0]

    def wait_for_leader(self, other_than: Leadership | None = None, seconds: float = 120) -> Leadership:
        """Wait until a JobManager leads, under another leadership than this one, and answers."""

        def led() -> Leadership | None:
            leader = self.leader()
            if leader is None or (other_than is not None and leader.id == other_than.id):
                return None
            return leader if ask(self.rest[leader.job_manager], "/overview") is not None else None

        return wait_until(led, f"a JobManager to lead, not {other_than}", seconds)

    def wait_for_slots(self, slots: int) -> None:
        """Wait until the leader has so many slots, used or not."""
        wait_until(lambda: self.ask("/overview")["slots-total"] == slots, f"{slots} slots", 120)

    def wait_until_running(self, job: str, seconds: float = 120) -> Job:
        """Wait until a job and all its tasks run."""
        return self._wait_for_job(job, lambda one: one.state == "RUNNING" and one.running == one.total > 0, seconds)

    def wait_until_in_state(self, job: str, state: str, seconds: float = 120) -> Job:
        """Wait until a job is in a state, however short that lasts."""
        return self._wait_for_job(job, lambda one: one.state == state, seconds)

    def wait_for_checkpoints(self, job: str, completed: int, seconds: float = 120) -> Checkpoints:
        """Wait until so many checkpoints of a job have been completed since its present start."""

        def enough() -> Checkpoints | None:
            found, seen = self.jobs().get(job), self.checkpoints(job)
            fresh = found is not None and seen.triggered is not None and seen.triggered >= found.start
            return seen if fresh and seen.completed >= completed else None

        return wait_until(enough, f"{completed} checkpoints of job {job}", seconds)

    def _wait_for_job(self, job: str, wanted: Callable[[Job], bool], seconds: float) -> Job:
        seen: list[Job | None] = [None]

        def there() -> Job | None:
            found = seen[0] = self.jobs().get(job)
            return found if found is not None and wanted(found) else None

        try:
            return wait_until(there, f"job {job} to be as wanted", seconds)
        except TimeoutError as error:
            msg = f"{error} It was {seen[0]}."
            raise TimeoutError(msg) from error
