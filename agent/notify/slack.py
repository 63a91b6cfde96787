"""Slack by its Web API and a bot token: one message per incident, edited as it changes, with its log as the thread.

The token needs the scope chat:write, files:write for plots, and channels:history (groups:history for private channels)
to look up a message whose answer was lost. Slack returns histories by channel id (C0123456789) only; the id of a
channel given by name is looked up first, with the scope channels:read (groups:read), which also shows whether the app
is a member of it.
"""

import http.client
import logging
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener, install_opener

import structlog
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import SlackResponse

from agent.model.findings import Incident
from agent.model.text import join_names
from agent.notify.base import Declined, Gone, Handle, Message, NotDelivered, RateLimited, Refused, Unanswered
from agent.notify.http_calls import TIMEOUT_S, RefuseRedirects, quoted, retry_after
from agent.notify.slack_blocks import LAYOUT_REFUSED, PLAIN_LIMIT, clipped, content_of, plain_content_of
from agent.notify.slack_buttons import buttons_of
from agent.render.thread import is_announcement

T = TypeVar("T")

EVENT_TYPE = "backflow_incident"
NOT_UNFURLED: Mapping[str, Any] = {"unfurl_links": False, "unfurl_media": False}
"""Of all messages: names and lines of logs are free text, and Slack would show what an address in them leads to."""

_CLOCK_SLACK_MS = 600_000
UNUSABLE = (
    *(OSError, http.client.HTTPException, SlackClientError, ValueError, LookupError, ArithmeticError),
    *(AttributeError, TypeError, RecursionError),
)
"""What slack_sdk raises without an answer, or for one that is not Slack's: an unknown charset, a list, deep nesting."""

_PAGE = 200
_MOST_PAGES = 100
"""How many pages a look-up reads at most: 20,000 messages, or channels."""

_ERROR_CODE = re.compile(r"[a-z][a-z_]*")
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{5,}")
_USER_ID = re.compile(r"[UW][A-Z0-9]{5,}")
_POST, _POST_ANYWHERE = "chat:write", "chat:write.public"
_LISTED = {"public_channel": "channels:read", "private_channel": "groups:read"}
"""The scope with which each type of channel is listed."""

_OPTIONAL = {
    ("files:write",): "without the scope files:write it posts no plots",
    ("channels:history", "groups:history"): (
        "without the scope channels:history or groups:history a message whose answer is lost may be sent twice"
    ),
}
_GONE = {"message_not_found", "thread_not_found", "cant_update_message", "edit_window_closed"}
_CHANNEL_LOST = {"is_archived", "channel_not_found", "not_in_channel"}
_INTERNAL_ERRORS = {"internal_error", "fatal_error", "service_unavailable", "request_timeout"}
_REMEDIES = {
    "invalid_auth": "the token is not valid: replace it with a bot token (xoxb-...), then restart the agent",
    "not_allowed_token_type": "the token is of another type: a bot token begins with xoxb-, an app token with xapp-",
    "user_not_in_channel": "who pressed is not a member of the channel",
    "not_authed": "no token was sent: name one in [slack]",
    "account_inactive": "the token's app or workspace was deactivated",
    "token_revoked": "the token was revoked: reinstall the app, use the new token, then restart the agent",
    "token_expired": "the token has expired: replace it, then restart the agent",
    "channel_not_found": "no such channel, or the app cannot see it: invite the app to it",
    "not_in_channel": "the app is not in the channel: invite it",
    "is_archived": "the channel is archived: name another",
    "missing_scope": "the token lacks a scope",
}
_ARCHIVED, _NOT_IN_CHANNEL, _NO_CHANNEL = (
    (f"{code}: {_REMEDIES[code]}", code) for code in ("is_archived", "not_in_channel", "channel_not_found")
)

# slack_sdk logs bodies and a webhook's address, which is a secret, at DEBUG, and at ERROR what the dispatcher logs too.
log = structlog.get_logger(__name__)
SILENT = logging.getLogger("agent.notify.base.slack_sdk")
SILENT.setLevel(logging.CRITICAL + 1)


def configure_connections(proxy: str | None = None, ca: Path | None = None) -> None:
    """Set how all Slack clients of the process connect: without redirects, which slack_sdk has no setting for.

    slack_sdk's own settings for proxies and TLS follow redirects. proxy: an address; by default the environment's
    (`https_proxy`). ca: PEM file of trusted authorities; by default the system's. Raises OSError.
    """
    proxies = [] if proxy is None else [ProxyHandler({"http": proxy, "https": proxy})]
    install_opener(build_opener(RefuseRedirects, HTTPSHandler(context=ssl.create_default_context(cafile=ca)), *proxies))


configure_connections()


