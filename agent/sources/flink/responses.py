"""What a JobManager's REST answers, as types, and the observations made of it. No request is made here.

Sources: the REST API of Flink 1.20 and 2.x; of 1.4 org.apache.flink.runtime.webmonitor.handlers (/joboverview,
/jobs/:jobid, /jobs/:jobid/checkpoints), which leaves keys out where the others say null.
"""

from typing import Annotated

from msgspec import Meta, Struct

from agent.model.observations import Checkpoints, FlinkJob

JobId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]


class Tasks(Struct, frozen=True):
    """How many subtasks a job has, and how many of them run."""

    total: int = 0
    running: int = 0


class Job(Struct, frozen=True, rename="kebab"):
    """A job in a listing. Times are ms since the epoch; end_time is -1 while it has not ended."""

    jid: JobId
    name: str
    state: str
    start_time: int
    end_time: int = -1
    tasks: Tasks = Tasks()


class Listing(Struct, frozen=True):
    """/jobs/overview, from Flink 1.5 on."""

    jobs: tuple[Job, ...]


class OldListing(Struct, frozen=True):
    """/joboverview of Flink 1.4: what has not ended, and what has."""

    running: tuple[Job, ...]
    finished: tuple[Job, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All of them."""
        return (*self.running, *self.finished)


class Vertex(Struct, frozen=True):
    """One task of a job: operators chained. Its name lists them: "Source: kafka-source -> work"."""

    id: JobId
    name: str = ""


class Details(Struct, frozen=True):
    """/jobs/:jobid. timestamps: when the job last entered each state, 0 where it never did."""

    timestamps: dict[str, int] = {}
    vertices: tuple[Vertex, ...] = ()


class Subtask(Struct, frozen=True):
    """One of a vertex's subtasks. endpoint (from 1.19 on) and host: where its TaskManager is, perhaps with a port."""

    subtask: int
    attempt: int = 0
    host: str | None = None
    endpoint: str | None = None

    @property
    def where(self) -> str | None:
        """The TaskManager's host; None while the subtask has none."""
        told = self.endpoint or self.host
        if told is None or told.startswith("("):  # "(unassigned)"
            return None
        host, colon, port = told.rpartition(":")
        return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else told


class Subtasks(Struct, frozen=True):
    """/jobs/:jobid/vertices/:vertexid."""

    subtasks: tuple[Subtask, ...] = ()


class Metric(Struct, frozen=True):
    """One of /jobs/:jobid/vertices/:vertexid/metrics; only those asked for by name have a value."""

    id: str
    value: str | None = None


class Property(Struct, frozen=True):
    """One of /jobmanager/config."""

    key: str
    value: str


class _Counts(Struct, frozen=True):
    completed: int
    failed: int
    restored: int = 0


class _Completed(Struct, frozen=True):
    id: int


class _Restored(Struct, frozen=True):
    id: int
    restore_timestamp: int
    is_savepoint: bool = False
    external_path: str | None = None


class _Latest(Struct, frozen=True):
    completed: _Completed | None = None
    restored: _Restored | None = None


class CheckpointCounts(Struct, frozen=True):
    """/jobs/:jobid/checkpoints; empty in 1.4 where the job makes none."""

    counts: _Counts | None = None
    latest: _Latest | None = None


def flink_job(cluster: str, job: Job, restarting_at: int | None, at: int) -> FlinkJob:
    """The job as an observation."""
    return FlinkJob(
        at=at,
        cluster=cluster,
        job=job.jid,
        name=job.name,
        state=job.state,
        started_at=job.start_time,
        ended_at=job.end_time if job.end_time >= 0 else None,
        restarting_at=restarting_at,
        tasks=job.tasks.total,
        tasks_running=job.tasks.running,
    )


def checkpoints(cluster: str, job: str, told: CheckpointCounts, at: int) -> Checkpoints | None:
    """The job's checkpoints as an observation; None where it makes none."""
    if told.counts is None:
        return None
    latest = told.latest or _Latest()
    restored = latest.restored
    return Checkpoints(
        at=at,
        cluster=cluster,
        job=job,
        completed=told.counts.completed,
        failed=told.counts.failed,
        restored=told.counts.restored,
        last=latest.completed.id if latest.completed else None,
        restored_id=restored.id if restored else None,
        restored_at=restored.restore_timestamp if restored else None,
        restored_savepoint=restored.is_savepoint if restored else False,
        restored_path=restored.external_path if restored else None,
    )
