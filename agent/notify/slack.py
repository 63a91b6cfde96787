"""Slack by its Web API and a bot token: one message per incident, edited as it changes; its timeline and what checks
found in the thread.

The token needs the scope chat:write, files:write for plots, and channels:history (groups:history for private channels)
to look up what a lost answer may have left there. Slack tells histories by channel id (C0123456789) only; for a channel
given by name the id is looked up first, with the scope channels:read (groups:read).
"""

import http.client
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError

import structlog
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import SlackResponse

from agent.model.findings import Incident, Severity
from agent.notify.base import Declined, Gone, Handle, Message, NotDelivered, RateLimited, Refused, Unanswered
from agent.render.report import Report, alarming, report

EVENT_TYPE = "backflow_incident"
TEXT_LIMIT = 2_900
"""Characters in a text as sent: Slack refuses a section's text over 3,000, an edited message's own over 4,000."""

TIMEOUT_S = 10
"""How long a call may take, seconds."""

_REPLY_LIMIT = 3_900
_HEADLINE_LIMIT = 1_000
# Slack refuses blocks whose texts have more than about 13,200 characters in all (msg_blocks_too_long).
_ALL_LIMIT = 12_000
_SECTION_ROOM = 400
_CLOCK_SLACK_MS = 600_000
_PAGE = 200
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{5,}")
_SIGNS = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_GONE = {"message_not_found", "thread_not_found", "cant_update_message", "edit_window_closed"}
_FAULTS = {"internal_error", "fatal_error", "service_unavailable", "request_timeout"}
_CURES = {
    "invalid_auth": "the token is not valid: put a bot token (xoxb-...) in its place",
    "not_authed": "no token was sent: name one in [slack]",
    "account_inactive": "the token's app or workspace was switched off",
    "token_revoked": "the token was revoked: install the app again and put the new token in its place",
    "token_expired": "the token has expired: put a new one in its place",
    "channel_not_found": "there is no such channel, or the app cannot see it: invite the app to it",
    "not_in_channel": "the app is not in the channel: invite it",
    "is_archived": "the channel is archived: name another",
    "missing_scope": "the token lacks a scope",
}

# slack_sdk logs bodies and a webhook's address, which is a secret, at DEBUG, and at ERROR what the outbox logs too.
log = structlog.get_logger(__name__)
SILENT = logging.getLogger("agent.notify.base.slack_sdk")
SILENT.setLevel(logging.CRITICAL + 1)


