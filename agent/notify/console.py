"""The console, where notifications go without [slack]: in full at each turn, their thread line by line."""

from typing import TextIO

from agent.model.findings import Severity
from agent.notify.base import Handle, Message, SingleChannel
from agent.notify.policy import repeat, summary

_COLOURS = {Severity.CRITICAL: "31;1", Severity.WARNING: "33;1", Severity.INFO: "34;1"}
_RESOLVED_COLOUR = "32;1"


class Console(SingleChannel):
    """The receiver that prints to a stream; in colour if that is a terminal."""

    edits = False

    def __init__(self, stream: TextIO) -> None:
        super().__init__("console")
        self._stream = stream
        self._colours = stream.isatty()

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Print the incident when it opens, gets worse, has its cause found or is over; or an entry of its thread."""
        if message.plot is not None:
            self._print(f"{message.incident.id}  (a plot is available in Slack only)")
            return handle or {}
        if message.number > 0:
            self._print(*(f"{message.incident.id}  {line}" for line in message.lines))
            return handle or {}
        if handle and not repeat(message.incident, handle).is_sent:
            return handle
        headline, *others = message.report.lines()
        colour = _RESOLVED_COLOUR if message.report.is_resolved else _COLOURS[message.report.severity]
        first = f"\x1b[{colour}m{headline}\x1b[0m" if self._colours else headline
        self._print(first, *(f"  {line}" for line in others))
        return summary(message.incident)

    def _print(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()
