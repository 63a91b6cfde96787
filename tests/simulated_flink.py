"""A small simulated Flink cluster that suffers faults, second by second: what sources see of it. Knows no rules."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from agent.model.observations import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    LogLine,
    Observation,
    Position,
    Subject,
)

FLINK = "jobs"
FAULTS = ("failover", "resurrected", "failing", "restarting", "orphaned", "logged", "twice", "suspended")


class Fault(Protocol):
    """What a fault's numbers are: strategies.Fault."""

    target: int
    length: int
    choice: int


class Job:
    """One job: its execution on the JobManager that leads, its checkpoints, its graph in ZooKeeper."""

    def __init__(self, job: str, name: str, started_at: int) -> None:
        """A job that runs and has completed none."""
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
    def lives(self) -> bool:
        """Whether it is there to run."""
        return self.listed and self.state not in ("CANCELED", "SUSPENDED")


class Flink:
    """Two JobManagers, and jobs that read topic a. note: takes what is seen; later: does something in so many seconds.

    Unchanged facts are not told again, as sources do it.
    """

    def __init__(
        self,
        cluster: str,
        note: Callable[[Observation], None],
        later: Callable[[int, Callable[[], None]], None],
        now: Callable[[int], int],
    ) -> None:
        """cluster: the Kafka cluster. now: the time at a phase of this second, ms."""
        self._cluster, self._note, self._later, self._now = cluster, note, later, now
        self._told: dict[Subject, dict[str, Any]] = {}
        self._leaders = 1
        self.leader: int | None = 1
        self.jobs = [Job("d7" * 16, "clicks", now(0)), Job("a1" * 16, "orders", now(0))]
        self.files: dict[str, int] = {one.file: now(0) for one in self.jobs}
        for one in self.jobs:
            one.locks = (self._session(1),)

    def live(self, second: int) -> None:
        """A second passes, and every other one the sources look."""
        for index, one in enumerate(self.jobs):
            if one.lives and one.state == "RUNNING" and one.running:
                one.position += 700
                if (second + index) % 4 == 0:
                    self._checkpoint(one)
        if second % 2 == 0:
            self._look()

    def failover(self, fault: Fault) -> None:
        """The leader is gone; the other one recovers every graph. Of 0 nothing is restored, of 1 a lock hangs on."""
        if self.leader is None:
            return
        old, self.leader = self._session(self.leader), None
        for one in self.jobs:
            one.listed = False

        def lead() -> None:
            self._leaders += 1
            self.leader = self._leaders
            self._later(2 + fault.length % 10, partial(self._recover, stateless=fault.choice == 0))

        def expire() -> None:
            for one in self.jobs:
                one.locks = tuple(lock for lock in one.locks if lock != old)

        self._later(6, lead)
        if fault.choice != 1:
            self._later(7, expire)

    def resurrected(self, fault: Fault) -> None:
        """A job is cancelled, seen or unseen, and its graph stays; a successor runs; then the leader is gone."""
        job = self._one(fault)
        job.state, job.running = "CANCELED", 0
        job.listed = fault.choice % 2 == 0
        job.locks = ("0xdead",)
        self._later(4, partial(self._submit, f"{fault.target:x}" * 32, job.name))
        self._later(35 + fault.length, partial(self.failover, fault))

    def failing(self, fault: Fault) -> None:
        """A job's checkpoints fail."""
        job = self._one(fault)
        job.breaks = True
        self._later(12 + fault.length, partial(setattr, job, "breaks", False))

    def restarting(self, fault: Fault) -> None:
        """A job gets no slots, or restarts a few times."""
        job = self._one(fault)
        if fault.choice % 2:
            job.held_up, job.running = True, fault.choice // 2
            self._later(40 + 2 * fault.length, partial(self._run, job))
            return
        for number in range(2 + fault.choice):
            self._later(number * (6 + fault.length // 2), partial(self._restart, job))

    def orphaned(self, fault: Fault) -> None:
        """A graph without a job, or a file without a graph."""
        file = f"submittedJobGraph{fault.target:012x}"
        self.files[file] = self._now(3)
        if fault.choice % 2 == 0:
            orphan = Job(f"{fault.target:x}f" * 16, "lost", self._now(3))
            orphan.state, orphan.listed, orphan.file = "GONE", False, file
            self.jobs.append(orphan)
        self._later(100 + 2 * fault.length, partial(self._delete, file))

    def logged(self, fault: Fault) -> None:
        """A TaskManager's log tells of a reset."""
        self._one(fault).position = 0
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
        """A job is submitted while another of its name runs."""
        self._submit(f"{fault.target:x}e" * 16, self._one(fault).name)

    def suspended(self, fault: Fault) -> None:
        """The leader steps down and leads again soon."""
        if self.leader is not None:
            leader, self.leader = self.leader, None
            self._later(1 + fault.length, partial(setattr, self, "leader", leader))

    def _one(self, fault: Fault) -> Job:
        return self.jobs[fault.target % 2]

    def _submit(self, job: str, name: str) -> None:
        if self.leader is None or any(one.job == job for one in self.jobs):
            return
        one = Job(job, name, self._now(4))
        one.locks = (self._session(self.leader),)
        self.jobs.append(one)
        self.files[one.file] = self._now(4)

    def _recover(self, *, stateless: bool) -> None:
        if self.leader is None:
            return
        for one in self.jobs:
            if one.made_at is None or one.state == "GONE":
                continue
            dead = one.state == "CANCELED"
            one.listed, one.state, one.running, one.restarting_at = True, "CREATED", 0, None
            one.started_at = self._now(5)
            one.completed = one.failed = one.restored = 0
            one.restored_id = one.restored_at = None
            one.locks = (*one.locks, self._session(self.leader))
            if one.last is None or stateless or dead:
                one.last, one.ids, one.position = None, 0, 0
            else:
                one.restored_id, one.restored_at, one.restored = one.last, self._now(5), 1
                one.last, one.position = None, one.kept
            self._later(3, partial(self._run, one))

    def _run(self, job: Job) -> None:
        if job.lives:
            job.state, job.running, job.held_up = "RUNNING", 4, False

    def _restart(self, job: Job) -> None:
        if job.lives:
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
        for one in self.jobs:
            if one.file == file:
                one.made_at, one.locks = None, ()

    def _session(self, leader: int) -> str:
        return f"0x{leader:04x}"

    def _look(self) -> None:
        """What a poll tells; while nobody leads REST does not answer."""
        at, leader = self._now(12), self.leader
        self._tell(
            JobManagerLeader(
                at=at, cluster=FLINK, address=None if leader is None else f"jm{leader % 2}:8081",
                leader_id=None if leader is None else f"uuid-{leader}",
                session=None if leader is None else self._session(leader),
            )
        )  # fmt: skip
        for one in self.jobs:
            stands = one.made_at is not None
            self._tell(
                JobGraph(
                    at=at + 5, cluster=FLINK, job=one.job, made_at=one.made_at, locks=tuple(sorted(set(one.locks))),
                    file=one.file if stands else None, checkpoints=min(one.completed, 1),
                )
            )  # fmt: skip
        for file in {*self.files, *(subject[2] for subject in self._told if subject[0] == "job_graph_file")}:
            modified_at = self.files.get(str(file))
            self._tell(JobGraphFile(at=at + 7, cluster=FLINK, file=str(file), modified_at=modified_at, size=20_000))
        if leader is not None:
            self._rest(at + 9)

    def _rest(self, at: int) -> None:
        for index, one in enumerate(self.jobs):
            if not one.listed:
                continue
            self._tell(
                FlinkJob(
                    at=at, cluster=FLINK, job=one.job, name=one.name, state=one.state, started_at=one.started_at,
                    restarting_at=one.restarting_at, tasks=4, tasks_running=one.running,
                )
            )  # fmt: skip
            self._tell(
                Checkpoints(
                    at=at + 1, cluster=FLINK, job=one.job, completed=one.completed, failed=one.failed,
                    restored=one.restored, last=one.last, restored_id=one.restored_id, restored_at=one.restored_at,
                )
            )  # fmt: skip
            if one.state == "RUNNING" and one.running:
                self._tell(
                    Position(
                        at=at + 2, cluster=self._cluster, flink=FLINK, job=one.job, name=one.name, topic="a",
                        partition=index % 2, offset=one.position, committed=one.kept, subtask=0, host="tm-1",
                    )
                )  # fmt: skip
        listed = tuple(sorted(one.job for one in self.jobs if one.listed))
        self._tell(JobListing(at=at + 3, cluster=FLINK, jobs=listed, address="jm"))

    def _tell(self, observation: Observation) -> None:
        said = {
            name: getattr(observation, name)
            for name in observation.__struct_fields__
            if name not in ("at", "seen_at", "since")
        }
        if self._told.get(observation.subject) != said:
            self._told[observation.subject] = said
            self._note(observation)
