"""Observations for tests, dated in seconds after BEGINNING; of cluster main, group g, topic t and partition 0."""

from collections.abc import Iterable
from typing import Any

from agent.model.findings import Finding, Records, Severity, finding_json
from agent.model.observations.base import Tick
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, Member, PartitionState
from agent.model.times import millis

BEGINNING = millis("2026-11-20T23:00:00Z")
CLUSTER = "main"


def after(seconds: float) -> int:
    """Return the time so many seconds after BEGINNING, ms."""
    return BEGINNING + round(seconds * 1000)


def tick(seconds: float) -> Tick:
    return Tick(at=after(seconds))


def commit(seconds: float, offset: int | None, partition: int = 0, group: str = "g", topic: str = "t") -> Commit:
    return Commit(at=after(seconds), cluster=CLUSTER, group=group, topic=topic, partition=partition, offset=offset)


def commits(until: int, partition: int = 0) -> Iterable[Commit]:
    """Yield a commit a second of a group that reads 100 records a second."""
    return (commit(second, 10_000 + 100 * second, partition) for second in range(until))


def log_offsets(seconds: float, log_end: int, log_start: int = 0) -> LogOffsets:
    return LogOffsets(at=after(seconds), cluster=CLUSTER, topic="t", partition=0, log_start=log_start, log_end=log_end)


def partition_state(
    seconds: float,
    leader: int | None,
    partition: int = 0,
    topic: str = "t",
    *,
    replicas: tuple[int, ...] = (1, 2),
    isr: tuple[int, ...] | None = None,
    topic_id: str | None = "first",
) -> PartitionState:
    """Return the partition's state; all replicas are in sync unless `isr` is given."""
    return PartitionState(
        at=after(seconds), cluster=CLUSTER, topic=topic, partition=partition, leader=leader, replicas=replicas,
        isr=replicas if isr is None else isr, topic_id=topic_id,
    )  # fmt: skip


def registration(seconds: float, session: str | None, broker: int = 1) -> BrokerRegistration:
    epoch = None if session is None else 1
    return BrokerRegistration(at=after(seconds), cluster=CLUSTER, broker=broker, session=session, epoch=epoch)


def group_state(seconds: float, state: str, members: tuple[Member, ...] = ()) -> GroupState:
    return GroupState(at=after(seconds), cluster=CLUSTER, group="g", state=state, members=members, simple=False)


def check_run(seconds: float, check: str, *, complete: bool = True) -> CheckRun:
    """Return a run of a check that ended then and did not fail."""
    return CheckRun(at=after(seconds), cluster=CLUSTER, check=check, started_at=0, complete=complete, outcome="found")


def check_finding(check: str, ended_at: int, at: int, subject: dict[str, Any], **fields: Any) -> CheckFinding:
    """Return a finding dated `at` of a run that ended at `ended_at`, both ms; fields: further ones of the finding."""
    fields = {
        "detail": f"{check} found it",
        "previous": {"offset": 7_000},
        "current": {"offset": 5_000},
        "records": Records(reread=2_000),
        **fields,
    }
    finding = Finding(rule=check, kind=check, severity=Severity.WARNING, at=at, subject=subject, **fields)
    keys = {name: subject.get(name) for name in ("group", "topic", "partition", "broker")}
    return CheckFinding(at=ended_at, cluster=CLUSTER, check=check, finding=finding_json(finding), **keys)
