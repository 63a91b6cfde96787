"""A Flink cluster on loopback with ZooKeeper high availability: its processes, its jobs, and single faults."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from testbed.artifacts import java
from testbed.flink.programs import Program
from testbed.flink.versions import FLINK, Checkpoints, Config, Job
from testbed.flink.views import JobGraph, Leadership, Znodes, answers_http, request_json
from testbed.processes import Process, ProcessEndedError, free_port
from testbed.proxy import Proxy
from testbed.servers import FAST_START
from testbed.waiting import wait_until

DEFAULTS: Config = {
    "jobmanager.rpc.address": "127.0.0.1",
    "high-availability.zookeeper.path.root": "/flink",
    "high-availability.zookeeper.client.session-timeout": 6000,  # ms, like all that follow
    "high-availability.zookeeper.client.connection-timeout": 3000,
    "metrics.fetcher.update-interval": 2000,
}
"""Properties of all processes, unless overridden."""

_TEMPORARY = "temporary"
"""The name of the temporary folder in a process's folder."""

ENDED = ("FINISHED", "CANCELED", "FAILED")
"""The states that a job does not leave. A SUSPENDED job is recovered by another JobManager."""


class FlinkCluster:
    """JobManagers, of which one leads, and TaskManagers, both numbered from 1; a context manager.

    Each JobManager reaches ZooKeeper through its own proxy, so that its link can be cut. rest: the REST address of each
    JobManager. All waits raise TimeoutError.
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
        """Prepare the cluster; entering the context starts it.

        version: a key of versions.FLINK. zookeeper: host:port of a running server. workdir: holds logs, checkpoints and
        the HA storage, and must not hold another cluster's. slots: of each TaskManager. name: the HA cluster id.
        config: properties that override DEFAULTS.
        """
        self.version = version
        self.name = name
        self.workdir = workdir.absolute()  # Flink expects absolute paths in URLs
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
        self._znodes = Znodes(self.zookeeper_client, self.zookeeper_path, self._flink)
        self._config = dict(config or {})
        self._servers: dict[str, Process] = {}
        self._links: dict[int, Proxy] = {}
        self._leader_addresses: dict[str, int] = {}
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
                self._leader_addresses[self._flink.leader_address(rpc, rest)] = number
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
        """Write the properties of a process into its own folder, and return the folder."""
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

    # --- state

    @property
    def logs(self) -> Mapping[str, Path]:
        """The log file of each process, by name ("jobmanager-1", "taskmanager-1")."""
        return {name: server.log for name, server in self._servers.items()}

    @property
    def pids(self) -> list[int]:
        """The process ids of all started processes."""
        return [server.pid for server in self._servers.values() if server.pid is not None]

    def leader(self) -> Leadership | None:
        """Return the leader as ZooKeeper has it, or None.

        A dead leader remains until its session has expired.
        """
        return self._znodes.leader(self._leader_addresses)

    def job_graphs(self) -> dict[str, JobGraph]:
        """Return the job graphs in ZooKeeper, by job id."""
        return self._znodes.job_graphs()

    def graph_path(self, job: str) -> str:
        """Return the path of a job graph's znode."""
        return self._znodes.graph_path(job)

    def jobs(self) -> dict[str, Job]:
        """Return the leader's jobs by id, including ended ones that it remembers."""
        return {job.id: job for job in self._flink.jobs(self.request(self._flink.jobs_path))}

    def live_jobs(self) -> list[str]:
        """Return the ids of the leader's jobs that have not ended."""
        return [job.id for job in self.jobs().values() if job.state not in ENDED]

    def checkpoints(self, job: str) -> Checkpoints:
        """Return the leader's statistics of a job's checkpoints.

        For 3 s after a recovery, 1.20 may still return the previous ones (web.refresh-interval).
        """
        response = self.request(f"/jobs/{job}/checkpoints")
        counts, latest = response["counts"], response["latest"]
        completed, restored = latest.get("completed"), latest.get("restored")  # absent in 1.4, null in the others
        return Checkpoints(
            counts["completed"],
            counts["failed"],
            counts["restored"],
            completed["id"] if completed else None,
            completed["trigger_timestamp"] if completed else None,
            restored["id"] if restored else None,
        )

    def request(self, path: str, method: str = "GET", seconds: float = 60) -> Any:
        """Return the leader's JSON response to a request, repeated until it succeeds."""

        def respond() -> tuple[Any] | None:
            leader = self.leader()
            response = request_json(self.rest[leader.job_manager], path, method) if leader else None
            return None if response is None else (response,)

        return wait_until(respond, f"the leading JobManager to respond to {method} {path}", seconds)[0]

    def wait_for_leader(self, other_than: Leadership | None = None, seconds: float = 120) -> Leadership:
        """Wait until a JobManager leads and responds, under another leadership than `other_than`."""

        def find() -> Leadership | None:
            leader = self.leader()
            if leader is None or (other_than is not None and leader.id == other_than.id):
                return None
            return leader if request_json(self.rest[leader.job_manager], "/overview") is not None else None

        return wait_until(find, f"a JobManager to lead, not {other_than}", seconds)

    def wait_for_slots(self, slots: int) -> None:
        """Wait until the leader has this many slots, used or not."""
        wait_until(lambda: self.request("/overview")["slots-total"] == slots, f"{slots} slots", 120)

    def wait_until_running(self, job: str, seconds: float = 120) -> Job:
        """Wait until a job and all its tasks are running."""
        return self._wait_for_job(
            job, lambda found: found.state == "RUNNING" and found.running == found.total > 0, seconds
        )

    def wait_until_in_state(self, job: str, state: str, seconds: float = 120) -> Job:
        """Wait until a job is in a state, even briefly."""
        return self._wait_for_job(job, lambda found: found.state == state, seconds)

    def wait_for_checkpoints(self, job: str, completed: int, seconds: float = 120) -> Checkpoints:
        """Wait until this many checkpoints of a job are completed since its current start."""

        def find() -> Checkpoints | None:
            found, checkpoints = self.jobs().get(job), self.checkpoints(job)
            triggered = checkpoints.triggered
            is_current = found is not None and triggered is not None and triggered >= found.start
            return checkpoints if is_current and checkpoints.completed >= completed else None

        return wait_until(find, f"{completed} checkpoints of job {job}", seconds)

    def _wait_for_job(self, job: str, wanted: Callable[[Job], bool], seconds: float) -> Job:
        last: list[Job | None] = [None]

        def find() -> Job | None:
            found = last[0] = self.jobs().get(job)
            return found if found is not None and wanted(found) else None

        try:
            return wait_until(find, f"job {job} to be in the wanted state", seconds)
        except TimeoutError as error:
            msg = f"{error} It was {last[0]}."
            raise TimeoutError(msg) from error

    # --- jobs

    def submit(self, program: Program, savepoint: str | None = None) -> str:
        """Submit a job as an operator does, from a savepoint if given, and return its id.

        It may not run yet. Raises ProcessEndedError.
        """
        restore = ["-s", savepoint] if savepoint else []
        output = self._cli("run", "-d", *restore, "-c", program.main, str(self._flink.jobs_jar()), *program.arguments)
        return self._match(r"submitted with JobID ([0-9a-f]{32})", output)

    def savepoint(self, job: str) -> str:
        """Take a savepoint of a running job and return its path. Raises ProcessEndedError."""
        output = self._cli("savepoint", job, f"file://{self.workdir}/savepoints")
        return self._match(r"Savepoint completed\. Path: (\S+)", output)

    def cancel(self, job: str) -> None:
        """Cancel a job and wait until it has ended.

        1.20 at once forgets a job that returned after it had ended.
        """
        method, path = self._flink.cancel(job)
        self.request(path, method)
        wait_until(lambda: job not in self.live_jobs(), f"job {job} to be cancelled", 120)

    def _cli(self, *arguments: str) -> str:
        """Return the output of Flink's command line."""
        command = self._command(self._client, 256, [self._flink.client, *arguments], "WARN")
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=180,
            env={**os.environ, "FLINK_CONF_DIR": str(self._client)},
        )
        if done.returncode != 0:
            msg = f"Flink's command line failed to {arguments[0]}:\n{done.stdout}"
            raise ProcessEndedError(msg)
        return done.stdout

    @staticmethod
    def _match(pattern: str, output: str) -> str:
        found = re.search(pattern, output)
        if found is None:
            msg = f"Flink's command line did not print {pattern!r} but:\n{output}"
            raise ProcessEndedError(msg)
        return found[1]

    # --- faults of JobManagers

    def cut(self, job_manager: int) -> None:
        """Break a JobManager's link to ZooKeeper."""
        self._links[job_manager].cut()

    def heal(self, job_manager: int) -> None:
        """Restore a JobManager's link to ZooKeeper."""
        self._links[job_manager].heal()

    def cut_link(self, job_manager: int, seconds: float = 1.5) -> None:
        """Break a JobManager's link to ZooKeeper for `seconds`.

        Below the session timeout of 6 s it keeps its session, but a leader gives up its leadership.
        """
        self.cut(job_manager)
        time.sleep(seconds)  # the fault itself, not a wait for something
        self.heal(job_manager)

    def freeze(self, job_manager: int) -> None:
        """Suspend a JobManager (SIGSTOP)."""
        self._servers[f"jobmanager-{job_manager}"].freeze()

    def thaw(self, job_manager: int) -> None:
        """Resume a suspended JobManager (SIGCONT)."""
        self._servers[f"jobmanager-{job_manager}"].thaw()

    def kill(self, job_manager: int) -> None:
        """Kill a JobManager (SIGKILL); its session stays until it expires."""
        self._servers[f"jobmanager-{job_manager}"].kill()

    def stop(self, job_manager: int) -> None:
        """End a JobManager as an operator does (SIGTERM)."""
        self._servers[f"jobmanager-{job_manager}"].stop()

    def start(self, job_manager: int) -> None:
        """Start a JobManager that is down, and wait until its REST address responds."""
        self._servers[f"jobmanager-{job_manager}"].start()
        wait_until(lambda: answers_http(self.rest[job_manager]), f"JobManager {job_manager} to respond", 120)

    def is_running(self, job_manager: int) -> bool:
        """Return whether a JobManager's process is running."""
        return self._servers[f"jobmanager-{job_manager}"].running

    # --- faults of TaskManagers

    def kill_task_manager(self, task_manager: int) -> None:
        """Kill a TaskManager (SIGKILL)."""
        self._servers[f"taskmanager-{task_manager}"].kill()

    def start_task_manager(self, task_manager: int) -> None:
        """Start a TaskManager that is down; `wait_for_slots` waits until it has registered."""
        self._servers[f"taskmanager-{task_manager}"].start()

    def repair(self) -> None:
        """Undo all faults: heal links, thaw and start processes, and cancel all jobs."""
        for number in self.job_managers:
            self.heal(number)
            self.thaw(number)
            if not self.is_running(number):
                self.start(number)
        for number in self.task_managers:
            if not self._servers[f"taskmanager-{number}"].running:
                self.start_task_manager(number)
        self.wait_for_leader()
        for job in self.live_jobs():
            self.cancel(job)
