"""Facts about Flink: jobs and their checkpoints, the leader, high-availability metadata, positions of subtasks.

cluster: the Flink cluster's name in rules.toml, except for `Position`, which is about a partition of a Kafka cluster.
job: the job id, 32 hex digits.
"""

from agent.model.observations.base import Observation


class FlinkJob(Observation, frozen=True, kw_only=True, tag="flink_job", gc=False):
    """A job and its state, as REST reports them.

    cluster: the Flink cluster. job: the job id, 32 hex digits. name: the job's name. state: as Flink names it (CREATED,
    RUNNING, FAILING, RESTARTING, CANCELED, ...). started_at: when this execution started on this JobManager. ended_at:
    when it ended; null if it has not. restarting_at: when it last entered RESTARTING; null if it never did or Flink
    does not report it. tasks: number of subtasks. tasks_running: number of subtasks that are running. tasks_finished:
    number of subtasks that have read all of a bounded source, while others run on. tasks_initializing: number of
    subtasks that restore their state; 0 before Flink 1.13, which does not report it.
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
    tasks_finished: int = 0
    tasks_initializing: int = 0

    @property
    def ended(self) -> bool:
        """Whether it will not run again by itself. A SUSPENDED job has not ended: another JobManager takes it over."""
        return self.state in ("FINISHED", "CANCELED", "FAILED")


class JobListing(Observation, frozen=True, kw_only=True, tag="job_listing", gc=False):
    """The jobs that a complete listing of the leader contains.

    cluster: the Flink cluster. jobs: their ids, including those that have ended, sorted. address: of the JobManager
    that responded as the leader; null if unknown.
    """

    key = ("cluster",)

    cluster: str
    jobs: tuple[str, ...]
    address: str | None = None


class Checkpoints(Observation, frozen=True, kw_only=True, tag="checkpoints", gc=False):
    """A job's checkpoints since it was started on this JobManager, and what it was restored from.

    cluster: the Flink cluster. job: the job id, 32 hex digits. completed, failed, restored: numbers of checkpoints, as
    REST counts them. last: id of the last completed checkpoint, savepoints not included; null if there is none.
    last_triggered_at: when Flink triggered it: the state that it holds. last_path: where it is stored. savepoint,
    savepoint_triggered_at: the same of the last completed savepoint. restored_id: id of the checkpoint or savepoint
    that the job was restored from; null if it was not restored. restored_at: when it was restored. restored_savepoint:
    whether it was restored from a savepoint. restored_path: where that checkpoint or savepoint is stored.
    """

    key = ("cluster", "job")
    is_frequent = True

    cluster: str
    job: str
    completed: int
    failed: int
    restored: int = 0
    last: int | None = None
    last_triggered_at: int | None = None
    last_path: str | None = None
    savepoint: int | None = None
    savepoint_triggered_at: int | None = None
    restored_id: int | None = None
    restored_at: int | None = None
    restored_savepoint: bool = False
    restored_path: str | None = None


class JobManagerLeader(Observation, frozen=True, kw_only=True, tag="job_manager_leader", gc=False):
    """The leading JobManager.

    cluster: the Flink cluster. address: of the leader; null if there is none. leader_id: UUID of the leader session.
    session: ephemeralOwner of the leader's znode as 0x hex; like `leader_id` null if only REST reports the leader.
    """

    key = ("cluster",)

    cluster: str
    address: str | None
    leader_id: str | None = None
    session: str | None = None


class JobGraph(Observation, frozen=True, kw_only=True, tag="job_graph", gc=False):
    """A job graph in ZooKeeper, which a new leader recovers.

    cluster: the Flink cluster. job: the job id, 32 hex digits. made_at: ctime of its znode; null if there is none (any
    longer). locks: sessions that own its lock nodes, 0x hex, sorted. file: name of the file in the HA storage directory
    that the znode points to. checkpoints: number of completed checkpoints that ZooKeeper has of the job; null if
    unknown. znode: its path without the chroot.
    """

    key = ("cluster", "job")

    cluster: str
    job: str
    made_at: int | None
    locks: tuple[str, ...] = ()
    file: str | None = None
    checkpoints: int | None = None
    znode: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether there is no job graph any more."""
        return self.made_at is None


class JobGraphFile(Observation, frozen=True, kw_only=True, tag="job_graph_file", gc=False):
    """A job graph's file in the HA storage directory.

    cluster: the Flink cluster. file: name of the file. modified_at: when it was last modified; null if it no longer
    exists. size: bytes.
    """

    key = ("cluster", "file")

    cluster: str
    file: str
    modified_at: int | None
    size: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether the file no longer exists."""
        return self.modified_at is None


class Position(Observation, frozen=True, kw_only=True, tag="position", gc=False):
    """The position of a job's source subtask in a partition.

    cluster: the Kafka cluster. flink: the Flink cluster. job: the job id, 32 hex digits. name: the job's name.
    topic, partition: what the subtask reads. offset: of the next record, one above Flink's currentOffset(s).
    committed: the offset that the subtask last committed to Kafka; null if there is none or Flink does not report it.
    task: name of the source operator. subtask: its number, from 0. host: of the TaskManager; null if unknown.
    attempt: of the subtask, from 0; null if unknown.
    """

    # Up to 1.16 each application with high availability has the job id 0 in its own Flink cluster (FLINK-19358).
    key = ("cluster", "flink", "job", "topic", "partition")
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