class Slack:
    """The receiver that posts by the Web API, each incident into a channel of its own choice."""

    def __init__(
        self,
        token: str,
        channel_of: Callable[[Incident], str],
        *,
        name: str = "slack",
        base_url: str = "https://slack.com/api/",
        timeout: int = TIMEOUT_S,
    ) -> None:
        """channel_of: where a new incident is posted: a channel's id, or its name. timeout: seconds per call."""
        self.name = name
        self._channel_of = channel_of
        self._ids: dict[str, str] = {}
        self._client = WebClient(token=token, base_url=base_url, timeout=timeout, logger=SILENT, retry_handlers=[])

    def channel(self, message: Message, handle: Handle | None) -> str:
        """The channel in which the incident stands, or will."""
        if handle is not None:
            return str(handle["channel"])
        chosen = self._channel_of(message.incident)
        return self._ids.get(chosen, chosen)

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Post or edit the incident's message, or reply in its thread, a plot as a file. Raises NotDelivered."""
        post, mark = self._client.chat_postMessage, _metadata(message)
        if message.number > 0:
            if handle is None:
                why = "there is no message whose thread the timeline could go to"
                raise Gone(why)
            channel, ts = handle["channel"], handle["ts"]
            if message.plot is not None:
                upload, name, alt = self._client.files_upload_v2, message.file, "the plot of what was found"
                _call(upload, channel=channel, thread_ts=ts, filename=name, content=message.plot, alt_txt=alt)
                return handle
            text = clipped("\n".join(message.lines), _REPLY_LIMIT)
            # Slack rings for no edit and hardly for a reply: what has become critical is shown in the channel too.
            loud = {"reply_broadcast": True} if alarming(message.lines) else {}
            _call(post, channel=channel, thread_ts=ts, text=text, metadata=mark, unfurl_links=False, **loud)
            return handle
        told = report(message.incident)
        content = {"text": clipped(told.headline), "blocks": blocks(told), "metadata": mark}
        if handle is not None:
            _call(self._client.chat_update, channel=handle["channel"], ts=handle["ts"], **content)
            return handle
        channel = self._channel_of(message.incident)
        answer = _call(post, channel=channel, **content, unfurl_links=False, unfurl_media=False)
        self._ids[channel] = answer["channel"]
        return {"channel": answer["channel"], "ts": answer["ts"]}

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Look in the channel's history, or in the thread, for the message with this metadata, or this file. Raises
        NotDelivered.
        """
        channel, mark = self.channel(message, handle), _metadata(message)
        if message.number == 0:
            channel = self._id_of(channel)
            oldest = f"{max(0, since - _CLOCK_SLACK_MS) / 1000:.6f}"
            history = self._client.conversations_history
            pages = _pages(history, "messages", channel=channel, oldest=oldest, include_all_metadata=True)
        elif handle is not None:
            replies = self._client.conversations_replies
            pages = _pages(replies, "messages", channel=channel, ts=handle["ts"], include_all_metadata=True)
        else:
            return None
        ours = (one for one in pages if _is(one, message, mark))
        return next((handle or {"channel": channel, "ts": one["ts"]} for one in ours), None)

    def _id_of(self, channel: str) -> str:
        """The id of a channel given by name; the name itself where Slack does not tell. Raises NotDelivered."""
        if _CHANNEL_ID.fullmatch(channel):
            return channel
        kinds = "public_channel,private_channel"
        try:
            for one in _pages(self._client.conversations_list, "channels", types=kinds, exclude_archived=True):
                self._ids[f"#{one['name']}"] = self._ids[one["name"]] = one["id"]
        except Refused as error:
            log.warning("cannot look up the channel's id", channel=channel, reason=str(error))
        return self._ids.get(channel, channel)


def _pages(method: Callable[..., SlackResponse], what: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """What stands under this name on all pages. Raises NotDelivered."""
    cursor: str | None = None
    while cursor != "":
        answer = _call(method, **arguments, cursor=cursor, limit=_PAGE)
        yield from answer[what]
        cursor = (answer.get("response_metadata") or {}).get("next_cursor") or ""


def _call(method: Callable[..., SlackResponse], **arguments: Any) -> SlackResponse:
    """One call of the Web API. Raises NotDelivered."""
    try:
        return method(**arguments)
    except SlackApiError as error:
        raise _refusal(error) from None
    except (OSError, http.client.HTTPException, SlackClientError, ValueError) as error:
        if isinstance(error, HTTPError):  # from the address of an upload, which slack_sdk leaves open
            error.close()
        raise unanswered(error) from None


def unanswered(error: Exception) -> Unanswered:
    """A failed connection in words; the address, which may be a secret, is not among them."""
    reason = getattr(error, "reason", None)
    reason = reason if isinstance(reason, Exception) else error
    return Unanswered(f"Slack did not answer: {type(reason).__name__}: {reason}")


def rate_limited(headers: Any) -> RateLimited:
    """A 429 with its Retry-After (seconds); a minute where it names none."""
    text = str({str(name).lower(): value for name, value in dict(headers).items()}.get("retry-after", ""))
    seconds = float(text) if text.replace(".", "", 1).isdigit() else 60.0
    return RateLimited("Slack asks to send less (429)", int(seconds * 1000))


def _refusal(error: SlackApiError) -> NotDelivered:
    """What an answer other than ok means for the message."""
    answer = error.response
    told: Mapping[str, Any] = answer.data if isinstance(answer.data, dict) else {}
    code = str(told.get("error") or answer.status_code)
    method = str(answer.api_url).partition("?")[0].rpartition("/")[2]
    if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS or code in ("ratelimited", "rate_limited"):
        return rate_limited(answer.headers)
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _FAULTS:
        return Unanswered(f"Slack has a fault of its own: {method}: {code}")
    if code in _GONE:
        return Gone(f"Slack no longer has the message: {method}: {code}")
    hints = [_CURES.get(code), told.get("needed"), *((told.get("response_metadata") or {}).get("messages") or ())]
    reason = ": ".join([f"Slack refuses {method}", code, *(str(hint) for hint in hints if hint)])
    # What keeps messages out as well is waited for; what keeps only files out must not keep the thread waiting.
    only_files = method.startswith("files.") and (code == "missing_scope" or code not in _CURES)
    return Declined(reason) if only_files else Refused(reason)


def escaped(text: str) -> str:
    """Text in which Slack sees no markup of its own (mentions, links)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """The escaped text, cut where it would be longer than `limit` characters; an escape is never cut in two."""
    whole = escaped(text)
    if len(whole) <= limit:
        return whole
    kept, length = [], 1
    for character in text:
        piece = escaped(character)
        length += len(piece)
        if length > limit:
            break
        kept.append(piece)
    return f"{''.join(kept)}…"


def blocks(told: Report) -> list[dict[str, Any]]:
    """The report in Block Kit: the first line, a section per heading, the context; all within Slack's limits."""
    sign = ":large_green_circle:" if told.calm else _SIGNS[told.severity]
    shown = [_section(f"{sign} *{clipped(told.headline, _HEADLINE_LIMIT)}*")]
    room = _ALL_LIMIT - 2 * _HEADLINE_LIMIT
    for number, (heading, lines) in enumerate(told.sections, 1):
        title = f"*{heading}*\n" if heading else ""
        kept_free = _SECTION_ROOM * (len(told.sections) - number)
        text = title + clipped("\n".join(lines), min(TEXT_LIMIT, room - kept_free) - len(title))
        room -= len(text)
        shown.append(_section(text))
    context = {"type": "mrkdwn", "text": clipped(told.context, _HEADLINE_LIMIT), "verbatim": True}
    return [*shown, {"type": "context", "elements": [context]}]


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _metadata(message: Message) -> dict[str, Any]:
    entry = {"entry": message.number} if message.number else {}
    return {"event_type": EVENT_TYPE, "event_payload": {"id": message.incident.id, **entry}}


def _is(found: Mapping[str, Any], message: Message, mark: Mapping[str, Any]) -> bool:
    """Whether this is the message: by its metadata, or by its file's name, for an upload has no metadata."""
    if message.plot is not None:
        return any(message.file in (one.get("name"), one.get("title")) for one in found.get("files") or ())
    return mark.items() <= (found.get("metadata") or {}).items()
