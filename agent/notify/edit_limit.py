"""How often one message is edited: bursts of changes become few edits, of which the last shows the last state."""

from collections.abc import Callable

from agent.model.findings import Incident, Severity

INTERVAL_MS = 2_000
"""Time between two edits of one message. Slack limits edits to about 50 a minute for a whole workspace."""


class EditLimit:
    """When each message may be edited again. Used by one thread."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """clock: ms of a clock that only goes forward."""
        self._clock = clock
        self._edits: dict[str, tuple[int, Severity]] = {}

    def due(self, incident: Incident) -> int:
        """Return when the incident's message may be edited (ms); 0 for at once: a higher severity never waits."""
        at, severity = self._edits.get(incident.id, (0, incident.severity))
        is_waiting = incident.id in self._edits and incident.severity.rank <= severity.rank
        return at + INTERVAL_MS if is_waiting else 0

    def edited(self, incident: Incident) -> None:
        """Take note of an edit."""
        now = self._clock()
        self._edits = {known: edit for known, edit in self._edits.items() if now - edit[0] < INTERVAL_MS}
        self._edits[incident.id] = (now, incident.severity)
