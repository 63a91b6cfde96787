"""The interface of a receiver, what it delivers, and how it reports that it could not."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from agent.model.findings import Incident
from agent.model.matchers import Silence
from agent.render.report import Report, check_report, digest_report, plain_report, report
from agent.storage.outbox import Handle, Row
from agent.storage.queueing import REPORT_PREFIX

__all__ = ["Handle"]


class Message(NamedTuple):
    """What is to be delivered: the incident's message (number 0), rendered as it is now, or its nth thread entry.

    An entry is lines of the log, or those of the incident's nth check report (`check_report`), or its plot, a PNG.
    in_doubt: whether the message, as it was before, may have arrived since the last delivery that was confirmed.
    """

    incident: Incident
    report: Report
    number: int = 0
    lines: tuple[str, ...] = ()
    check_report: int = 0
    plot: bytes | None = None
    in_doubt: bool = False

    @property
    def is_digest(self) -> bool:
        """Whether it is a digest after quiet hours; its lines are in the report."""
        return self.number == 0 and bool(self.lines) and not self.is_report

    @property
    def is_report(self) -> bool:
        """Whether it is a check report that is a message of its own, with its lines in the report, or its plot."""
        return self.incident.id.startswith(REPORT_PREFIX)

    @property
    def file(self) -> str:
        """The plot's file name; no other plot has it."""
        return f"{self.incident.id}-plot-{self.check_report}.png"


def message_of(row: Row, silence: Silence | None = None) -> Message:
    """Return the message of an outbox row. silence: what holds the incident back at present."""
    if row.is_report:
        described = check_report(row.incident, row.lines)
    else:
        described = digest_report(row.incident, row.lines) if row.is_digest else report(row.incident, silence)
    return _message(row, described)


def plain_message_of(row: Row) -> Message:
    """Return the message of a row whose incident cannot be described because of a defect."""
    return _message(row, plain_report(row.incident))


def _message(row: Row, described: Report) -> Message:
    in_doubt = row.number == 0 and row.attempted_at is not None
    return Message(row.incident, described, row.number, row.lines, row.check_report, row.plot, in_doubt)


class NotDelivered(Exception):  # noqa: N818 - a state, not an error of the program
    """The receiver has not confirmed; the text is a sentence for an operator and holds no secret."""


class RateLimited(NotDelivered):
    """Certainly not delivered; the channel takes nothing more for `retry_after` ms."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Unanswered(NotDelivered):
    """It may have arrived: the connection failed, the answer was lost, or the receiver had an internal error."""


class Refused(NotDelivered):
    """Certainly not delivered until somebody changes a token, a channel or a permission. code: the receiver's own."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class Gone(NotDelivered):
    """Certainly not delivered: what the handle names no longer exists, and the message must be posted again."""


class Declined(NotDelivered):
    """Certainly not delivered and not worth a retry, such as a plot for a receiver that takes no files."""


class Receiver(Protocol):
    """A destination of notifications. Called from one thread; each call ends within seconds."""

    name: str
    edits: bool
    """Whether it edits a message that was delivered instead of sending another."""

    def accepts(self, incident: Incident) -> bool:
        """Return whether a route sends the incident here; what was delivered once is followed in any case."""

    def channel(self, message: Message, handle: Handle | None) -> str:
        """Return where the message goes; a rate limit applies to one channel."""

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        """Return whether the incident's edit as it is now notifies people, such as of an alert that fires again."""

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Deliver, and return the handle once the receiver has confirmed. Raises NotDelivered.

        handle: what the last delivery for this incident returned; None if there was none.
        """

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Return what an attempt begun at `since` (ms) left there, or None.

        Raises NotDelivered, of which Refused says that the receiver may not be searched.
        """


class SingleChannel:
    """The part that receivers with one destination share: one channel, and nothing there can be looked up."""

    is_keyed: ClassVar[bool] = False
    """Whether the receiver knows incidents by their ids: an end is sent even if the beginning may not have arrived."""

    def __init__(self, name: str, accepts: Callable[[Incident], bool] = lambda _: True) -> None:
        """name: by which it is known. accepts: whether an incident matches its patterns."""
        self.name = name
        self._accepts = accepts

    def accepts(self, incident: Incident) -> bool:
        """Return whether the incident matches the patterns."""
        return self._accepts(incident)

    def channel(self, message: Message, handle: Handle | None) -> str:
        """Return the name: there is one destination, which has one limit."""
        del message, handle
        return self.name

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        """Return that it does: what is not edited is sent."""
        del incident, handle
        return True

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Return that an incident may be known there, so that its end is sent in any case, or None."""
        del since
        return {} if self.is_keyed and handle is None and message.number == 0 else None


@runtime_checkable
class Identifiable(Protocol):
    """A receiver that can be tried without notifying anybody, also while another thread delivers by it."""

    name: str

    def identify(self) -> str:
        """Return as whom or what it is reached. Raises NotDelivered."""
