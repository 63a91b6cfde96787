"""Results of calls, applied to the state of a cluster."""

from collections.abc import Collection, Sequence

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    Commit,
    LogOffsets,
)
from agent.sources.availability import Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call, CompletedCall
from agent.sources.kafka.admin.connection_failures import ConnectionFailures
from agent.sources.kafka.admin.protocol import ConnectionFailure
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.state.permissions import Acl

LATER = 120_000
REFUSED = protocol.Failure(42, "refused")
ALL = NameFilter()


def new_state(*known: Observation, topics: NameFilter = ALL) -> ClusterState:
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", ALL, topics, ChangeDetector(), known, acl=acl, watch_partitions=True)
    state.begin_poll()
    return state


def apply(
    state: ClusterState, request: protocol.Request, result: protocol.Result, sent_at: int = 1, at: int = 2
) -> None:
    name = getattr(request, "group", "")
    kinds: dict[type[protocol.Request], str] = {
        protocol.ListCommits: "commits",
        protocol.DescribeGroup: "states",
        protocol.DescribeTypedGroup: "states",
    }
    key = (kinds.get(type(request), type(request).__name__), name)
    state.apply(CompletedCall(Call(key, key, sent_at, request), at, result))


def apply_metadata(state: ClusterState, brokers: list[int], leaders: dict[int, int]) -> None:
    apply(state, protocol.FetchMetadata([]), protocol.Metadata(brokers, {"t": leaders}))


def apply_end(state: ClusterState, end: int | None, sent_at: int) -> None:
    """Apply the offsets of t[0]; no end: its leader is away."""
    logs, failures = [], []
    if end is None:
        failures.append(protocol.PartitionFailure("t", 0, None))
    else:
        logs.append(LogOffsets(at=sent_at, cluster="main", topic="t", partition=0, log_start=0, log_end=end))
    apply(state, protocol.ListOffsets(1, [("t", 0)]), protocol.Offsets(logs, failures), sent_at=sent_at)


def apply_commits(state: ClusterState, *offsets: int, failed: Collection[int] = ()) -> None:
    numbers = [number for partition, offset in enumerate(offsets) for number in (partition, offset, -1)]
    failures = [protocol.PartitionFailure("t", partition, REFUSED) for partition in failed]
    apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", 1, {"t": numbers}, failures))


def a_commit(partition: int, offset: int) -> Commit:
    return Commit(at=1, cluster="main", group="g", topic="t", partition=partition, offset=offset)


def unavailable(state: ClusterState, *overdue: Call, failures: Sequence[ConnectionFailure] = ()) -> dict[Unit, str]:
    connections = ConnectionFailures()
    for failure in failures:
        connections.add(failure, 1_000)
    return state.unavailable(overdue, connections, (), 1_000)
