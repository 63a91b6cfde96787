"""A Flink cluster with its jobs, checkpoints and high availability, and what the Flink source sees of it."""

import random
from collections.abc import Callable

from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobListing, JobManagerLeader, Position
from agent.sources.base import ChangeDetector
from testbed.model.clock import SECOND, Clock
from testbed.model.groups import Group
from testbed.model.truth import Truth
from testbed.model.views import Emit

FLINK = "jobs"
_METRICS_MS = 10 * SECOND
"""metrics.fetcher.update-interval: how old a position may be."""


class Job:
    """A job, its execution, its checkpoints and its graph. kept: the positions in the last checkpoint."""

    def __init__(self, job: str, name: str, group: Group | None, interval: int, at: int) -> None:
        self.id, self.name, self.group, self.interval = job, name, group, interval
        self.state, self.tasks, self.running = "RUNNING", 4, 4
        self.started_at = at
        self.restarting_at: int | None = None
        self.ended_at: int | None = None
        self.completed = self.ids = 0
        self.failed = self.restored = 0
        self.last: int | None = None
        self.restored_id: int | None = None
        self.restored_at: int | None = None
        self.kept: list[float] = [] if group is None else [reader.position for reader in group.readers]
        self.fails = False
        self.listed = True
        self.made_at: int | None = at
        self.locks: tuple[str, ...] = ()
        self.file = f"submittedJobGraph{job[:12]}"
        self.shown: list[int] = [int(position) for position in self.kept]
        self.committed: list[int | None] = [None for _ in self.kept]

    @property
    def is_active(self) -> bool:
        return self.listed and self.state == "RUNNING" and self.running > 0


