"""The incident of the flink-reset report: one subtask of a Flink 1.4 job silently goes back to the log's start."""

import re
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaException, TopicPartition

from testbed.consumers import Rewind
from testbed.faults import Progress, UncleanReset, flink_reset
from testbed.flink.cluster import FlinkCluster
from testbed.flink.dialects import Checkpoints
from testbed.kafka import Cluster
from testbed.traffic import IMPATIENT
from testbed.waiting import wait_until


class JobReset(NamedTuple):
    """What `flink_job_reset` did. subtask: of the source, the one that was reset; fault: what happened to the brokers.

    resets: all that TaskManagers have logged about offsets out of range. checkpoints: of the job, after it all.
    """

    job: str
    subtask: int
    fault: UncleanReset
    resets: Sequence[Rewind]
    checkpoints: Checkpoints


class JobReader:
    """A Flink 1.4 job as the reader of a topic, seen by its committed offsets and by what its TaskManagers log."""

    def __init__(self, kafka: Cluster, flink: FlinkCluster, group: str) -> None:
        self.group = group
        self._flink = flink
        # Never subscribed to anything: it only asks for what the job has committed, and for the log's start.
        self._consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **IMPATIENT}
        )

    def committed(self, topic: str, partition: int) -> int:
        """The offset that the job has committed; below 0 where it has none or nobody says."""
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
        """Wait until a TaskManager logs that the job's offset in this partition is out of range, and tell the first."""

        def mine() -> Rewind | None:
            return next((one for one in self.resets(topic) if one.partition == partition), None)

        return wait_until(mine, f"{self.group} to be reset in {topic}[{partition}]", seconds)

    def resets(self, topic: str) -> list[Rewind]:
        """What TaskManagers have logged about offsets out of range; each leads to the log's start (0.11's Fetcher)."""
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
        def asked() -> tuple[int] | None:
            try:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=3)
            except KafkaException:
                return None
            return (low,)

        return wait_until(asked, f"the log start of {topic}[{partition}]")[0]

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
    unseen: int = 1500,
    progress: Progress = lambda _: None,
) -> JobReset:
    """Do faults.flink_reset to a partition that a running job (programs.kafka_job, Flink 1.4.2, Kafka 0.11) reads.

    No other partition may have both brokers that fail as its replicas, or its subtask is reset too. Ends when the
    preferred leader leads again, the job has committed what it had read before, and is running. Raises TimeoutError.
    """
    with JobReader(kafka, flink, group) as reader:
        subtask = wait_until(
            lambda: _subtask(flink, job, topic, partition), f"the subtask that reads {topic}[{partition}]", 120
        )[0]
        fault = flink_reset(kafka, topic, partition, reader, unseen=unseen, progress=progress)
        reader.wait_until_at(topic, partition, fault.rewind.position)
        progress(f"{group} has committed {fault.rewind.position} in {topic}[{partition}] again")
        flink.wait_until_running(job)
        return JobReset(job, subtask, fault, reader.resets(topic), flink.checkpoints(job))


def _subtask(flink: FlinkCluster, job: str, topic: str, partition: int) -> tuple[int] | None:
    """The subtask with a metric for the partition. 1.4 names it without escaping."""
    metric = f"Source__kafka-source.KafkaConsumer.current-offsets.{topic}-{partition}"
    for vertex in flink.ask(f"/jobs/{job}")["vertices"]:
        names = [f"{number}.{metric}" for number in range(vertex["parallelism"])]
        told = flink.ask(f"/jobs/{job}/vertices/{vertex['id']}/metrics?get={quote(','.join(names))}")
        for one in told:
            return (int(one["id"].partition(".")[0]),)
    return None


def _ms(second: str, millisecond: str) -> int:
    """Ms since the epoch of a time in a log, which is local."""
    local = datetime.strptime(second, "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007  # made aware in the next line
    return int(local.astimezone().timestamp()) * 1000 + int(millisecond)
