"""The Flink incidents: a source subtask reset to the log start offset, and jobs that return after they have ended."""

import re
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaException, TopicPartition

from testbed.consumers import Rewind
from testbed.faults import Progress, UncleanReset, flink_reset
from testbed.flink.cluster import FlinkCluster
from testbed.flink.programs import Program
from testbed.flink.versions import Checkpoints, Job
from testbed.flink.views import Leadership
from testbed.kafka import Cluster
from testbed.traffic import IMPATIENT
from testbed.waiting import wait_until


class JobReset(NamedTuple):
    """The outcome of `flink_job_reset`. subtask: the source subtask that was reset.

    fault: the outcome for the brokers. resets: everything that TaskManagers logged about offsets out of range.
    checkpoints: the job's, at the end.
    """

    job: str
    subtask: int
    fault: UncleanReset
    resets: Sequence[Rewind]
    checkpoints: Checkpoints


class JobReader:
    """A Flink 1.4 job as a reader of a topic, by its committed offsets and its TaskManagers' logs."""

    def __init__(self, kafka: Cluster, flink: FlinkCluster, group: str) -> None:
        self.group = group
        self._flink = flink
        # Only requests committed offsets and log start offsets; it never subscribes.
        self._consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **IMPATIENT}
        )

    def committed(self, topic: str, partition: int) -> int:
        """Return the job's committed offset, below 0 if there is none or it is unavailable."""
        try:
            (place,) = self._consumer.committed([TopicPartition(topic, partition)], timeout=5)
        except KafkaException:
            return -1
        return int(place.offset)

    def wait_until_at(self, topic: str, partition: int, offset: int, seconds: float = 120) -> None:
        """Wait until the job has committed this offset, which it does with its checkpoints."""
        what = f"{self.group} to commit {offset} in {topic}[{partition}]"
        wait_until(lambda: self.committed(topic, partition) >= offset, what, seconds)

    def wait_for_rewind(self, topic: str, partition: int, seconds: float = 120) -> Rewind:
        """Wait until a TaskManager logs an offset out of range in this partition; return the first."""

        def find() -> Rewind | None:
            return next((reset for reset in self.resets(topic) if reset.partition == partition), None)

        return wait_until(find, f"{self.group} to be reset in {topic}[{partition}]", seconds)

    def resets(self, topic: str) -> list[Rewind]:
        """Return the resets to the log start offset that TaskManagers have logged.

        The line is that of 0.11's Fetcher.
        """
        line = re.compile(
            r"^(\S+ \S+),(\d{3}) .*Fetch offset (\d+) is out of range for partition "
            rf"{re.escape(topic)}-(\d+), resetting offset",
            re.MULTILINE,
        )
        logs = [log.read_text(errors="replace") for name, log in self._flink.logs.items() if "taskmanager" in name]
        return [
            Rewind(_ms(found[1], found[2]), topic, int(found[4]), int(found[3]), self._log_start(topic, int(found[4])))
            for log in logs
            for found in line.finditer(log)
        ]

    def _log_start(self, topic: str, partition: int) -> int:
        def query() -> tuple[int] | None:
            try:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=3)
            except KafkaException:
                return None
            return (low,)

        return wait_until(query, f"the log start offset of {topic}[{partition}]")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()


def flink_job_reset(
    kafka: Cluster,
    flink: FlinkCluster,
    job: str,
    topic: str,
    partition: int,
    *,
    group: str,
    unreplicated: int = 1500,
    progress: Progress = lambda _: None,
) -> JobReset:
    """Apply faults.flink_reset to a partition that a running job reads.

    The job is programs.kafka_job on Flink 1.4.2 with Kafka 0.11. No other partition may have both failing brokers as
    its replicas, or its subtask is reset too. Ends when the preferred leader leads again and the running job has
    committed its earlier position. Raises TimeoutError.
    """
    with JobReader(kafka, flink, group) as reader:
        subtask = wait_until(
            lambda: _subtask(flink, job, topic, partition), f"the subtask that reads {topic}[{partition}]", 120
        )[0]
        fault = flink_reset(kafka, topic, partition, reader, unreplicated=unreplicated, progress=progress)
        reader.wait_until_at(topic, partition, fault.rewind.position)
        progress(f"{group} has again committed {fault.rewind.position} on {topic}[{partition}]")
        flink.wait_until_running(job)
        return JobReset(job, subtask, fault, reader.resets(topic), flink.checkpoints(job))


def _subtask(flink: FlinkCluster, job: str, topic: str, partition: int) -> tuple[int] | None:
    """Return the subtask with a metric for the partition, whose name 1.4 does not escape."""
    metric = f"Source__kafka-source.KafkaConsumer.current-offsets.{topic}-{partition}"
    for vertex in flink.request(f"/jobs/{job}")["vertices"]:
        names = [f"{number}.{metric}" for number in range(vertex["parallelism"])]
        metrics = flink.request(f"/jobs/{job}/vertices/{vertex['id']}/metrics?get={quote(','.join(names))}")
        if metrics:
            return (int(metrics[0]["id"].partition(".")[0]),)
    return None