def web_client(token: str, base_url: str, timeout: int) -> WebClient:
    """Return a client of the Web API. timeout: seconds per call."""
    client = WebClient(token=token, base_url=base_url, timeout=timeout, logger=SILENT, retry_handlers=[])
    client.proxy = None  # that of the environment, which would follow redirects
    return client


class Slack:
    """The receiver that posts by the Web API, each incident to a channel chosen for it."""

    edits = True

    def __init__(
        self,
        token: str,
        channel_of: Callable[[Incident], str],
        *,
        name: str = "slack",
        accepts: Callable[[Incident], bool] = lambda _: True,
        base_url: str = "https://slack.com/api/",
        timeout: int = TIMEOUT_S,
        has_buttons: bool = False,
        channels: Iterable[str] = (),
        own_channels: Iterable[str] = (),
    ) -> None:
        """channel_of: where a new incident is posted: a channel's id or name. timeout: seconds per call.

        accepts: which new incidents are posted at all. has_buttons: whether somebody receives what is pressed.
        channels: all that channel_of may return, which `identify` looks at. own_channels: those of them in which no
        other receiver posts incidents.
        """
        self.name = name
        self._has_buttons = has_buttons
        self._accepts = accepts
        self._channel_of = channel_of
        self._channels, self._own_channels = tuple(channels), tuple(own_channels)
        self._ids: dict[str, str] = {}
        self._client = web_client(token, base_url, timeout)

    def identify(self) -> str:
        """Return as whom and where the token posts, and what it lacks. Raises NotDelivered if nothing can be posted."""
        answer = call(self._client.auth_test)
        scopes = _scopes_of(answer)
        if scopes is not None and _POST not in scopes:
            why = f"the token lacks the scope {_POST}: add it to the app and reinstall the app"
            raise Refused(why, "missing_scope")
        places, problems = [], []
        for channel in self._channels:
            try:
                places.append(self._examine(channel, scopes))
            except Refused as error:
                problems.append(f"channel {channel}: {error}")
        if problems:
            raise Refused("; ".join(problems))
        where = f" to {join_names(places)}" if places else ""
        lost = [loss for kinds, loss in _OPTIONAL.items() if scopes is not None and not scopes.intersection(kinds)]
        return "; ".join([f"posts as {answer.get('user', '?')} in {answer.get('team', '?')}{where}", *lost])

    def _examine(self, channel: str, scopes: frozenset[str] | None) -> str:
        """Return the channel's name, and why if it cannot be looked at. Raises Refused if it takes no messages."""
        if _USER_ID.fullmatch(channel):
            return channel
        try:
            found = self._look_up(channel, scopes)
        except NotDelivered as error:
            if isinstance(error, Refused) and error.code != "missing_scope":
                raise
            return f"{channel} (not looked at: {error})"
        if found.get("is_archived"):
            raise Refused(*_ARCHIVED)
        if found.get("is_member") is False and (found.get("is_private") or _POST_ANYWHERE not in (scopes or ())):
            raise Refused(*_NOT_IN_CHANNEL)
        return channel

    def _look_up(self, channel: str, scopes: frozenset[str] | None) -> Mapping[str, Any]:
        """Return what Slack knows about a channel given by id or name. Raises NotDelivered."""
        if _CHANNEL_ID.fullmatch(channel):
            found = call(self._client.conversations_info, channel=channel).get("channel")
            return found if isinstance(found, dict) else {}
        kinds = [kind for kind, scope in _LISTED.items() if scopes is None or scope in scopes] or list(_LISTED)
        listed = _pages(self._client.conversations_list, "channels", types=",".join(kinds))
        for known in listed:
            if known.get("name") == channel.removeprefix("#"):
                return known
        raise Refused(*_NO_CHANNEL)

    def accepts(self, incident: Incident) -> bool:
        """Return whether the incident is posted here."""
        return self._accepts(incident)

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        """Return that Slack notifies no one of an edit."""
        del incident, handle
        return False

    def channel(self, message: Message, handle: Handle | None) -> str:
        """Return the channel that has the incident's message, or will have it."""
        if handle is not None:
            return str(handle["channel"])
        chosen = self._channel_of(message.incident)
        return self._ids.get(chosen, chosen)

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Post or edit the incident's message, or reply in its thread, a plot as a file. Raises NotDelivered."""
        try:
            return self._deliver(message, handle)
        except Refused as error:
            # An archived channel takes nothing more; another that was named since gets a new message.
            chosen = self._channel_of(message.incident)
            if (
                error.code in _CHANNEL_LOST
                and handle is not None
                and chosen not in (handle["channel"], handle.get("name"))
            ):
                why = f"{error}; the incident is posted again to {chosen}"
                raise Gone(why) from None
            raise

    def _deliver(self, message: Message, handle: Handle | None) -> Handle:
        post, mark = self._client.chat_postMessage, _metadata(message)
        if message.number > 0:
            if handle is None:
                why = "the message to reply to does not exist"
                raise Gone(why)
            channel, ts = handle["channel"], handle["ts"]
            if message.plot is not None:
                upload, name, alt = self._client.files_upload_v2, message.file, "plot of a check's findings"
                # A report has no thread to open: its picture comes right below it.
                place = {} if message.is_report else {"thread_ts": ts}
                call(upload, channel=channel, **place, filename=name, content=message.plot, alt_txt=alt)
                return handle
            text = clipped("\n".join(message.lines), PLAIN_LIMIT)
            # Slack notifies no one of an edit and few of a reply: what is urgent is shown in the channel too.
            broadcast = {"reply_broadcast": True} if is_announcement(message.lines) else {}
            call(post, channel=channel, thread_ts=ts, text=text, metadata=mark, **NOT_UNFURLED, **broadcast)
            return handle
        if handle is not None:
            self._show(self._client.chat_update, message, channel=handle["channel"], ts=handle["ts"])
            return handle
        channel = self._channel_of(message.incident)
        answer = self._show(post, message, channel=channel, **NOT_UNFURLED)
        posted_to, ts = text_of(answer, "channel"), text_of(answer, "ts")
        self._ids[channel] = posted_to
        return _handle(channel, posted_to, ts)

    def _show(self, method: Callable[..., SlackResponse], message: Message, **where: Any) -> SlackResponse:
        """Post or edit an incident's message; as text alone if Slack refuses its layout. Raises NotDelivered."""
        is_incident = not message.is_digest and not message.is_report
        buttons = buttons_of(message.incident) if self._has_buttons and is_incident else []
        send = partial(call, method, **where, metadata=_metadata(message))
        return send_laid_out(send, message, self.name, buttons)

    def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
        """Return the message with this metadata or file in the channel or thread, or None. Raises NotDelivered.

        A first message may be in the channel of another route: the incident has changed since, or the file.
        """
        if message.number == 0 and handle is None:
            chosen = self._channel_of(message.incident)
            found = self._find_first(message, chosen, since)
            for other in self._own_channels:
                if found is None and other != chosen:
                    with suppress(Refused):
                        found = self._find_first(message, other, since)
            return found
        if handle is None:
            return None
        if message.number == 0 or message.is_report:
            return handle if self._in_channel(message, handle["channel"], since) else None
        replies, place = self._client.conversations_replies, {"channel": handle["channel"], "ts": handle["ts"]}
        return handle if _first(_pages(replies, "messages", **place, include_all_metadata=True), message) else None

    def _find_first(self, message: Message, chosen: str, since: int) -> Handle | None:
        """Return the handle of a first message if it is in that channel. Raises NotDelivered."""
        channel = self._id_of(self._ids.get(chosen, chosen))
        found = self._in_channel(message, channel, since)
        return None if found is None else _handle(chosen, channel, text_of(found, "ts"))

    def _in_channel(self, message: Message, channel: str, since: int) -> Mapping[str, Any] | None:
        oldest = f"{max(0, since - _CLOCK_SLACK_MS) / 1000:.6f}"
        history = self._client.conversations_history
        pages = _pages(history, "messages", channel=channel, oldest=oldest, include_all_metadata=True)
        return _first(pages, message)

    def _id_of(self, channel: str) -> str:
        """Return the id of a channel given by name; the name itself if it cannot be looked up. Raises NotDelivered."""
        if _CHANNEL_ID.fullmatch(channel):
            return channel
        refused = ""
        for kind in _LISTED:  # each by itself: Slack refuses both if the token lacks the scope for one
            try:
                for known in _pages(self._client.conversations_list, "channels", types=kind, exclude_archived=True):
                    name, known_id = text_of(known, "name"), text_of(known, "id")
                    self._ids[f"#{name}"] = self._ids[name] = known_id
            except Refused as error:
                refused = refused or str(error)
            if channel in self._ids:
                return self._ids[channel]
        if refused:
            log.warning("channel_lookup_refused", channel=channel, reason=refused)
        return channel


