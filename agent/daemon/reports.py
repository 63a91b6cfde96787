"""What the agent reports of itself, as values and as JSON."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from agent.daemon.offsets import ReaderOffsets
from agent.model.findings import Incident, Severity, Status
from agent.model.times import is_time, millis, rfc3339
from agent.storage.incidents import Delivery


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source. read_at: when it was last read; null if it has not been since the start.

    unavailable: why all or parts of what it reads are unavailable, a sentence each. is_readable: whether it is not all.
    """

    cluster: str
    source: str
    read_at: int | None
    is_readable: bool = True
    unavailable: tuple[str, ...] = ()


class ReceiverStatus(Struct, frozen=True, kw_only=True):
    """A receiver. pending: incidents with a pending delivery; oldest_ms: for how long one is, ms.

    delivered, failed: numbers since the start; failed by the kind of reason. problem: why deliveries fail at present.
    """

    receiver: str
    pending: int
    oldest_ms: int
    delivered: int
    failed: dict[str, int]
    problem: str = ""


class CheckStatus(Struct, frozen=True, kw_only=True):
    """The last run of a Spark check on a cluster. took_ms: its duration, ms; next_at: of the next scheduled run."""

    check: str
    cluster: str
    outcome: str
    ended_at: int
    took_ms: int
    reason: str = ""


class OpenIncident(Struct, frozen=True, kw_only=True):
    """An incident that is not closed. rule: of its worst finding."""

    id: str
    status: str
    severity: str
    rule: str
    title: str
    opened_at: int


class HeartbeatStatus(Struct, frozen=True, kw_only=True):
    """The heartbeat. sent_at: when it last arrived; null if it has not. problem: why the last one did not."""

    sent_at: int | None
    problem: str


class ButtonsStatus(Struct, frozen=True, kw_only=True):
    """The buttons in Slack. is_connected: whether presses arrive; problem: why they do not.

    pressed: how many were answered since the start, by button. failed: how many could not be done or answered.
    malformed: how many messages of Slack's socket could not be read.
    """

    is_connected: bool
    problem: str
    pressed: dict[str, int]
    failed: int
    malformed: int


class ArchiveStatus(Struct, frozen=True, kw_only=True):
    """The archive of the journal. pending: sealed files that wait; oldest_ms: for how long the oldest has.

    archived: how many were archived since the start. failed: how many attempts failed. problem: why the last one did.
    """

    pending: int
    oldest_ms: int
    archived: int
    failed: int
    problem: str


class AgentStatus(Struct, frozen=True, kw_only=True):
    """The agent at a moment (`at`).

    problems: everything that is wrong, a sentence each. is_complete: whether the pipeline has answered in time: if not,
    incidents, unavailability and subjects are not known. subjects: how many brokers, topics, partitions and groups are
    watched, by cluster. queued: observations that wait for the pipeline; delay_ms: for how long. running_checks,
    waiting_checks: runs of checks in progress, and runs that wait or are not due yet.
    """

    at: int
    version: str
    pid: int
    started_at: int
    state_directory: str
    is_complete: bool
    problems: tuple[str, ...]
    sources: tuple[SourceStatus, ...]
    subjects: dict[str, dict[str, int]]
    queued: int
    delay_ms: int
    receivers: tuple[ReceiverStatus, ...]
    incidents: tuple[OpenIncident, ...]
    checks: tuple[CheckStatus, ...]
    running_checks: int
    waiting_checks: int
    heartbeat: HeartbeatStatus | None = None
    buttons: ButtonsStatus | None = None
    archive: ArchiveStatus | None = None


class IncidentRecord(NamedTuple):
    """All that is stored of an incident.

    has_plot: whether a check made a plot. offsets: of its worst reader, if they are still known.
    """

    incident: Incident
    check_reports: list[tuple[str, ...]]
    deliveries: list[Delivery]
    has_plot: bool = False
    offsets: ReaderOffsets | None = None


def is_alarming(incident: OpenIncident) -> bool:
    """Return whether the incident lasts and is more than info."""
    return incident.status == Status.OPEN.value and incident.severity != Severity.INFO.value


def encode(value: Any) -> bytes:
    """Return a status as JSON, its times in RFC 3339."""
    return msgspec.json.encode(_convert_times(msgspec.to_builtins(value), int, rfc3339))


def decode(body: bytes, kind: type[msgspec.Struct] | Any) -> Any:
    """Return what `encode` has encoded. Raises ValueError."""
    return msgspec.convert(_convert_times(msgspec.json.decode(body), str, millis), kind)


def _convert_times(value: Any, kind: type, convert: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_convert_times(part, kind, convert) for part in value]
    if isinstance(value, dict):
        return {
            name: convert(part) if is_time(name) and isinstance(part, kind) else _convert_times(part, kind, convert)
            for name, part in value.items()
        }
    return value
