"""What operators do about incidents, by command or by button: acknowledge, close, silence.

Who and why are texts of a command line, which may be no UTF-8: they are stored `printable`.
"""

import secrets
import sys
from collections.abc import Iterable, Sequence

from agent.model.encoding import printable
from agent.model.findings import Acknowledgement, Closure, Incident, Status, closed_findings
from agent.model.matchers import Matchers, Silence, find_silence
from agent.storage.incidents import IncidentStore


class UndecidableError(Exception):
    """There is nothing left to decide about the incident; the message says why."""


def acknowledge(store: IncidentStore, incident: Incident, *, by: str, now: int, comment: str = "") -> None:
    """Record that somebody looks after the incident since `now`, ms. Raises UndecidableError."""
    check_open(incident)
    taken = Acknowledgement(at=now, by=printable(by), comment=printable(comment), severity=incident.severity)
    store.decisions.acknowledge(incident, taken)


def close(store: IncidentStore, incident: Incident, *, by: str, now: int, reason: str) -> None:
    """Close the incident at `now`, ms. Raises UndecidableError."""
    check_open(incident)
    findings = closed_findings(incident)
    store.decisions.close(incident, Closure(at=now, by=printable(by), reason=printable(reason), findings=findings))


def silence(
    store: IncidentStore, matchers: Iterable[Matchers], *, ends_at: int, by: str, now: int, comment: str
) -> list[Silence]:
    """Add a silence for each of the matchers, from `now` to `ends_at` (ms), and return them."""
    by, comment = printable(by), printable(comment)
    silences = [
        Silence(f"SIL-{secrets.token_hex(3).upper()}", chosen, now, ends_at, by, comment) for chosen in matchers
    ]
    store.decisions.add(*silences)
    return silences


def held_back(store: IncidentStore, silences: Sequence[Silence]) -> list[Incident]:
    """Return the current incidents that these silences hold back."""
    incidents = [store.decisions.handled(incident) for incident in store.incidents(closed_since=sys.maxsize)]
    return [incident for incident in incidents if find_silence(incident, silences)]


def check_open(incident: Incident) -> None:
    """Check that something is left to decide about the incident. Raises UndecidableError."""
    if incident.merged_into is not None:
        msg = f"{incident.id} was merged into {incident.merged_into}: name that"
        raise UndecidableError(msg)
    if incident.status is Status.CLOSED:
        by = f" by {incident.closed.by}: {incident.closed.reason}" if incident.closed else ""
        msg = f"{incident.id} is closed{by}"
        raise UndecidableError(msg)
