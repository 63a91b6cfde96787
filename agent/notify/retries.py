"""When a receiver's deliveries are tried again after a failure, and which failures are logged."""

import traceback
from collections import Counter
from collections.abc import Callable, Container

import structlog

from agent.notify.base import Declined, Gone, NotDelivered, RateLimited, Refused, Unanswered

log = structlog.get_logger(__name__)

FIRST_RETRY_MS = 500
LAST_RETRY_MS = 60_000
REFUSED_RETRY_MS = 300_000
"""How long to wait after a refusal that only a person can lift, such as a revoked token."""

_REASONS: dict[type[NotDelivered], str] = {
    RateLimited: "rate_limited",
    Unanswered: "unanswered",
    Refused: "refused",
    Gone: "gone",
    Declined: "declined",
}
DELIVERY_FAILURES = (*_REASONS.values(), "defect")
"""The kinds of reasons for which an attempt to deliver failed."""


class Retries:
    """Failures of one receiver's deliveries: when each incident and each channel is due again. Logs each reason once.

    failed: how many attempts failed, by the kind of reason.
    """

    def __init__(self, receiver: str, clock: Callable[[], int], jitter: Callable[[], float]) -> None:
        """clock: ms of a clock that only goes forward. jitter: draws from [0, 1)."""
        self.failed: Counter[str] = Counter()
        self._receiver = receiver
        self._clock = clock
        self._jitter = jitter
        self._failures: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._channel_due: dict[str, int] = {}
        self._reported: dict[str, str] = {}
        self._failed_in: dict[str, str] = {}
        self._defects: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """Why deliveries fail at present. From any thread."""
        return [*list(self._reported.values()), *list(self._defects.values())]

    def due(self, incident: str) -> int:
        """Return when the incident is tried next, ms; 0 if at once."""
        return self._due.get(incident, 0)

    def is_channel_due(self, incident: str, channel: str) -> bool:
        """Return whether the channel takes messages; if not, the incident waits for it."""
        due = self._channel_due.get(channel, 0)
        if self._clock() < due:
            self._due[incident] = due
            return False
        return True

    def keep(self, incidents: Container[str]) -> None:
        """Forget the failures of all other incidents, and of channels for which none of these waits."""
        memories: list[dict[str, int] | dict[str, str]]
        memories = [self._due, self._failures, self._defects, self._failed_in]
        for memory in memories:
            for incident in [known for known in memory if known not in incidents]:
                del memory[incident]
        channels = set(self._failed_in.values())
        self._reported = {channel: reason for channel, reason in self._reported.items() if channel in channels}

    def succeeded(self, incident: str, channel: str, *, is_first: bool) -> None:
        """Forget the failures of an incident and of its channel.

        is_first: it was the first message. That alone does not end the failures: if each thread entry finds it gone,
        new ones come ever slower.
        """
        self._due.pop(incident, None)
        if not is_first:
            self._failures.pop(incident, None)
        if self._reported.pop(channel, None) is not None:
            log.info("delivery_resumed", receiver=self._receiver, channel=channel)

    def put_off(self, incident: str, channel: str, error: NotDelivered) -> None:
        """Choose when to try the incident again."""
        self.failed[_REASONS.get(type(error), "unanswered")] += 1
        if isinstance(error, RateLimited):
            wait = error.retry_after or self._backoff(incident)  # some services round down to 0 s
            self._channel_due[channel] = self._clock() + wait
        elif isinstance(error, Refused):
            wait = REFUSED_RETRY_MS
        else:
            wait = self._backoff(incident)
        self._due[incident] = self._clock() + wait
        self._failed_in[incident] = channel
        if self._reported.get(channel) != str(error):
            self._reported[channel] = str(error)
            log_at = log.error if isinstance(error, Refused) else log.warning
            log_at(
                "delivery_failed",
                receiver=self._receiver,
                channel=channel,
                incident=incident,
                reason=str(error),
                retry_in_ms=wait,
            )

    def put_off_defect(self, incident: str, error: Exception) -> None:
        """Put off an incident whose delivery has a defect."""
        self.log_defect(incident, error)
        self.failed["defect"] += 1
        self._due[incident] = self._clock() + self._backoff(incident)

    def log_defect(self, incident: str, error: Exception) -> None:
        """Log each defect once, without a traceback: a renderer may add local variables, and a token is among them."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"internal error: {type(error).__name__} at {where.filename}:{where.lineno}: {error}"
        if self._defects.get(incident) != reason:
            self._defects[incident] = reason
            log.error("delivery_failed", receiver=self._receiver, incident=incident, reason=reason)

    def _backoff(self, incident: str) -> int:
        """Return the next wait, ms: doubled with each failure up to a minute, drawn from its upper half."""
        failures = self._failures.get(incident, 0)
        self._failures[incident] = failures + 1
        wait = min(LAST_RETRY_MS, FIRST_RETRY_MS << min(failures, 16))
        return int(wait * (0.5 + self._jitter() / 2))
