"""Why an incident is what it is: the evidence for its causes, and for those that it does not have."""

from collections.abc import Iterator

from agent.engine.impact_and_root_cause import worst_first
from agent.model.findings import Incident
from agent.model.text import day_of, visible
from agent.render.causes import causes_ruled_out, possible_causes
from agent.render.timeline import format_row, is_checked, rows, rule_of, statements, with_arrows

MAX_LINES = 12
"""Rows of causes, and of findings of Spark checks."""


def explanation(incident: Incident) -> tuple[str, ...]:
    """Return the observations behind the incident, its causes, and what rules out or does not rule out others."""
    return tuple(map(visible, _lines(incident)))


def _lines(incident: Incident) -> Iterator[str]:
    day = day_of(incident.opened_at)
    yield f"{incident.id}: {incident.title}"
    effects = worst_first(incident.findings)
    if not effects:
        yield "It has no findings: those it had no longer apply."
        return
    yield f"Observed (UTC): {with_arrows(rule_of(effects[0]).describe(effects[0], day))}"
    causes = rows(statements(incident.causes), day, MAX_LINES)
    yield "Caused by, in order:" if causes else "No cause was found in what Backflow observes."
    yield from (f"  {format_row(row, day)}" for row in causes[:MAX_LINES])
    checked = [finding for finding in (*incident.causes, *effects) if is_checked(finding)]
    yield from (f"Spark found: {with_arrows(finding.detail)}" for finding in checked[:MAX_LINES])
    yield from (f"Ruled out: {cause} ({evidence})" for cause, evidence in causes_ruled_out(incident).items())
    yield from (f"Possible: {cause}: {doubt}" for cause, doubt in possible_causes(incident).items())
