"""Slack by an incoming webhook: plain messages, which can be neither edited nor found again.

So an incident is told when it opens, grows worse, has its cause found and is over, and not at each change; what checks
found is a message of its own, without its plot.
Where an answer was lost the message is sent again: duplicates are possible here, and only here.
"""

import http.client
from http import HTTPStatus
from typing import Any

from slack_sdk.errors import SlackClientError
from slack_sdk.webhook import WebhookClient

from agent.model.findings import Incident, Severity, Status
from agent.notify.base import Handle, Message, Refused, Unanswered
from agent.notify.slack import SILENT, TIMEOUT_S, blocks, clipped, rate_limited, unanswered
from agent.render.report import report


class Webhook:
    """The receiver behind one incoming webhook. Its address is a secret."""

    def __init__(self, url: str, *, name: str = "webhook", timeout: int = TIMEOUT_S) -> None:
        """url: as Slack gave it. timeout: seconds per call."""
        self.name = name
        self._client = WebhookClient(url, timeout=timeout, logger=SILENT, retry_handlers=[])

    def channel(self, message: Message, handle: Handle | None) -> str:
        """A webhook has one channel."""
        del message, handle
        return self.name

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Post the incident where it says something new enough, or what a check found. Raises NotDelivered."""
        handle = handle or {}
        if message.evidence and message.lines:
            self._send(text=clipped("\n".join([f"{message.incident.id}  {message.lines[0]}", *message.lines[1:]])))
            return handle
        if message.number > 0 or not worth_telling(message.incident, handle):
            return handle
        told = report(message.incident)
        self._send(text=clipped(told.headline), blocks=blocks(told))
        return told_of(message.incident)

    def _send(self, **content: Any) -> None:
        try:
            answer = self._client.send(**content)
        except (OSError, http.client.HTTPException, SlackClientError, ValueError) as error:
            raise unanswered(error) from None
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            raise rate_limited(answer.headers)
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            why = f"Slack has a fault of its own: {answer.status_code}"
            raise Unanswered(why)
        if answer.status_code != HTTPStatus.OK:
            why = f"Slack refuses the webhook: {answer.status_code} {answer.body[:200]}"
            raise Refused(why)

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Nothing that went through a webhook can be looked up."""
        del message, handle, since
        return None


def told_of(incident: Incident) -> dict[str, Any]:
    """What receivers that cannot edit remember of the last message."""
    return {
        "status": incident.status.value,
        "severity": incident.severity.value,
        "caused": bool(incident.causes),
        "merged": incident.merged_into is not None,
    }


def worth_telling(incident: Incident, told: Handle) -> bool:
    """Whether a new message is due: the first, a higher severity, a cause found, merged, over, or open again."""
    if not told:
        return True
    over = (Status.RECOVERED.value, Status.CLOSED.value)
    return (
        incident.severity.rank > Severity(told["severity"]).rank
        or (bool(incident.causes) and not told["caused"])
        or (incident.merged_into is not None and not told["merged"])
        or (incident.status.value in over) is not (told["status"] in over)
    )