def _ms(second: str, millisecond: str) -> int:
    """Convert a log's timestamp, in local time, to ms since the epoch."""
    local = datetime.strptime(second, "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007  # made aware in the next line
    return int(local.astimezone().timestamp()) * 1000 + int(millisecond)


class Resurrection(NamedTuple):
    """The outcome of `resurrect`.

    leaders: in order; the first keeps its session and its lock, the second is killed, the third recovers the jobs.
    ended: the old job when it was cancelled. back: when it ran again. restored: its checkpoints then, of which none was
    restored. lost: the successor's checkpoints before the failover. starved: the successor while the old job runs.
    """

    job: str
    successor: str
    leaders: tuple[Leadership, Leadership, Leadership]
    ended: Job
    back: Job
    restored: Checkpoints
    lost: Checkpoints
    starved: Job


def resurrect(
    cluster: FlinkCluster,
    old: Program,
    new: Program,
    *,
    checkpoints: int = 3,
    progress: Progress = lambda _: None,
    before_failover: Callable[[], None] = lambda: None,
) -> Resurrection:
    """Let a cancelled job return at a failover and starve its successor (FLINK-10011, Flink 1.4.2).

    The cluster needs two JobManagers and two TaskManagers. `new`, a job of the same name, must need all slots; `old`
    must fit on one TaskManager. checkpoints: how many the successor completes first. before_failover: called when
    everything is ready. Every step waits for its effect. Raises TimeoutError.
    """
    job = cluster.submit(old)
    cluster.wait_until_running(job)
    cluster.wait_for_checkpoints(job, 2)
    first = cluster.wait_for_leader()
    progress(f"JobManager {first.job_manager} leads, session {first.session}; job {job} runs and completes checkpoints")

    cluster.cut_link(first.job_manager)
    second = cluster.wait_for_leader(other_than=first)
    progress(
        f"its link to ZooKeeper was down for 1.5 s: JobManager {second.job_manager} leads, session {second.session}"
    )
    cluster.wait_until_running(job)
    progress(f"job {job} continues; its job graph is locked by {_owners(cluster, job)}")
    cluster.cancel(job)
    ended = cluster.wait_until_in_state(job, "CANCELED")
    if _owners(cluster, job) != [first.session]:
        msg = (
            f"Job {job} is {ended.state}, and its job graph is locked by {_owners(cluster, job)}, not by the "
            f"former leader's session {first.session} alone: this Flink has FLINK-10011 fixed."
        )
        raise RuntimeError(msg)
    progress(f"job {job} is {ended.state}; its job graph remains, locked by {first.session}")

    successor = cluster.submit(new)
    cluster.wait_until_running(successor)
    lost = cluster.wait_for_checkpoints(successor, checkpoints)
    progress(f"its successor {successor} runs and has completed {lost.completed} checkpoints")

    before_failover()
    # Of two jobs that recover together, either may get the slots. With a TaskManager dead too, as when a host fails,
    # only the old job fits at first; once it has its slots, there are never enough for the new job.
    cluster.kill(second.job_manager)
    cluster.kill_task_manager(2)
    progress(f"JobManager {second.job_manager} and a TaskManager die together")
    third = cluster.wait_for_leader(other_than=second)
    progress(f"JobManager {third.job_manager} leads, session {third.session}")
    back = cluster.wait_until_running(job)
    progress(f"the cancelled job {job} runs again")
    restored = cluster.wait_for_checkpoints(job, 1)
    progress(f"it restored {restored.restored} checkpoints and completed checkpoint {restored.latest}")
    cluster.start_task_manager(2)
    starved = cluster.wait_until_in_state(successor, "RESTARTING")
    progress(f"its successor {successor} gets no slots and is {starved.state}")
    return Resurrection(job, successor, (first, second, third), ended, back, restored, lost, starved)


def _owners(cluster: FlinkCluster, job: str) -> list[str]:
    """Return the sessions that lock a job's graph, sorted; empty without a job graph."""
    graph = cluster.job_graphs().get(job)
    return sorted(graph.locks.values()) if graph else []


class Kept(NamedTuple):
    """What `keep` copied of a running job: its znodes' contents, and the HA storage."""

    job: str
    graph: bytes
    locks: bytes
    storage: Path


def keep(cluster: FlinkCluster, job: str) -> Kept:
    """Copy what makes a job run, for `put_back`. Flink 1.20 and 2.x."""
    storage = cluster.workdir / f"kept-{job}"
    shutil.copytree(cluster.storage_dir / cluster.name, storage)
    path = cluster.graph_path(job)
    return Kept(job, cluster.zookeeper_client.get(path)[0], cluster.zookeeper_client.get(f"{path}/locks")[0], storage)


def put_back(cluster: FlinkCluster, kept: Kept) -> None:
    """Restore what `keep` copied of a job that has ended.

    The current leader runs it again at once, or else the next leader. Its checkpoints are not restored, so it starts
    empty.
    """
    wait_until(lambda: kept.job not in cluster.job_graphs(), f"the job graph of {kept.job} to disappear")
    for file in (path for path in kept.storage.rglob("*") if path.is_file()):
        if not file.name.startswith("completedCheckpoint"):
            place = cluster.storage_dir / cluster.name / file.relative_to(kept.storage)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    path = cluster.graph_path(kept.job)
    change = cluster.zookeeper_client.transaction()  # Flink takes a job graph without its locks node for corrupt
    change.create(path, kept.graph)
    change.create(f"{path}/locks", kept.locks)
    refused = [result for result in change.commit() if isinstance(result, Exception)]
    if refused:
        msg = f"The job graph of {kept.job} could not be put back: {refused}."
        raise RuntimeError(msg)
