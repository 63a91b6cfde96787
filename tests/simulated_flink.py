"""A small simulated Flink cluster with faults, second by second, as sources observe it; it knows no rules."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from agent.model.observations.base import Observation, Subject
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.model.observations.logs import LogLine

FLINK = "jobs"
FAULTS = ("failover", "resurrected", "failing", "restarting", "orphaned", "logged", "twice", "suspended")


class Fault(Protocol):
    """The numbers of a fault: strategies.Fault."""

    target: int
    length: int
    choice: int


class Job:
    """One job: its execution on the JobManager that leads, its checkpoints, its graph in ZooKeeper."""

    def __init__(self, job: str, name: str, started_at: int) -> None:
        self.job, self.name, self.started_at = job, name, started_at
        self.state, self.running = "RUNNING", 4
        self.restarting_at: int | None = None
        self.completed = self.failed = self.restored = 0
        self.last = self.restored_id = self.restored_at = None
        self.ids = 0
        self.position, self.kept = 1_000, 1_000
        self.breaks = self.held_up = False
        self.listed = True
        self.made_at: int | None = started_at
        self.locks: tuple[str, ...] = ()
        self.file = f"submittedJobGraph{job[:12]}"

    last: int | None
    restored_id: int | None
    restored_at: int | None

    @property
    def is_active(self) -> bool:
        return self.listed and self.state not in ("CANCELED", "SUSPENDED")


class Flink:
    """Two JobManagers, and jobs that read topic a.

    note: receives the observations; later: calls a function in so many seconds. Unchanged facts are not repeated.
    """

    def __init__(
        self,
        cluster: str,
        note: Callable[[Observation], None],
        later: Callable[[int, Callable[[], None]], None],
        now: Callable[[int], int],
    ) -> None:
        """cluster: the Kafka cluster. now: returns the time at a phase of this second, ms."""
        self._cluster, self._note, self._later, self._now = cluster, note, later, now
        self._last: dict[Subject, dict[str, Any]] = {}
        self._leaders = 1
        self.leader: int | None = 1
        self.jobs = [Job("d7" * 16, "clicks", now(0)), Job("a1" * 16, "orders", now(0))]
        self.files: dict[str, int] = {job.file: now(0) for job in self.jobs}
        for job in self.jobs:
            job.locks = (self._session(1),)

    def live(self, second: int) -> None:
        """Run for a second; sources poll every other second."""
        for index, job in enumerate(self.jobs):
            if job.is_active and job.state == "RUNNING" and job.running:
                job.position += 700
                if (second + index) % 4 == 0:
                    self._checkpoint(job)
        if second % 2 == 0:
            self._poll()

    def failover(self, fault: Fault) -> None:
        """Lose the leader; the other recovers every graph. Choice 0: nothing is restored, 1: a lock remains."""
        if self.leader is None:
            return
        old, self.leader = self._session(self.leader), None
        for job in self.jobs:
            job.listed = False

        def lead() -> None:
            self._leaders += 1
            self.leader = self._leaders
            self._later(2 + fault.length % 10, partial(self._recover, stateless=fault.choice == 0))

        def expire() -> None:
            for job in self.jobs:
                job.locks = tuple(lock for lock in job.locks if lock != old)

        self._later(6, lead)
        if fault.choice != 1:
            self._later(7, expire)

    def resurrected(self, fault: Fault) -> None:
        """Cancel a job, observed or not, whose graph remains; run a successor; then lose the leader."""
        job = self._target(fault)
        job.state, job.running = "CANCELED", 0
        job.listed = fault.choice % 2 == 0
        job.locks = ("0xdead",)
        self._later(4, partial(self._submit, f"{fault.target:x}" * 32, job.name))
        self._later(35 + fault.length, partial(self.failover, fault))

    def failing(self, fault: Fault) -> None:
        """Let a job's checkpoints fail for a time."""
        job = self._target(fault)
        job.breaks = True
        self._later(12 + fault.length, partial(setattr, job, "breaks", False))

    def restarting(self, fault: Fault) -> None:
        """Take a job's slots, or restart it a few times."""
        job = self._target(fault)
        if fault.choice % 2:
            job.held_up, job.running = True, fault.choice // 2
            self._later(40 + 2 * fault.length, partial(self._run, job))
            return
        for number in range(2 + fault.choice):
            self._later(number * (6 + fault.length // 2), partial(self._restart, job))

    def orphaned(self, fault: Fault) -> None:
        """Leave a graph without a job, or a file without a graph."""
        file = f"submittedJobGraph{fault.target:012x}"
        self.files[file] = self._now(3)
        if fault.choice % 2 == 0:
            orphan = Job(f"{fault.target:x}f" * 16, "lost", self._now(3))
            orphan.state, orphan.listed, orphan.file = "GONE", False, file
            self.jobs.append(orphan)
        self._later(100 + 2 * fault.length, partial(self._delete, file))

    def logged(self, fault: Fault) -> None:
        """Reset a reader, as only a TaskManager's log shows."""
        self._target(fault).position = 0
        where: dict[str, Any] = {"cluster": self._cluster, "log": f"tm-{fault.target % 2}.log", "component": "consumer"}
        where |= {"topic": "a", "partition": fault.target % 2, "host": "tm-1"}
        at, offset, to = self._now(11), str(900 * fault.length), str(fault.choice)
        self._note(
            LogLine(
                at=at, pattern="fetch_offset_out_of_range", values={"offset": offset}, text=f"{offset} {at}", **where
            )
        )
        if fault.choice % 2:
            self._note(LogLine(at=at, pattern="offset_reset", values={"to": to}, text=f"{to} {at}", **where))

    def twice(self, fault: Fault) -> None:
        """Submit a job while another of its name runs."""
        self._submit(f"{fault.target:x}e" * 16, self._target(fault).name)

    def suspended(self, fault: Fault) -> None:
        """Let the leader step down and soon lead again."""
        if self.leader is not None:
            leader, self.leader = self.leader, None
            self._later(1 + fault.length, partial(setattr, self, "leader", leader))

    def _target(self, fault: Fault) -> Job:
        return self.jobs[fault.target % 2]

    def _submit(self, job: str, name: str) -> None:
        if self.leader is None or any(known.job == job for known in self.jobs):
            return
        submitted = Job(job, name, self._now(4))
        submitted.locks = (self._session(self.leader),)
        self.jobs.append(submitted)
        self.files[submitted.file] = self._now(4)

    def _recover(self, *, stateless: bool) -> None:
        if self.leader is None:
            return
        for job in self.jobs:
            if job.made_at is None or job.state == "GONE":
                continue
            dead = job.state == "CANCELED"
            job.listed, job.state, job.running, job.restarting_at = True, "CREATED", 0, None
            job.started_at = self._now(5)
            job.completed = job.failed = job.restored = 0
            job.restored_id = job.restored_at = None
            job.locks = (*job.locks, self._session(self.leader))
            if job.last is None or stateless or dead:
                job.last, job.ids, job.position = None, 0, 0
            else:
                job.restored_id, job.restored_at, job.restored = job.last, self._now(5), 1
                job.last, job.position = None, job.kept
            self._later(3, partial(self._run, job))

    def _run(self, job: Job) -> None:
        if job.is_active:
            job.state, job.running, job.held_up = "RUNNING", 4, False

    def _restart(self, job: Job) -> None:
        if job.is_active:
            job.state, job.running, job.restarting_at = "RESTARTING", 0, self._now(6)
            self._later(3, partial(self._run, job))

    def _checkpoint(self, job: Job) -> None:
        job.ids += 1
        if job.breaks:
            job.failed += 1
        else:
            job.completed, job.last, job.kept = job.completed + 1, job.ids, job.position

    def _delete(self, file: str) -> None:
        self.files.pop(file, None)
        for job in self.jobs:
            if job.file == file:
                job.made_at, job.locks = None, ()

    def _session(self, leader: int) -> str:
        return f"0x{leader:04x}"

    def _poll(self) -> None:
        """Note what a poll observes; without a leader REST does not answer."""
        at, leader = self._now(12), self.leader
        self._report(
            JobManagerLeader(
                at=at, cluster=FLINK, address=None if leader is None else f"jm{leader % 2}:8081",
                leader_id=None if leader is None else f"uuid-{leader}",
                session=None if leader is None else self._session(leader),
            )
        )  # fmt: skip
        for job in self.jobs:
            exists = job.made_at is not None
            self._report(
                JobGraph(
                    at=at + 5, cluster=FLINK, job=job.job, made_at=job.made_at, locks=tuple(sorted(set(job.locks))),
                    file=job.file if exists else None, checkpoints=min(job.completed, 1),
                )
            )  # fmt: skip
        for file in {*self.files, *(subject[2] for subject in self._last if subject[0] == "job_graph_file")}:
            modified_at = self.files.get(str(file))
            self._report(JobGraphFile(at=at + 7, cluster=FLINK, file=str(file), modified_at=modified_at, size=20_000))
        if leader is not None:
            self._rest(at + 9)

    def _rest(self, at: int) -> None:
        for index, job in enumerate(self.jobs):
            if not job.listed:
                continue
            self._report(
                FlinkJob(
                    at=at, cluster=FLINK, job=job.job, name=job.name, state=job.state, started_at=job.started_at,
                    restarting_at=job.restarting_at, tasks=4, tasks_running=job.running,
                )
            )  # fmt: skip
            self._report(
                Checkpoints(
                    at=at + 1, cluster=FLINK, job=job.job, completed=job.completed, failed=job.failed,
                    restored=job.restored, last=job.last, restored_id=job.restored_id, restored_at=job.restored_at,
                )
            )  # fmt: skip
            if job.state == "RUNNING" and job.running:
                self._report(
                    Position(
                        at=at + 2, cluster=self._cluster, flink=FLINK, job=job.job, name=job.name, topic="a",
                        partition=index % 2, offset=job.position, committed=job.kept, subtask=0, host="tm-1",
                    )
                )  # fmt: skip
        listed = tuple(sorted(job.job for job in self.jobs if job.listed))
        self._report(JobListing(at=at + 3, cluster=FLINK, jobs=listed, address="jm"))

    def _report(self, observation: Observation) -> None:
        fields = {
            name: getattr(observation, name)
            for name in observation.__struct_fields__
            if name not in ("at", "seen_at", "since")
        }
        if self._last.get(observation.subject) != fields:
            self._last[observation.subject] = fields
            self._note(observation)
