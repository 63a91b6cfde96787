"""Why a part of a cluster is unavailable, as sentences for an operator. Makes no calls."""

from collections.abc import Mapping

from agent.sources.availability import Reasons, Unit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.connection_failures import ConnectionFailures
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.permissions import Acl

LEADER_SILENT = "its leader does not answer"
COORDINATOR_SILENT = "its coordinator does not answer"


def group_reasons(request: protocol.Request, why: str) -> Reasons:
    """Return what a failed request about a group leaves unavailable; nothing if any broker can be asked again."""
    match request:
        case protocol.ListCommits(group) | protocol.ListShareOffsets(group):
            return {Unit(group=group): f"Cannot read the committed offsets of group {group}: {why}"}
        case protocol.DescribeGroup(group) | protocol.DescribeTypedGroup(group):
            return {Unit(group=group): f"Cannot read the state of group {group}: {why}"}
        case _:
            return {}


def commit_reason(group: str, partition: TopicPartition, why: str) -> str:
    """Return why a committed offset is unavailable."""
    topic, number = partition
    return f"Cannot read the committed offset of {group} on {topic}[{number}]: {why}"


def log_reason(partition: TopicPartition, why: str) -> str:
    """Return why the log offsets of a partition are unavailable."""
    topic, number = partition
    return f"Cannot read the log offsets of {topic}[{number}]: {why}"


def text_of(failure: protocol.Failure | None, acl: Acl, *, topic: str | None = None, group: str | None = None) -> str:
    """Return a failure in words, with the command that permits what it refuses. failure: None if the leader is away."""
    if failure is None:
        return LEADER_SILENT
    if not failure.is_unauthorized:
        return failure.text
    return acl.refusal("it", topics=filter(None, [topic]), groups=filter(None, [group]))


def explain_silences(
    unavailable: Reasons, leaders: Mapping[str, Mapping[int, int]], connections: ConnectionFailures, now: int
) -> Reasons:
    """Return the reasons with why brokers that do not answer cannot be connected to, if that is known.

    leaders: by topic and partition.
    """
    return {
        unit: _explain_silence(reason, leaders.get(unit.topic or "", {}).get(unit.partition or 0), connections, now)
        for unit, reason in unavailable.items()
    }


def _explain_silence(reason: str, leader: int | None, connections: ConnectionFailures, now: int) -> str:
    failures = ""
    if reason.endswith(LEADER_SILENT) and leader is not None:
        failures = connections.reasons(now, leader)
    elif reason.endswith(COORDINATOR_SILENT):
        failures = connections.reasons(now)
    return f"{reason} ({failures})" if failures else reason
