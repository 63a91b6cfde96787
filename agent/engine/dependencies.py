"""Which facts concern which cases: both name the same anchors. Who judges what, and when, is detection's business."""

from collections.abc import Hashable
from typing import TypeAlias

from agent.engine.rule import Rule, Scope
from agent.model.observations import (
    Availability,
    BrokerRegistration,
    ChangelogDecreases,
    CheckFinding,
    Checkpoints,
    CheckRun,
    Commit,
    Controller,
    FlinkJob,
    GroupState,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    LogLine,
    LogOffsets,
    Observation,
    PartitionState,
    Position,
    StreamsApplication,
    TaskRestore,
)
from agent.rules.queries.streams import store_changelog

Anchor: TypeAlias = tuple[Hashable, ...]


def anchors_of(scope: Scope, rule: Rule) -> list[Anchor]:
    """Which facts concern a case of the rule, as `anchors` names them."""
    if CheckFinding in rule.observes:  # what a check found changes with that check's runs, and with nothing else
        return [("source", scope.cluster, rule.kind)]
    cluster, group, topic, partition, broker, source, job, log = scope
    named: list[Anchor] = []
    if topic is not None:
        named.append(("partition", cluster, topic, partition))
        named.append(("commits", cluster, topic, partition, group))
    if group is not None:
        named += [("group", cluster, group), ("commits of", cluster, group)]
    if broker is not None:
        named.append(("broker", cluster, broker))
    if source is not None:
        named.append(("source", cluster, source))
    if job is not None:
        named += [("job", job), ("flink", cluster)]
        named.append(("position", cluster, topic, partition, job))
    if log is not None:
        named.append(("log", cluster, log))
    return named or [("cluster", cluster)]


def anchors(observation: Observation) -> tuple[list[Anchor], list[Anchor]]:
    """What a fact concerns at once, and what soon: a group commits far more often than its cases must look at the rest
    of it.
    """
    match observation:
        case Commit(cluster=cluster, group=group, topic=topic, partition=partition):
            rest: list[Anchor] = [("commits of", cluster, group), ("commits", cluster, topic, partition, None)]
            return [("commits", cluster, topic, partition, group)], rest
        case PartitionState(cluster=cluster, topic=topic, partition=partition):
            return [("partition", cluster, topic, partition), ("partition", cluster, topic, None)], []
        case (
            LogOffsets(cluster=cluster, topic=topic, partition=partition)
            | ChangelogDecreases(cluster=cluster, topic=topic, partition=partition)
        ):
            return [("partition", cluster, topic, partition)], []
        case GroupState(cluster=cluster, group=group):
            return [("group", cluster, group)], []
        case StreamsApplication(cluster=cluster, application=application, stores=stores):
            changelogs = [(observation.changelog(store), count) for store, count in stores]
            of_stores = [("partition", cluster, topic, one) for topic, count in changelogs for one in range(count)]
            return [("group", cluster, application), *of_stores], []
        case TaskRestore(cluster=cluster, application=application):
            return [], [("group", cluster, application)]
        case BrokerRegistration(cluster=cluster, broker=broker):
            return [("broker", cluster, broker)], []
        case Controller(cluster=cluster):
            return [("cluster", cluster)], []
        case Position(cluster=cluster, topic=topic, partition=partition, job=job):
            return [("position", cluster, topic, partition, job)], [("partition", cluster, topic, partition)]
        case FlinkJob(cluster=cluster, job=job) | JobGraph(cluster=cluster, job=job):
            return [("job", job)], [("flink", cluster)]
        case Checkpoints(job=job):
            return [], [("job", job)]
        case JobManagerLeader(cluster=cluster) | JobListing(cluster=cluster) | JobGraphFile(cluster=cluster):
            return [("flink", cluster), ("cluster", cluster)], []
        case LogLine(cluster=cluster, log=log, pattern="store_restored" | "store_without_checkpoint"):
            place = store_changelog(observation)
            return [("log", cluster, log), *([] if place is None else [("partition", cluster, *place)])], []
        case LogLine(cluster=cluster, log=log):
            return [("log", cluster, log)], []
        case Availability(cluster=cluster, source=source):
            return [("source", cluster, source)], []
        case CheckRun(cluster=cluster, check=check):
            return [("source", cluster, check)], []
        case _:
            return [], []
