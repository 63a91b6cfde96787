"""The edge where incidents go out: what every receiver is, how it says that it did not take one. One file each."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from agent.model.findings import Incident

Handle: TypeAlias = Mapping[str, Any]
"""What a receiver wants to remember of what it delivered (a channel and a timestamp); plain JSON."""


class Message(NamedTuple):
    """What is to be delivered: the incident's message (number 0) as it is now, or its nth thread entry.

    An entry is lines of the timeline, or of the incident's nth evidence (`evidence`), or that evidence's plot, a PNG.
    """

    incident: Incident
    number: int = 0
    lines: tuple[str, ...] = ()
    evidence: int = 0
    plot: bytes | None = None

    @property
    def file(self) -> str:
        """The plot's name as a file; no other plot has it."""
        return f"{self.incident.id}-evidence-{self.evidence}.png"


class NotDelivered(Exception):  # noqa: N818 - says what happened, as its kinds do
    """The receiver has not confirmed; the message is a sentence for an operator and holds no secret."""


class RateLimited(NotDelivered):
    """Certainly not delivered; the channel takes nothing more for `retry_after` ms."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Unanswered(NotDelivered):
    """It may have arrived: the connection failed, the answer was lost, or the receiver had a fault of its own."""


class Refused(NotDelivered):
    """Certainly not delivered, nor will it be until somebody changes something: a token, a channel, a permission."""


class Gone(NotDelivered):
    """Certainly not delivered: what the handle names no longer exists. The incident's message is to be made anew."""


class Declined(NotDelivered):
    """Certainly not delivered, and not worth waiting for: the receiver takes no plots, say. It is left out."""


class Receiver(Protocol):
    """One who is told of incidents. Called from one thread; each call ends within seconds."""

    name: str

    def channel(self, message: Message, handle: Handle | None) -> str:
        """Where this goes: a rate limit holds for a channel, not for the others."""

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Deliver and return the handle to remember, once the receiver has confirmed. Raises NotDelivered.

        handle: what the last delivery for this incident returned; None where nothing was delivered yet.
        """

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """What an attempt begun at `since` (ms) left there, if anything. Raises NotDelivered; Refused: cannot look."""