def _scopes_of(answer: SlackResponse) -> frozenset[str] | None:
    """Return the scopes of the token, which Slack sends as a header; None if it does not."""
    headers = {str(name).lower(): str(value) for name, value in dict(answer.headers).items()}
    given = headers.get("x-oauth-scopes")
    return None if given is None else frozenset(scope.strip() for scope in given.split(","))


def _handle(chosen: str, channel: str, ts: str) -> Handle:
    """Return what identifies a message; with the name of its channel if it was chosen by name."""
    return {"channel": channel, "ts": ts} | ({} if chosen == channel else {"name": chosen})


def _pages(method: Callable[..., SlackResponse], what: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that all pages have under this name. Raises NotDelivered."""
    cursor = None
    for _ in range(_MOST_PAGES):
        answer = call(method, **arguments, cursor=cursor, limit=_PAGE)
        found, more = answer.get(what), answer.get("response_metadata")
        if not isinstance(found, list):
            msg = f"the answer is not Slack's: it lacks {what}"
            raise Unanswered(msg)
        yield from (item for item in found if isinstance(item, dict))
        cursor = more.get("next_cursor") if isinstance(more, dict) else None
        if not cursor:
            return
    log.warning("lookup_ended_early", pages=_MOST_PAGES, listed=what)


def call(method: Callable[..., SlackResponse], **arguments: Any) -> SlackResponse:
    """Call one method of the Web API; what it returns is an object. Raises NotDelivered."""
    try:
        answer = method(**arguments)
    except SlackApiError as error:
        raise _refusal(error) from None
    except UNUSABLE as error:
        if isinstance(error, HTTPError):  # from the address of an upload, which slack_sdk leaves open
            error.close()
        raise unanswered(error) from None
    if not isinstance(answer.data, dict):
        msg = "the answer is not Slack's: it is no JSON object"
        raise Unanswered(msg)
    return answer


def send_laid_out(send: Callable[..., T], message: Message, receiver: str, buttons: Sequence[dict[str, Any]] = ()) -> T:
    """Send an incident's message, or its text alone if Slack refuses the layout. Raises NotDelivered."""
    try:
        return send(**content_of(message.report, buttons))
    except Refused as error:
        if error.code not in LAYOUT_REFUSED:
            raise
        log.warning("layout_refused", receiver=receiver, incident=message.incident.id, reason=str(error))
    return send(**plain_content_of(message.report))


def text_of(answer: SlackResponse | Mapping[str, Any], name: str) -> str:
    """Return a text that is there in every answer of Slack's. Raises Unanswered."""
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        msg = f"the answer is not Slack's: it lacks {name}"
        raise Unanswered(msg)
    return value


def unanswered(error: Exception) -> Unanswered:
    """Return what a failed connection means, without the address, which may be a secret."""
    reason = getattr(error, "reason", None)
    reason = reason if isinstance(reason, Exception) else error
    return Unanswered(f"Slack did not answer: {type(reason).__name__}: {quoted(str(reason))}")


def rate_limited(headers: Any) -> RateLimited:
    """Return what a 429 means."""
    by_name = {str(name).lower(): str(value) for name, value in dict(headers).items()}
    return RateLimited("Slack limits the rate (429)", retry_after(by_name))


def _refusal(error: SlackApiError) -> NotDelivered:
    """Return what an answer other than ok means for the message."""
    answer = error.response
    body: Mapping[str, Any] = answer.data if isinstance(answer.data, dict) else {}
    code = str(body.get("error") or answer.status_code)
    method = str(answer.api_url).partition("?")[0].rpartition("/")[2]
    if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS or code in ("ratelimited", "rate_limited"):
        return rate_limited(answer.headers)
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _INTERNAL_ERRORS:
        return Unanswered(f"Slack failed with an internal error: {method}: {quoted(code)}")
    if not _ERROR_CODE.fullmatch(code):
        return Unanswered(f"{method}: the answer is not Slack's (status {answer.status_code}): {quoted(code)}")
    if code in _GONE:
        return Gone(f"Slack no longer has the message: {method}: {code}")
    more = body.get("response_metadata")
    messages = more.get("messages") if isinstance(more, dict) else None
    hints = [_REMEDIES.get(code), body.get("needed"), *(messages if isinstance(messages, list) else ())]
    reason = quoted(": ".join([f"Slack refused {method}", code, *(str(hint) for hint in hints if hint)]))
    # Wait for what keeps messages out as well; what keeps only files out must not hold back the thread.
    only_files = method.startswith("files.") and (code == "missing_scope" or code not in _REMEDIES)
    return Declined(reason) if only_files else Refused(reason, code)


def _metadata(message: Message) -> dict[str, Any]:
    entry = {"entry": message.number} if message.number else {}
    return {"event_type": EVENT_TYPE, "event_payload": {"id": message.incident.id, **entry}}


def _first(pages: Iterable[Mapping[str, Any]], message: Message) -> Mapping[str, Any] | None:
    mark = _metadata(message)
    return next((found for found in pages if _is(found, message, mark)), None)


def _is(found: Mapping[str, Any], message: Message, mark: Mapping[str, Any]) -> bool:
    """Whether this is the message: by its metadata, or by its file's name, for an upload has no metadata."""
    if message.plot is not None:
        files = found.get("files")
        named = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
        return any(message.file in (file.get("name"), file.get("title")) for file in named)
    metadata = found.get("metadata")
    return isinstance(metadata, dict) and mark.items() <= metadata.items()
