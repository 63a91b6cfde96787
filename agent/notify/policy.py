"""What is worth a notification, and why: the policy of all receivers. No I/O."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from agent.engine.check_requests import CheckResult
from agent.model.findings import Incident, Severity, Status
from agent.model.observations.checks import CheckRun
from agent.model.text import span, visible
from agent.render.report import Report, is_withdrawn
from agent.render.thread import REPEATED
from agent.rules import CHECK_RULES
from agent.storage.outbox import Row
from agent.storage.queueing import REPORT_PREFIX


class Why(StrEnum):
    """Why a notification is sent or is not."""

    FIRST = "first"
    CHANGED = "changed"
    RETRIED = "retried"
    SEVERITY_RAISED = "severity_raised"
    CAUSE_FOUND = "cause_found"
    MERGED = "merged"
    RESOLVED = "resolved"
    REOPENED = "reopened"
    INFO_ONLY = "info_only"
    MERGED_BEFORE_FIRST = "merged_before_first"
    WITHDRAWN_BEFORE_FIRST = "withdrawn_before_first"
    CLOSED_BEFORE_FIRST = "closed_before_first"
    OVER_WHILE_SILENCED = "over_while_silenced"
    NOT_ROUTED = "not_routed"
    UNCHANGED = "unchanged"
    MINOR_CHANGE = "minor_change"

    @property
    def is_sent(self) -> bool:
        """Whether it is a reason to send."""
        return self not in _UNSENT


_UNSENT = {
    Why.INFO_ONLY,
    Why.MERGED_BEFORE_FIRST,
    Why.WITHDRAWN_BEFORE_FIRST,
    Why.CLOSED_BEFORE_FIRST,
    Why.OVER_WHILE_SILENCED,
    Why.NOT_ROUTED,
    Why.UNCHANGED,
    Why.MINOR_CHANGE,
}


def first_notification(incident: Incident) -> Why:
    """Return whether an incident that was never delivered is worth a first message: from warning on, by itself."""
    if incident.merged_into is not None:
        return Why.MERGED_BEFORE_FIRST
    if is_withdrawn(incident):
        return Why.WITHDRAWN_BEFORE_FIRST
    if incident.closed is not None:
        return Why.CLOSED_BEFORE_FIRST
    return Why.INFO_ONLY if incident.severity.rank < Severity.WARNING.rank else Why.FIRST


def update(row: Row, fingerprint: str) -> Why:
    """Return whether the message of a row is due. fingerprint: of the message as it would be delivered now.

    Once delivered, every visible change is an edit: also that it was merged, withdrawn, or is merely info now.
    """
    if row.handle is None:
        return Why.FIRST if row.is_report else first_notification(row.incident)
    if row.attempted_at is not None:
        return Why.RETRIED
    return Why.UNCHANGED if row.fingerprint == fingerprint else Why.CHANGED


def repeat(incident: Incident, delivered: Mapping[str, Any] | None) -> Why:
    """Return whether a receiver that cannot edit sends another message.

    delivered: what `summary` returned for the last one.
    """
    if not delivered:
        return Why.FIRST
    if incident.severity.rank > Severity(delivered["severity"]).rank:
        return Why.SEVERITY_RAISED
    if incident.merged_into is not None and not delivered["merged"]:
        return Why.MERGED
    was_resolved = delivered["status"] in _RESOLVED
    if (incident.status.value in _RESOLVED) is not was_resolved:
        return Why.REOPENED if was_resolved else Why.RESOLVED
    # Last: a receiver may send nothing for it, but not miss what comes later.
    return Why.CAUSE_FOUND if incident.causes and not delivered["caused"] else Why.MINOR_CHANGE


_RESOLVED = (Status.RECOVERED.value, Status.CLOSED.value)


def summary(incident: Incident) -> dict[str, Any]:
    """Return what a receiver that cannot edit must remember of its last message."""
    return {
        "status": incident.status.value,
        "severity": incident.severity.value,
        "caused": bool(incident.causes),
        "merged": incident.merged_into is not None,
    }


def is_repeated(incident: Incident) -> bool:
    """Return whether the incident is open, critical, and not acknowledged since it became critical."""
    taken = incident.acknowledged
    is_taken = taken is not None and taken.severity is Severity.CRITICAL
    is_lasting = incident.status is Status.OPEN and incident.merged_into is None
    return is_lasting and incident.severity is Severity.CRITICAL and not is_taken


def repetition(incident: Incident, announced_at: int, interval: int, now: int) -> str:
    """Return the line that repeats an open critical incident, empty if that is not due. All times in ms."""
    if now - announced_at < interval or not is_repeated(incident):
        return ""
    return f"{REPEATED} {span(now - incident.opened_at)}, not acknowledged: {visible(incident.title)}"


def fingerprint_of(report: Report) -> str:
    """Return a fingerprint that differs if the message reads differently."""
    return blake2b(msgspec.json.encode(report), digest_size=16).hexdigest()


def check_report_target(answer: CheckResult, holder: Incident | None, changed: Iterable[Incident]) -> Incident | None:
    """Return the incident whose thread takes a check's report; None if there is nothing to report, or no incident.

    holder: the one with the finding that requested the check. changed: those that the check's findings changed. If
    no one is notified of the holder, the most severe incident that the findings made takes the report.
    """
    if not check_report_lines(answer):
        return None
    made = [
        incident
        for incident in changed
        if first_notification(incident).is_sent
        and any(finding.kind == _check(answer) for finding in incident.causes + incident.findings)
    ]
    if answer.request is None:
        return made[0] if len(made) == 1 else None
    if holder is not None and first_notification(holder).is_sent:
        return holder
    return min(made, key=lambda incident: (-incident.severity.rank, incident.opened_at, incident.id), default=holder)


def check_report_lines(answer: CheckResult) -> tuple[str, ...]:
    """Return a check's report as lines of a thread, headed by the check's name; empty if it reports nothing."""
    return (f"Spark, {_check(answer)}:", *answer.lines) if answer.lines or answer.plot else ()


def check_report_message(answer: CheckResult) -> Incident | None:
    """Return the message of its own that a check's report is, as an incident without findings; None if it is not.

    That is so for scheduled runs of checks whose rule says so; a failed run is the rule `check_failed`'s to report.
    """
    run = next((run for run in answer.observations if isinstance(run, CheckRun)), None)
    rule = None if run is None else CHECK_RULES.get(run.check)
    if answer.request is not None or run is None or rule is None or not rule.posts_report:
        return None
    if run.outcome == "failed" or not answer.lines:
        return None
    name = blake2b(f"{run.check} {run.cluster} {run.at}".encode(), digest_size=4).hexdigest().upper()
    return Incident(
        id=f"{REPORT_PREFIX}{name}",
        status=Status.RECOVERED,
        severity=Severity.INFO,
        title=answer.lines[0],
        cluster=run.cluster,
        opened_at=run.started_at,
        updated_at=run.at,
        recovered_at=run.at,
    )


def _check(answer: CheckResult) -> str:
    """Return the check's name."""
    name = next((run.check for run in answer.observations if isinstance(run, CheckRun)), "check")
    return name if answer.request is None else answer.request.check
