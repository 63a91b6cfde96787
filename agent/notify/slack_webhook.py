"""Slack by an incoming webhook: messages that can be neither edited nor found again.

An incident is posted when it opens, gets worse, has its cause found and is over, not at each change; a check report is
a message of its own, without its plot. If an answer is lost the message is sent again: duplicates are possible here,
and only here.
"""

from http import HTTPStatus
from typing import Any

import msgspec
from slack_sdk.webhook import WebhookClient

from agent.notify.base import Handle, Message, Refused, SingleChannel, Unanswered
from agent.notify.http_calls import TIMEOUT_S, quoted
from agent.notify.policy import repeat, summary
from agent.notify.slack import NOT_UNFURLED, SILENT, UNUSABLE, rate_limited, send_laid_out, unanswered
from agent.notify.slack_blocks import clipped
from agent.render.thread import is_reminder


class Webhook(SingleChannel):
    """The receiver behind one incoming webhook. Its address is a secret."""

    edits = False

    def __init__(self, url: str, *, name: str = "webhook", timeout: int = TIMEOUT_S) -> None:
        """url: as given by Slack. timeout: seconds per call."""
        super().__init__(name)
        self._client = WebhookClient(url, timeout=timeout, logger=SILENT, retry_handlers=[])
        self._client.proxy = None  # that of the environment, which would follow redirects

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Post the incident if enough has changed, a check report or a repetition. Raises NotDelivered."""
        handle = handle or {}
        is_entry = message.number > 0 and bool(message.lines)
        if is_entry and (message.check_report or is_reminder(message.lines)):
            self._send(text=clipped("\n".join([f"{message.incident.id}  {message.lines[0]}", *message.lines[1:]])))
            return handle
        if message.number > 0 or not (message.in_doubt or repeat(message.incident, handle).is_sent):
            return handle
        send_laid_out(self._send, message, self.name)
        return summary(message.incident)

    def _send(self, **content: Any) -> None:
        try:
            answer = self._client.send(**content, **NOT_UNFURLED)
        except UNUSABLE as error:
            raise unanswered(error) from None
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            raise rate_limited(answer.headers)
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            why = f"Slack failed with an internal error: {answer.status_code}"
            raise Unanswered(why)
        if answer.status_code != HTTPStatus.OK:
            why = f"Slack refused the webhook: {answer.status_code} {quoted(answer.body)}"
            raise Refused(why, answer.body.strip())
        if not _is_confirmed(answer.body):
            why = f"the answer is not Slack's: {quoted(answer.body)}"
            raise Refused(why)


def _is_confirmed(body: str) -> bool:
    """Return whether this is a confirmation: Slack answers "ok", services that imitate its webhooks also with JSON."""
    if body.strip() == "ok":
        return True
    try:
        answer = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # msgspec's errors, half characters; deep nesting
        return False
    return isinstance(answer, dict) and answer.get("ok", True) is not False
