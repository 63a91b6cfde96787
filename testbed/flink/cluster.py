"""A Flink cluster on loopback with ZooKeeper high availability: its jobs, and its faults as verbs.

Faults made of several verbs have files of their own; what runs as a job: programs.py.
"""

import os
import re
import subprocess
import time

from testbed.flink.ensemble import FlinkEnsemble
from testbed.flink.programs import Program
from testbed.flink.rest import speaks
from testbed.processes import ProcessEndedError
from testbed.waiting import wait_until


class FlinkCluster(FlinkEnsemble):
    """A cluster with its jobs and its faults; a context manager (see FlinkEnsemble for what it takes)."""

    # --- jobs

    def submit(self, program: Program, savepoint: str | None = None) -> str:
        """Submit a job as an operator does, restored from a savepoint where one is given; returns its id.

        It need not run yet. Raises ProcessEndedError.
        """
        restore = ["-s", savepoint] if savepoint else []
        told = self._cli("run", "-d", *restore, "-c", program.main, str(self._flink.jobs_jar()), *program.arguments)
        return self._found(r"submitted with JobID ([0-9a-f]{32})", told)

    def savepoint(self, job: str) -> str:
        """Take a savepoint of a running job; returns its path. Raises ProcessEndedError."""
        told = self._cli("savepoint", job, f"file://{self.workdir}/savepoints")
        return self._found(r"Savepoint completed\. Path: (\S+)", told)

    def cancel(self, job: str) -> None:
        """Cancel a job and wait until it has ended. 1.20 forgets at once one that had ended before and come back."""
        method, path = self._flink.cancel(job)
        self.ask(path, method)
        wait_until(lambda: job not in self.live_jobs(), f"job {job} to be cancelled", 120)

    def _cli(self, *arguments: str) -> str:
        """What Flink's own command line says."""
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
            msg = f"Flink's command line could not {arguments[0]}:\n{done.stdout}"
            raise ProcessEndedError(msg)
        return done.stdout

    @staticmethod
    def _found(pattern: str, told: str) -> str:
        found = re.search(pattern, told)
        if found is None:
            msg = f"Flink's command line did not print {pattern!r} but:\n{told}"
            raise ProcessEndedError(msg)
        return found[1]

    # --- faults of JobManagers

    def cut(self, job_manager: int) -> None:
        """Break a JobManager's link to ZooKeeper."""
        self._links[job_manager].cut()

    def heal(self, job_manager: int) -> None:
        """Mend it."""
        self._links[job_manager].heal()

    def cut_link(self, job_manager: int, seconds: float = 1.5) -> None:
        """Break a JobManager's link to ZooKeeper for so long. Below the session's 6 s it keeps its session, but a
        leader gives up its leadership.
        """
        self.cut(job_manager)
        time.sleep(seconds)  # the fault itself, not a wait for something
        self.heal(job_manager)

    def freeze(self, job_manager: int) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self._servers[f"jobmanager-{job_manager}"].freeze()

    def thaw(self, job_manager: int) -> None:
        """Let it go on."""
        self._servers[f"jobmanager-{job_manager}"].thaw()

    def kill(self, job_manager: int) -> None:
        """End it at once (SIGKILL); its session stays until it expires."""
        self._servers[f"jobmanager-{job_manager}"].kill()

    def stop(self, job_manager: int) -> None:
        """End it as an operator does (SIGTERM)."""
        self._servers[f"jobmanager-{job_manager}"].stop()

    def start(self, job_manager: int) -> None:
        """Start it again and wait until its REST address answers."""
        self._servers[f"jobmanager-{job_manager}"].start()
        wait_until(lambda: speaks(self.rest[job_manager]), f"JobManager {job_manager} to answer", 120)

    def running(self, job_manager: int) -> bool:
        """Whether its process lives."""
        return self._servers[f"jobmanager-{job_manager}"].running

    # --- faults of TaskManagers

    def kill_task_manager(self, task_manager: int) -> None:
        """End it at once (SIGKILL)."""
        self._servers[f"taskmanager-{task_manager}"].kill()

    def start_task_manager(self, task_manager: int) -> None:
        """Start it again; `wait_for_slots` tells when the leader has it."""
        self._servers[f"taskmanager-{task_manager}"].start()

    def settle(self) -> None:
        """Undo what faults have left behind: links healed, processes thawed, those that are down started, jobs gone."""
        for number in self.job_managers:
            self.heal(number)
            self.thaw(number)
            if not self.running(number):
                self.start(number)
        for number in self.task_managers:
            if not self._servers[f"taskmanager-{number}"].running:
                self.start_task_manager(number)
        self.wait_for_leader()
        for job in self.live_jobs():
            self.cancel(job)