class Flink:
    """A JobManager that leads, another that waits, and their jobs."""

    def __init__(
        self, clock: Clock, rng: random.Random, truth: Truth, emit: Emit, kafka: str, *, interval: int
    ) -> None:
        """kafka: the Kafka cluster that jobs read. interval: of polls, ms."""
        self._clock, self._rng, self.truth, self._emit, self._kafka = clock, rng, truth, emit, kafka
        self._detector = ChangeDetector()
        self._number = 1
        self.leader: int | None = 1
        self.jobs: list[Job] = []
        clock.every(interval, self._poll, first=rng.randrange(interval))
        clock.every(_METRICS_MS, self._refresh, first=rng.randrange(_METRICS_MS))
        clock.after(20, self.read_zookeeper)

    def submit(self, name: str, group: Group | None, *, interval: int, fresh: bool = False) -> Job:
        job = Job(f"{self._rng.getrandbits(128):032x}", name, group, interval, self._clock.now)
        if not fresh:
            job.completed = job.ids = job.last = self._rng.randrange(30, 900)
        job.locks = (self._session,)
        self.jobs.append(job)
        self._clock.every(interval, lambda: self._checkpoint(job), first=interval)
        self.read_zookeeper()
        return job

    def cancel(self, job: Job, *, keeps_graph: bool = False) -> None:
        job.state, job.running, job.ended_at = "CANCELED", 0, self._clock.now
        if job.group is not None:
            job.group.stop(crashes=True)
        if not keeps_graph:
            job.made_at, job.locks = None, ()
        self.read_zookeeper()

    def fail(self, job: Job, *, after: Callable[[], None] | None = None) -> None:
        """Let a task fail; the job restarts from its last checkpoint."""
        if not job.is_active:
            return
        job.state, job.running, job.restarting_at = "RESTARTING", 0, self._clock.now
        self._halt(job)
        self._clock.after(self._rng.uniform(4, 15) * SECOND, lambda: self._restore(job))
        if after is not None:
            after()

    def fail_over(self, *, stateless: Job | None = None) -> None:
        """Lose the JobManager that leads; the other recovers every graph. stateless: a job that loses checkpoints."""
        if self.leader is None:
            return
        old = self._session
        self.leader = None
        for job in self.jobs:
            job.listed = False
            if job.group is not None and job.state == "RUNNING":
                self._halt(job)
        self.read_zookeeper()

        def lead() -> None:
            self._number += 1
            self.leader = self._number
            self.read_zookeeper()
            self._clock.after(self._rng.uniform(2, 6) * SECOND, recover)

        def recover() -> None:
            for job in self.jobs:
                if job.made_at is None:
                    continue
                if job.state == "CANCELED":
                    job.last, job.ids, job.ended_at = None, 0, None
                job.listed, job.state, job.running, job.restarting_at = True, "CREATED", 0, None
                job.started_at = self._clock.now
                job.completed = job.failed = job.restored = 0
                job.restored_id = job.restored_at = None
                job.locks = (*job.locks, self._session)
                if job is stateless:
                    job.last, job.ids = None, 0
                self._clock.after(self._rng.uniform(1, 4) * SECOND, lambda job=job: self._restore(job))  # type: ignore[misc]
            self.read_zookeeper()

        def expire() -> None:
            for job in self.jobs:
                job.locks = tuple(lock for lock in job.locks if lock != old)
            self.read_zookeeper()

        self._clock.after(self._rng.uniform(6, 20) * SECOND, lead)
        self._clock.after(self._rng.uniform(22, 55) * SECOND, expire)

    def _halt(self, job: Job) -> None:
        if job.group is not None:
            for reader in job.group.readers:
                reader.catch_up(self._clock.now)
            job.group.reading = False

    def _restore(self, job: Job) -> None:
        if not job.listed or job.state == "CANCELED" or self.leader is None:
            return
        now = self._clock.now
        if job.last is not None:
            job.restored, job.restored_id, job.restored_at = job.restored + 1, job.last, now
        if job.group is not None:
            for reader, position in zip(job.group.readers, job.kept, strict=True):
                reader.at = now
                if job.last is not None:
                    reader.position = position
            job.group.running = job.group.reading = True
        job.state, job.running = "RUNNING", job.tasks

    def _checkpoint(self, job: Job) -> None:
        if not job.is_active or self.leader is None:
            return
        job.ids += 1
        if job.fails:
            job.failed += 1
            return
        job.completed, job.last = job.completed + 1, job.ids
        if job.group is not None:
            for number, reader in enumerate(job.group.readers):
                reader.catch_up(self._clock.now)
                if reader.log.open:
                    reader.commit()
                job.kept[number] = reader.position
                job.committed[number] = reader.committed

    @property
    def _session(self) -> str:
        return f"0x100{self._number:x}"

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        for job in self.jobs:
            if job.is_active and job.group is not None:
                for number, reader in enumerate(job.group.readers):
                    reader.catch_up(self._clock.now)
                    job.shown[number] = int(reader.position)

    def read_zookeeper(self) -> None:
        """Emit what watches report of the leader and the job graphs."""
        at, leads = self._clock.now + 5, self.leader is not None
        facts: list[Observation] = [
            JobManagerLeader(
                at=at, since=at, cluster=FLINK, address=f"jm-{self._number % 2}:8081" if leads else None,
                leader_id=f"uuid-{self._number}" if leads else None, session=self._session if leads else None,
            )
        ]  # fmt: skip
        facts += [
            JobGraph(
                at=at, since=at, cluster=FLINK, job=job.id, made_at=job.made_at, locks=tuple(sorted(set(job.locks))),
                file=None if job.made_at is None else job.file, checkpoints=min(job.completed, 1),
                znode=f"/jobgraphs/{job.id}",
            )
            for job in self.jobs
        ]  # fmt: skip
        self._publish(facts)

    def _poll(self) -> None:
        if self.leader is None:
            return
        at = self._clock.now
        facts: list[Observation] = []
        for job in (job for job in self.jobs if job.listed):
            facts.append(
                FlinkJob(
                    at=at, cluster=FLINK, job=job.id, name=job.name, state=job.state, started_at=job.started_at,
                    ended_at=job.ended_at, restarting_at=job.restarting_at, tasks=job.tasks, tasks_running=job.running,
                )
            )  # fmt: skip
            facts.append(
                Checkpoints(
                    at=at + 2, cluster=FLINK, job=job.id, completed=job.completed, failed=job.failed,
                    restored=job.restored, last=job.last, restored_id=job.restored_id, restored_at=job.restored_at,
                )
            )  # fmt: skip
            if job.is_active and job.group is not None:
                facts += [
                    Position(
                        at=at + 4, cluster=self._kafka, flink=FLINK, job=job.id, name=job.name,
                        topic=reader.log.place[0], partition=reader.log.place[1], offset=job.shown[number],
                        committed=job.committed[number], task="Source: events", subtask=number, host="tm-1", attempt=0,
                    )
                    for number, reader in enumerate(job.group.readers)
                ]  # fmt: skip
        listed = tuple(sorted(job.id for job in self.jobs if job.listed))
        facts.append(JobListing(at=at + 6, cluster=FLINK, jobs=listed, address=f"jm-{self._number % 2}:8081"))
        self._publish(facts)

    def _publish(self, facts: list[Observation]) -> None:
        changes = self._detector.changes(facts)
        if changes:
            self._emit(changes)
