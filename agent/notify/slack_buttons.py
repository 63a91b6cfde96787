"""The buttons of an incident's Slack message, as blocks; `slack_presses` does what they promise."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from agent.model.findings import Incident, Status
from agent.render.report import is_withdrawn


class Button(StrEnum):
    """A button, by its `action_id`."""

    ACKNOWLEDGE = "backflow_acknowledge"
    SILENCE_HOUR = "backflow_silence_hour"
    SILENCE_DAY = "backflow_silence_day"
    WHY = "backflow_why"
    PLOT = "backflow_plot"


_LABELS = {
    Button.ACKNOWLEDGE: "Acknowledge",
    Button.SILENCE_HOUR: "Silence 1 h",
    Button.SILENCE_DAY: "Silence 1 d",
    Button.WHY: "Why?",
    Button.PLOT: "Plot",
}


def buttons_of(incident: Incident) -> list[dict[str, Any]]:
    """Return the block with the buttons that make sense for the incident; nothing if none does."""
    elements = [
        {
            "type": "button",
            "action_id": button.value,
            "text": {"type": "plain_text", "text": _LABELS[button]},
            "value": incident.id,
        }
        for button in _sensible(incident)
    ]
    return [{"type": "actions", "block_id": "backflow", "elements": elements}] if elements else []


def is_taken(incident: Incident) -> bool:
    """Return whether somebody looks after the incident, and not since before it got worse."""
    taken = incident.acknowledged
    return taken is not None and taken.severity.rank >= incident.severity.rank


def _sensible(incident: Incident) -> Iterator[Button]:
    if incident.merged_into is not None or is_withdrawn(incident):
        return
    if incident.status is not Status.CLOSED:
        if not is_taken(incident):
            yield Button.ACKNOWLEDGE
        yield Button.SILENCE_HOUR
        yield Button.SILENCE_DAY
    yield Button.WHY
    yield Button.PLOT
