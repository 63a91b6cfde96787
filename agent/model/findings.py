"""Findings of rules and the incidents that they make up, with their public JSON. No I/O."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, structs

from agent.model.observations.base import Unavailable
from agent.model.times import millis, rfc3339

FindingKey: TypeAlias = tuple[str, str, int]


class Severity(StrEnum):
    """The severity of a finding or an incident; an incident that is info is never reported by itself."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The order of severities: 0 for info, 2 for critical."""
        return ("info", "warning", "critical").index(self.value)


class Records(Struct, frozen=True, forbid_unknown_fields=True):
    """The impact in records.

    `reread`: number of records reprocessed. lost: number of records lost. skipped: number of records skipped.
    """

    reread: int = 0
    lost: int = 0
    skipped: int = 0

    def __add__(self, other: "Records") -> "Records":
        return Records(self.reread + other.reread, self.lost + other.lost, self.skipped + other.skipped)


class Finding(Struct, frozen=True, kw_only=True, dict=True):
    """A finding of a rule, identified by rule, subject, position and `at`: a repeated one replaces the earlier one.

    rule: its name in rules.toml. kind: the rule's kind. severity: info, warning or critical. at: when it happened.
    since: if it was polled, the earliest moment at which it can have happened; null if `at` is exact. recovered_at:
    when it recovered; null while it has not. subject: the keys that identify what it is about (cluster, group, topic,
    partition, broker; `brokers` for several). labels: what the rule found out about it. position: the byte in the file
    that the subject names, if it does. previous, current: what changed, by the observation's field names ({"offset":
    7832} -> {"offset": 0}). records: the impact. detail: a sentence for an operator. known_at: when it could first be
    known, ms; not part of the JSON. undisturbed_since: since when a reader had read on normally before it moved, ms, so
    that nothing earlier caused it; null if unknown; not part of the JSON.
    """

    rule: str
    kind: str
    severity: Severity
    at: int
    since: int | None = None
    recovered_at: int | None = None
    subject: Mapping[str, Any]
    labels: tuple[str, ...] = ()
    position: int | None = None
    previous: Mapping[str, Any] = {}
    current: Mapping[str, Any] = {}
    records: Records = Records()
    detail: str
    known_at: int = 0
    undisturbed_since: int | None = None

    @cached_property
    def key(self) -> FindingKey:
        """Its identity: (rule, subject and position as canonical JSON, at)."""
        if self.position is None:
            return self.rule, self.subject_json, self.at
        return self.rule, _canonical({**self.subject, "position": self.position}), self.at

    @property
    def subject_json(self) -> str:
        """Its subject as canonical JSON."""
        return _canonical(self.subject)

    @property
    def start(self) -> int:
        """The earliest moment at which it can have happened."""
        return self.at if self.since is None else min(self.since, self.at)

    def is_open_at(self, at: int) -> bool:
        """Return whether it had not recovered by then, ms."""
        return self.recovered_at is None or self.recovered_at > at


def _canonical(fields: Mapping[str, Any]) -> str:
    return msgspec.json.encode(fields, order="sorted").decode()


def reader(subject: Mapping[str, Any]) -> str:
    """Return who reads, by a finding's subject: the group, or the job by its name."""
    return str(subject.get("group") or subject.get("job_name") or subject.get("job") or "the reader")


def observed_part(subject: Mapping[str, Any]) -> str:
    """Return what a source reads, by the named keys: group g on t[3] of main, cluster main, all of [logs.brokers].

    A Flink job is named as a group is.
    """
    cluster = str(subject.get("cluster", "?"))
    table = {"logs": "logs", "streams_metrics": "streams"}.get(subject.get("source", ""))
    if table is not None:
        return f"all of [{table}.{cluster}]"
    group, topic, partition = (subject.get(name) for name in ("group", "topic", "partition"))
    patterns = [f"{noun} {name}" for noun, name in (("groups", group), ("topics", topic)) if "*" in (name or "")]
    if patterns:
        return f"{' and '.join(patterns)} of {cluster}"
    place = topic if partition is None else f"{topic}[{partition}]"
    noun = "job" if subject.get("source") == "flink" else "group"
    named = [*([f"{noun} {group}"] if group is not None else []), *([str(place)] if topic is not None else [])]
    return f"{' on '.join(named)} of {cluster}" if named else f"cluster {cluster}"


class Status(StrEnum):
    """The status of an incident."""

    OPEN = "open"
    RECOVERED = "recovered"
    CLOSED = "closed"


class Acknowledgement(Struct, frozen=True, kw_only=True):
    """That somebody looks after an incident.

    at: when they said so. `by`: who. comment: what they say about it. severity: of the incident at that time.
    """

    at: int
    by: str
    comment: str = ""
    severity: Severity


class Closure(Struct, frozen=True, kw_only=True):
    """That somebody closed an incident.

    at: when. `by`: who. reason: why. findings: key and severity of each finding it had.
    """

    at: int
    by: str
    reason: str
    findings: frozenset[tuple[str, str, int, Severity]] = frozenset()


class Handling(Struct, frozen=True, kw_only=True):
    """What operators decided about an incident."""

    acknowledged: Acknowledgement | None = None
    closed: Closure | None = None


