"""Incidents on a terminal, where they go without [slack]: in full at each turn, their timeline line by line."""

from typing import TextIO

from agent.model.findings import Severity
from agent.notify.base import Handle, Message
from agent.notify.webhook import told_of, worth_telling
from agent.render.report import report

_COLOURS = {Severity.CRITICAL: "31;1", Severity.WARNING: "33;1", Severity.INFO: "34;1"}


class Console:
    """The receiver that prints to a stream; in colour where that is a terminal."""

    name = "console"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = stream.isatty()

    def channel(self, message: Message, handle: Handle | None) -> str:
        """There is one stream."""
        del message, handle
        return self.name

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Print the incident when it opens, grows worse, has its cause found or is over; or lines of its timeline."""
        incident = message.incident
        if message.plot is not None:
            self._print(f"{incident.id}  (there is a plot of it, which only Slack shows)")
            return handle or {}
        if message.number > 0:
            self._print(*(f"{incident.id}  {line}" for line in message.lines))
            return handle or {}
        if handle and not worth_telling(incident, handle):
            return handle
        said = report(incident)
        headline, *others = said.lines()
        colour = "32;1" if said.calm else _COLOURS[incident.severity]
        first = f"\x1b[{colour}m{headline}\x1b[0m" if self._colours else headline
        self._print(first, *(f"  {line}" for line in others))
        return told_of(incident)

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """What was printed cannot be looked up."""
        del message, handle, since
        return None

    def _print(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()
