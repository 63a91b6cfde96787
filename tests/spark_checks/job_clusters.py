"""Flink clusters that exist in a journal only: jobs, checkpoints, graphs and files, polled like those of a real one.

The sources' own `ChangeDetector` drops unchanged observations and repeats them as heartbeats.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobGraphFile, JobManagerLeader
from agent.model.times import millis
from agent.sources.base import ChangeDetector

MIDNIGHT = millis("2026-11-21T00:00:00.000Z")
BEGIN, END = MIDNIGHT - 2_700_000, MIDNIGHT + 2_700_000
POLL = 10_000
CHECKPOINT = 30_000


class Expected(NamedTuple):
    """An expected finding. subject: the job or the file. labels: all of them."""

    cluster: str
    subject: str
    severity: str
    labels: frozenset[str]


class Job(Struct):
    """A job as its JobManager knows it. due: when its next checkpoint completes."""

    job: str
    name: str
    started_at: int
    state: str = "RUNNING"
    ended_at: int | None = None
    completed: int = 0
    last: int | None = None
    restored: tuple[int, int, bool] | None = None
    due: int = 0


class Cluster:
    """A Flink cluster as observed in a journal, from BEGIN to END.

    stored: whether its files are in the storage directory and not in the journal.
    """

    def __init__(self, chance: random.Random, name: str, *, zookeeper: bool = True) -> None:
        self.chance, self.name, self.zookeeper = chance, name, zookeeper
        self.stored = chance.random() < 0.5
        self.expected: list[Expected] = []
        self.observations: list[Observation] = []
        self.jobs: dict[str, Job] = {}
        self.graphs: dict[str, JobGraph] = {}
        self.files: dict[str, JobGraphFile] = {}
        self.now = BEGIN + chance.randrange(POLL)
        self.available = True
        self._polled = ChangeDetector()
        self.leader = JobManagerLeader(at=0, cluster=name, address=None)
        self.elect()
        self.submit("beside")
        self.until(BEGIN + chance.randrange(300_000, 900_000))
        if chance.random() < 0.5:
            self.fail_over()

    def expect(self, subject: str, severity: str, *labels: str) -> None:
        """Expect a finding."""
        self.expected.append(Expected(self.name, subject, severity, frozenset(labels)))

    def id(self, digits: int = 32) -> str:
        """Return a random id of hex digits."""
        return f"{self.chance.getrandbits(digits * 4):0{digits}x}"

    def until(self, at: int) -> None:
        """Let time pass."""
        while self.now < at:
            self.now += POLL
            for job in self.jobs.values():
                while job.state == "RUNNING" and job.due <= self.now:
                    job.completed, job.last, job.due = job.completed + 1, (job.last or 0) + 1, job.due + CHECKPOINT
            self.poll()

    def pass_minutes(self) -> None:
        """Let some minutes pass: a few checkpoints, no heartbeat."""
        self.until(self.now + self.chance.randrange(150_000, 400_000))

    def poll(self) -> None:
        """Observe the cluster now; report what is gone once."""
        if self.available:
            self.observations += self._polled.changes(self._seen())

    def _seen(self) -> Iterator[Observation]:
        where: dict[str, Any] = {"at": self.now, "cluster": self.name}
        yield replace(self.leader, at=self.now)
        for job in self.jobs.values():
            yield FlinkJob(
                **where, job=job.job, name=job.name, state=job.state, started_at=job.started_at, ended_at=job.ended_at
            )
            restored_id, restored_at, savepoint = job.restored or (None, None, False)
            yield Checkpoints(
                **where,
                job=job.job,
                completed=job.completed,
                failed=0,
                restored=int(job.restored is not None),
                last=job.last if job.completed else None,
                restored_id=restored_id,
                restored_at=restored_at,
                restored_savepoint=savepoint,
            )
        yield from (replace(graph, at=self.now) for graph in self.graphs.values())
        if not self.stored:
            yield from (replace(file, at=self.now) for file in self.files.values())

    def elect(self) -> None:
        """Elect another JobManager."""
        address = f"jm-{self.chance.randrange(1_000)}:6123"
        self.leader = JobManagerLeader(at=self.now, cluster=self.name, address=address)
        if self.zookeeper:
            self.leader = replace(self.leader, leader_id=self.id(), session=f"0x{self.id(16)}")

    def fail_over(self, *forgotten: Job) -> None:
        """Elect another JobManager, which drops ended jobs and restores running ones, except `forgotten`."""
        self.until(self.now + 20_000)
        self.elect()
        self.jobs = {
            job: own_job
            for job, own_job in self.jobs.items()
            if own_job.state not in ("CANCELED", "FINISHED", "FAILED")
        }
        for job in self.jobs.values():
            self.start(job, None if job in forgotten or job.last is None else (job.last, self.now, False))
        self.until(self.now + 20_000)

    def start(self, job: Job, restored: tuple[int, int, bool] | None) -> None:
        """Start a new execution from what is restored."""
        job.started_at, job.state, job.ended_at, job.completed = self.now - 3_000, "RUNNING", None, 0
        job.restored, job.last, job.due = restored, None if restored is None else restored[0], self.now + CHECKPOINT
        self.jobs[job.job] = job

    def submit(self, name: str) -> Job:
        """Submit a job with its graph and its graph's file."""
        job = Job(self.id(), name, self.now)
        self.start(job, None)
        self.write_graph(job)
        return job

    def write_graph(self, job: Job) -> None:
        """Write the job's graph, replacing the one before."""
        file = self.write_file(self.now - 500)
        if self.zookeeper:
            locks = (self.leader.session or "",)
            self.graphs[job.job] = JobGraph(
                at=self.now, cluster=self.name, job=job.job, made_at=self.now - 200, locks=locks, file=file
            )

    def write_file(self, at: int) -> str:
        """Write a graph file at that time."""
        file = f"submittedJobGraph{self.id(12)}"
        size = self.chance.randrange(1_000, 90_000)
        self.files[file] = JobGraphFile(at=self.now, cluster=self.name, file=file, modified_at=at, size=size)
        return file

    def end(self, job: Job, *, graph: bool = False, file: bool = False) -> None:
        """End the job. graph, file: whether these are left behind."""
        job.state, job.ended_at = self.chance.choice(["CANCELED", "FINISHED", "FAILED"]), self.now - 100
        if not graph:
            self.remove(job, file=file)

    def remove(self, job: Job, *, file: bool = False) -> None:
        """Remove the job's graph. file: whether the file is left behind."""
        graph = self.graphs.get(job.job)
        if graph is not None and graph.made_at is not None:
            self.graphs[job.job] = replace(graph, made_at=None, locks=(), file=None)
            if not file and graph.file is not None:
                self.remove_file(graph.file)

    def remove_file(self, file: str) -> None:
        """Remove the file."""
        if self.stored:
            del self.files[file]
        else:
            self.files[file] = replace(self.files[file], modified_at=None, size=0)

    def file_of(self, job: Job) -> str:
        """Return the file that the job's graph points to."""
        return self.graphs[job.job].file or ""
