"""Causes that an incident does not have, as its findings say: ruled out by an observation, or still possible."""

from agent.engine.impact_and_root_cause import worst_first
from agent.engine.rule import ELECTION, CauseCheck, cause_checks
from agent.model.findings import Incident
from agent.model.text import is_leader_change
from agent.render.timeline import is_checked, rule_of

_PHRASES = {"after_expiry": "expired offsets", "topic_recreation": "topic re-creation"}
_RECREATION = "topic_recreation"


def causes_ruled_out(incident: Incident) -> dict[str, str]:
    """Return the observation that rules out each cause, by its name: every finding that may have it rules it out.

    Of several findings the worst one's observation is named.
    """
    checks = _checks(incident)
    ruled_out = {cause: made for cause, made in checks.items() if not any(check.doubt for check in made)}
    return {_phrase(cause): made[0].evidence for cause, made in ruled_out.items()}


def possible_causes(incident: Incident) -> dict[str, str]:
    """Return why each cause cannot be ruled out, by its name."""
    doubts: dict[str, str] = {}
    for cause, made in _checks(incident).items():
        doubts |= {_phrase(cause): check.doubt for check in reversed(made) if check.doubt}
    return doubts


def _checks(incident: Incident) -> dict[str, list[CauseCheck]]:
    """Return what the live findings say about each cause that the incident does not have, the worst finding's first."""
    live = [finding for finding in worst_first(incident.findings) if not is_checked(finding)]
    known = {label for finding in live for label in finding.labels}
    if any(rule_of(finding).recreates_topic for finding in (*incident.causes, *incident.findings)):
        known.add(_RECREATION)
    if any(map(is_leader_change, incident.causes)):  # of another partition
        known.add(ELECTION)
    checks: dict[str, list[CauseCheck]] = {}
    for finding in live:
        for check in cause_checks(finding):
            if check.cause not in known:
                checks.setdefault(check.cause, []).append(check)
    return checks


def _phrase(cause: str) -> str:
    return _PHRASES.get(cause, cause.replace("_", " "))
