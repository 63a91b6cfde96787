"""Which subjects the facts know: groups of a partition, jobs of a cluster, log lines about a partition; their ends."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, History
from agent.engine.rule import Scope, ended, recovered
from agent.model.batches import UNKNOWN
from agent.model.findings import Finding
from agent.model.group_partition import partition_of
from agent.model.observations.base import Observation
from agent.model.observations.flink import FlinkJob, JobGraph, JobGraphFile, Position
from agent.model.observations.kafka import (
    OFFSETS_TOPIC,
    BrokerRegistration,
    Commit,
    GroupState,
    LogOffsets,
    PartitionState,
)
from agent.model.observations.logs import LogLine
from agent.model.observations.streams import StreamsApplication, TaskRestore
from agent.rules.queries.partitions import find_deletion


def groups_of(facts: Facts, cluster: str, topic: str, partition: int) -> list[str]:
    """Return the groups that have committed an offset of the partition, sorted."""
    histories = facts.histories(Commit, cluster=cluster, topic=topic, partition=partition)
    return [str(history.subject[2]) for history in histories]


def partitions_of(facts: Facts, cluster: str, group: str) -> list[tuple[str, int]]:
    """Return the (topic, partition) pairs that the group has committed, sorted."""
    histories = facts.histories(Commit, cluster=cluster, group=group)
    return [
        (str(topic), int(str(partition))) for _, _, _, topic, partition in (history.subject for history in histories)
    ]


def partitions_in(facts: Facts, cluster: str, topic: str) -> list[int]:
    """Return the topic's known partitions, sorted."""
    return [history.changes[0].partition for history in facts.histories(PartitionState, cluster=cluster, topic=topic)]


def coordinator_of(facts: Facts, cluster: str, group: str, at: int) -> int | None:
    """Return the partition of `__consumer_offsets` that holds the group's offsets; None if unknown at that moment."""
    states = facts.histories(PartitionState, cluster=cluster, topic=OFFSETS_TOPIC)
    partitions = sum(history.changes[0].at <= at for history in states)
    return partition_of(group, partitions) if partitions else None


def brokers_in(facts: Facts, cluster: str) -> list[int]:
    """Return the cluster's known brokers, sorted, including those that are down."""
    return [history.changes[0].broker for history in facts.histories(BrokerRegistration, cluster=cluster)]


def positions_of(facts: Facts, flink: str, job: str) -> Sequence[History[Position]]:
    """Return the positions of a job of a Flink cluster, by partition."""
    return facts.histories(Position, flink=flink, job=job)


def jobs_in(facts: Facts, cluster: str) -> list[str]:
    """Return the known jobs of the Flink cluster, sorted, including those that have ended."""
    return [history.changes[0].job for history in facts.histories(FlinkJob, cluster=cluster)]


def job_graphs_in(facts: Facts, cluster: str) -> list[str]:
    """Return the jobs of the Flink cluster that have a job graph, or had one until just now, sorted."""
    last = (history.changes[-1] for history in facts.histories(JobGraph, cluster=cluster))
    return [graph.job for graph in last if not graph.is_gone or graph.at > facts.final_before]


def job_graph_files_in(facts: Facts, cluster: str) -> list[str]:
    """Return the files that are in the Flink cluster's HA storage directory, or were until just now, sorted."""
    last = (history.changes[-1] for history in facts.histories(JobGraphFile, cluster=cluster))
    return [file.file for file in last if not file.is_gone or file.at > facts.final_before]


def streams_applications_in(facts: Facts, cluster: str) -> list[str]:
    """Return the cluster's known Kafka Streams applications, sorted, including those that have stopped."""
    return [history.changes[0].application for history in facts.histories(StreamsApplication, cluster=cluster)]


def task_restores(facts: Facts, cluster: str, application: str) -> list[History[TaskRestore]]:
    """Return what the tasks of a Kafka Streams application have restored, by instance and task."""
    return list(facts.histories(TaskRestore, cluster=cluster, application=application))


def lines_about(facts: Facts, cluster: str, pattern: str, topic: str | None, partition: int | None) -> list[LogLine]:
    """Return the lines of all logs that matched a pattern and name the partition, or name none, oldest first."""
    histories = facts.histories(LogLine, cluster=cluster, pattern=pattern, topic=topic, partition=partition)
    return sorted((line for history in histories for line in history), key=attrgetter("at", "log", "text"))


def recovered_or_ended(finding: Finding, at: int | None, scope: Scope, facts: Facts, reason: str = "") -> Finding:
    """Return the finding as recovered at that moment, or as ended if what it is about ceased to exist before.

    reason: a clause that says why it is over at that moment without having recovered; empty if it has.
    """
    end = min(_find_ends(scope, finding.subject.get("flink"), finding.at, facts), default=None)
    if end is not None and (at is None or end[0] < at):
        return ended(finding, *end)
    return ended(finding, at, reason) if reason and at is not None else recovered(finding, at)


def may_end(observation: Observation, is_wanted: Callable[[int], bool]) -> bool:
    """Return whether an observation may end a finding about a reader that recovers at a wanted offset. Cheap.

    That a log grows does not.
    """
    if isinstance(observation, Commit | Position):
        return observation.offset is None or is_wanted(observation.offset)
    return not isinstance(observation, LogOffsets)


def _find_ends(scope: Scope, flink: str | None, at: int, facts: Facts) -> Iterator[tuple[int, str]]:
    """Yield when and why the partition, the group or the job of the Flink cluster ceased to exist after `at`."""
    deleted_at = find_deletion(facts, scope.in_partition, at)
    if deleted_at is not None:
        yield deleted_at, "the topic was deleted"
    if scope.group is not None:
        forgotten_at = facts.history(Commit, *scope.series).when(at, "offset", lambda offset: offset == UNKNOWN)
        if forgotten_at is not None:
            state = facts.history(GroupState, scope.cluster, scope.group).as_of(forgotten_at + LATENESS_MS)
            is_deleted = state is not None and state.is_gone
            yield forgotten_at, "the group was deleted" if is_deleted else "the committed offset was deleted or expired"
    if scope.job is not None:
        job = facts.history(FlinkJob, flink, scope.job).last
        if job is not None and job.ended:
            yield max(job.ended_at or job.at, at), f"the job is {job.state}"
