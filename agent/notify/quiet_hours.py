"""The digest of what quiet hours have held back. No I/O."""

from collections.abc import Sequence

from agent.model.findings import Incident, Severity, Status
from agent.model.matchers import Silence, find_silence
from agent.model.text import count, day_of, instant, visible
from agent.notify.policy import first_notification
from agent.render.report import plain_report, report
from agent.storage.outbox import Digest


def is_held_back(incident: Incident) -> bool:
    """Return whether quiet hours hold the incident back: warnings, never what is critical."""
    return incident.severity is Severity.WARNING


def summarize(held: Sequence[Incident], silences: Sequence[Silence], digest_id: str, now: int) -> Digest | None:
    """Return the digest of these incidents at `now` (ms); None if none of them is worth a notification.

    What is silenced is left to its silence, what is critical by now to a message of its own.
    """
    worth = [
        incident
        for incident in held
        if is_held_back(incident) and first_notification(incident).is_sent and find_silence(incident, silences) is None
    ]
    if not worth:
        return None
    day = day_of(now)
    still_open = [incident for incident in worth if incident.status is Status.OPEN]
    title = f"{count(len(worth), 'warning')} during quiet hours, {len(still_open):,} still open"
    return Digest(
        Incident(
            id=digest_id,
            status=Status.RECOVERED,
            severity=Severity.WARNING,
            title=title,
            cluster=None,
            opened_at=min(incident.opened_at for incident in worth),
            updated_at=now,
            recovered_at=now,
        ),
        tuple(_line(incident, day) for incident in worth),
        tuple(incident.id for incident in worth if incident.status is not Status.OPEN),
    )


def _line(incident: Incident, day: str) -> str:
    try:
        described = report(incident)
    except Exception:  # noqa: BLE001 - a defect in a sentence, which its own message reports
        described = plain_report(incident)
    return visible(f"{instant(incident.opened_at, day)}  {described.state} {described.title} ({incident.id})")
