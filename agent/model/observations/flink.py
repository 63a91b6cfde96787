"""Facts about Flink: jobs and their checkpoints, who leads, what high availability keeps, where subtasks read.

cluster: the Flink cluster's name in rules.toml, but for `Position`, which is about a partition of a Kafka cluster.
job: the job id, 32 hex digits.
"""

from agent.model.observations.base import Observation


class FlinkJob(Observation, frozen=True, kw_only=True, tag="flink_job", gc=False):
    """A job as REST tells it: its state as Flink names it (CREATED, RUNNING, FAILING, RESTARTING, CANCELED, ...).

    started_at, ended_at: of this execution on this JobManager; ended_at None while it has not ended.
    restarting_at: when it last entered RESTARTING, None where it never did or Flink does not tell.
    tasks, tasks_running: the number of subtasks, and of those that run.
    """

    key = ("cluster", "job")

    cluster: str
    job: str
    name: str
    state: str
    started_at: int
    ended_at: int | None = None
    restarting_at: int | None = None
    tasks: int = 0
    tasks_running: int = 0

    @property
    def ended(self) -> bool:
        """Whether it will not run again by itself. SUSPENDED is no end: another JobManager takes the job over."""
        return self.state in ("FINISHED", "CANCELED", "FAILED")


class JobListing(Observation, frozen=True, kw_only=True, tag="job_listing", gc=False):
    """The ids of all jobs that a complete listing of the leader names, ended ones included; sorted.

    address: of the JobManager that answered as the leader.
    """

    key = ("cluster",)

    cluster: str
    jobs: tuple[str, ...]
    address: str | None = None


class Checkpoints(Observation, frozen=True, kw_only=True, tag="checkpoints", gc=False):
    """A job's checkpoints since it was started on this JobManager, counted by REST, and what it was restored from.

    last: the id of the last completed one. restored_id: None where it was not restored; restored_path: where from.
    """

    key = ("cluster", "job")
    is_frequent = True

    cluster: str
    job: str
    completed: int
    failed: int
    restored: int = 0
    last: int | None = None
    restored_id: int | None = None
    restored_at: int | None = None
    restored_savepoint: bool = False
    restored_path: str | None = None


class JobManagerLeader(Observation, frozen=True, kw_only=True, tag="job_manager_leader", gc=False):
    """Which JobManager leads (address None: none). leader_id: the leader session's UUID.

    session: the ephemeralOwner of the leader's znode as 0x hex; both None where only REST tells of the leader.
    """

    key = ("cluster",)

    cluster: str
    address: str | None
    leader_id: str | None = None
    session: str | None = None


class JobGraph(Observation, frozen=True, kw_only=True, tag="job_graph", gc=False):
    """A job graph in ZooKeeper: what a new leader recovers. made_at: its znode's ctime; None: there is none (any more).

    locks: the sessions (0x hex, sorted) that own its lock nodes. file: the file name in the HA storage directory
    that its znode points to. checkpoints: how many completed ones stand in ZooKeeper for the job, None where unknown.
    znode: its path, the chroot left out.
    """

    key = ("cluster", "job")

    cluster: str
    job: str
    made_at: int | None
    locks: tuple[str, ...] = ()
    file: str | None = None
    checkpoints: int | None = None
    znode: str | None = None


class JobGraphFile(Observation, frozen=True, kw_only=True, tag="job_graph_file", gc=False):
    """A job graph's file in the HA storage directory. modified_at None: it is gone. size: bytes."""

    key = ("cluster", "file")

    cluster: str
    file: str
    modified_at: int | None
    size: int = 0


class Position(Observation, frozen=True, kw_only=True, tag="position", gc=False):
    """Where a job's source subtask reads in a partition: the next record, one above Flink's currentOffset(s).

    cluster: the Kafka cluster. flink: the Flink cluster. task: the source operator's name; subtask: from 0.
    committed: the offset that the subtask last committed to Kafka, None where it has not or Flink does not tell.
    host: the TaskManager's, attempt: of the subtask, counted from 0; None where unknown.
    """

    key = ("cluster", "job", "topic", "partition")
    is_frequent = True

    cluster: str
    flink: str
    job: str
    name: str
    topic: str
    partition: int
    offset: int
    committed: int | None = None
    task: str | None = None
    subtask: int | None = None
    host: str | None = None
    attempt: int | None = None