class Incident(Struct, frozen=True, kw_only=True):
    """Causes and effects that belong together.

    id: stable for the incident's whole life. status: open, recovered or closed. `sighted`: false while a source is
    unavailable for a subject that has not recovered. unseen: which source cannot read what. merged_into: id of the
    incident that this one was merged into; null if none. severity: the highest of its findings, or the correlation's.
    title: its headline. correlation: name in rules.toml of the correlation that joined its findings; null if they were
    merely grouped. cluster: of its worst effect, by its name in rules.toml; null if that has none. opened_at: when its
    first finding happened. updated_at: when its last finding happened or recovered. recovered_at: when all of them had
    recovered; null while they have not. records: total impact. causes: findings of a correlation's earlier steps.
    findings: the effects. acknowledged: who looks after it since when; null if no one does. closed: who closed it when
    and why; null if that was not an operator. silenced_until: until when it is not posted because of a silence; null if
    there is none.
    """

    id: str
    status: Status
    sighted: bool = True
    unseen: tuple[Unavailable, ...] = ()
    merged_into: str | None = None
    severity: Severity
    title: str
    correlation: str | None = None
    cluster: str | None
    opened_at: int
    updated_at: int
    recovered_at: int | None = None
    records: Records = Records()
    causes: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    acknowledged: Acknowledgement | None = None
    closed: Closure | None = None
    silenced_until: int | None = None


def closed_findings(incident: Incident) -> frozenset[tuple[str, str, int, Severity]]:
    """Return what a closure remembers of the incident's findings."""
    return frozenset((*finding.key, finding.severity) for finding in incident.causes + incident.findings)


def handled(incident: Incident, handling: Handling) -> Incident:
    """Return the incident with what operators decided: closed until it has a new finding or one more severe."""
    closed = handling.closed
    if closed is None or not _covers(closed, incident):
        return structs.replace(incident, acknowledged=handling.acknowledged)
    return structs.replace(incident, status=Status.CLOSED, acknowledged=handling.acknowledged, closed=closed)


def _covers(closure: Closure, incident: Incident) -> bool:
    """Return whether the closure knows each finding, at this severity or a higher one."""
    ranks: dict[FindingKey, int] = {}
    for rule, subject, at, severity in closure.findings:
        key = rule, subject, at
        ranks[key] = max(severity.rank, ranks.get(key, 0))
    return all(finding.severity.rank <= ranks.get(finding.key, -1) for finding in incident.causes + incident.findings)


def _instant(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return the finding's public JSON object."""
    return {
        "rule": finding.rule,
        "kind": finding.kind,
        "severity": finding.severity.value,
        "at": rfc3339(finding.at),
        "since": _instant(finding.since),
        "recovered_at": _instant(finding.recovered_at),
        "subject": dict(finding.subject),
        "labels": list(finding.labels),
        "position": finding.position,
        "previous": dict(finding.previous),
        "current": dict(finding.current),
        "records": msgspec.to_builtins(finding.records),
        "detail": finding.detail,
    }


def finding_json(finding: Finding) -> str:
    """Return the finding as one JSON line."""
    return msgspec.json.encode(finding_fields(finding)).decode()


def finding_from_json(line: str | bytes) -> Finding:
    """Return the finding of such a line; `known_at` is its `at`. Raises ValueError with what is wrong."""
    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        msg = f"expected an object, got {type(fields).__name__}"
        raise ValueError(msg)
    for name in ("at", "since", "recovered_at"):
        if fields.get(name) is not None:
            fields[name] = millis(str(fields[name]))
    return msgspec.convert({**fields, "known_at": fields.get("at")}, Finding)


def _unseen_fields(report: Unavailable) -> dict[str, Any]:
    named = {"cluster": report.cluster, "group": report.group, "topic": report.topic, "partition": report.partition}
    where = {name: value for name, value in named.items() if value is not None}
    return {"source": report.source, **where, "since": rfc3339(report.at), "reason": report.reason}


def incident_fields(incident: Incident) -> dict[str, Any]:
    """Return the incident's public JSON object."""
    return {
        "id": incident.id,
        "status": incident.status.value,
        "sighted": incident.sighted,
        "unseen": [_unseen_fields(report) for report in incident.unseen],
        "merged_into": incident.merged_into,
        "severity": incident.severity.value,
        "title": incident.title,
        "correlation": incident.correlation,
        "cluster": incident.cluster,
        "opened_at": rfc3339(incident.opened_at),
        "updated_at": rfc3339(incident.updated_at),
        "recovered_at": _instant(incident.recovered_at),
        "records": msgspec.to_builtins(incident.records),
        "causes": [finding_fields(cause) for cause in incident.causes],
        "findings": [finding_fields(finding) for finding in incident.findings],
        "acknowledged": _decision_fields(incident.acknowledged, "comment"),
        "closed": _decision_fields(incident.closed, "reason"),
        "silenced_until": _instant(incident.silenced_until),
    }


def _decision_fields(decision: Acknowledgement | Closure | None, why: str) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {"at": rfc3339(decision.at), "by": decision.by, why: getattr(decision, why)}


def incident_json(incident: Incident) -> str:
    """Return the incident as one JSON line."""
    return msgspec.json.encode(incident_fields(incident)).decode()
