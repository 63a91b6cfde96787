"""What must be said of an incident's change: the policy. Pure; the words live in report, the queue in store."""

from typing import NamedTuple

from agent.findings import Incident, Severity
from agent.report import report, timeline, withdrawn


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
