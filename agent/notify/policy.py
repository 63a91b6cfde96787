"""What must be said of an incident's change: the policy. Pure; the words live in report, the queue in store."""

from collections.abc import Iterable
from typing import NamedTuple

from agent.engine.check_requests import CheckResult
from agent.model.findings import Incident, Severity
from agent.model.observations import CheckRun
from agent.render.report import report, timeline, withdrawn


class Posting(NamedTuple):
    """message: whether the incident's message must be brought up to date. entry: lines to append to its thread."""

    message: bool
    entry: tuple[str, ...]


NOTHING = Posting(message=False, entry=())


def worth_posting(incident: Incident) -> bool:
    """Whether to begin to tell of it: it is a warning or worse, and stands by itself."""
    informative = incident.severity.rank < Severity.WARNING.rank
    return not informative and incident.merged_into is None and not withdrawn(incident)


def posting(previous: Incident | None, incident: Incident, *, posted: bool) -> Posting:
    """What a receiver must be told now that `previous` has become `incident`; posted: whether it was told of it before.

    Once it was told, each change that can be seen is an edit: also that it was merged, withdrawn, or is now mere info.
    """
    if posted:
        changed = previous is None or report(previous) != report(incident)
        return Posting(message=changed, entry=timeline(previous, incident))
    if not worth_posting(incident):
        return NOTHING
    return Posting(message=True, entry=timeline(None, incident))


def evidence_in(answer: CheckResult, holder: Incident | None, changed: Iterable[Incident]) -> Incident | None:
    """The incident in whose thread a check's answer belongs; None: it says nothing, or of none that stands.

    holder: the one that holds the finding which asked for it. changed: those that the check's findings changed.
    A holder that nobody is told of leaves it to the gravest incident that the findings made.
    """
    if not evidence_entry(answer):
        return None
    made = [
        one
        for one in changed
        if worth_posting(one) and any(found.kind == _check(answer) for found in one.causes + one.findings)
    ]
    if answer.ask is None:
        return made[0] if len(made) == 1 else None
    if holder is not None and worth_posting(holder):
        return holder
    return min(made, key=lambda one: (-one.severity.rank, one.opened_at, one.id), default=holder)


def evidence_entry(answer: CheckResult) -> tuple[str, ...]:
    """A check's answer as lines of a thread, under a heading that names the check; empty where it says nothing."""
    return (f"Spark, {_check(answer)}:", *answer.lines) if answer.lines or answer.plot else ()


def _check(answer: CheckResult) -> str:
    """The check's name."""
    run = next((one.check for one in answer.observations if isinstance(one, CheckRun)), "check")
    return run if answer.ask is None else answer.ask.check
