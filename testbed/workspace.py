"""Slack's side of the Web API: channels, messages, threads, files and their rules. No HTTP, no faults."""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field

from testbed import blockkit
from testbed.arguments import (
    Fields,
    RefusedError,
    content_of,
    flag,
    integer,
    json_argument,
    required,
    timestamp,
    types_of,
)

T = TypeVar("T")

BOT = {"user": "U0BACKFLOW", "bot_id": "B0BACKFLOW"}


class Version(Struct, frozen=True):
    """An earlier content of a message."""

    text: str
    blocks: list[dict[str, Any]]
    attachments: list[dict[str, Any]]


class Message(Struct, kw_only=True):
    """A message as it is now.

    edits: its earlier contents, oldest first. thread_ts: the message that it replies to. broadcast: whether a reply is
    shown in the channel too.
    """

    ts: str
    channel: str
    text: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    attachments: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] | None = None
    thread_ts: str | None = None
    broadcast: bool = False
    files: list[str] = field(default_factory=list)
    edits: list[Version] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The visible text: of blocks and attachments, else the message's own."""
        return blockkit.words([*self.blocks, *self.attachments]) or blockkit.words([{"text": self.text}])


class Upload(Struct):
    """A file that is announced, sent, then shared."""

    id: str
    filename: str
    length: int
    content: bytes | None = None
    title: str | None = None


class Ephemeral(NamedTuple):
    """A message that one user sees in a channel."""

    channel: str
    user: str
    text: str


class Workspace:
    """One workspace as its one bot sees it. `call` is the Web API; not thread-safe."""

    def __init__(self, channels: Sequence[str]) -> None:
        """channels: names, which the bot is a member of; ids are made in order."""
        self.channels = {f"C{number:010d}": name for number, name in enumerate(channels, 1)}
        self.members = set(self.channels)
        self.archived: set[str] = set()
        self.messages: dict[tuple[str, str], Message] = {}
        self.uploads: dict[str, Upload] = {}
        self.ephemerals: list[Ephemeral] = []
        self.outsiders: set[str] = set()
        self._last_ts = 0

    def call(self, method: str, arguments: Fields) -> dict[str, Any]:
        """Return the response's fields besides `ok`. Raises RefusedError."""
        verb = _METHODS.get(method)
        if verb is None:
            raise RefusedError("unknown_method")
        return verb(self, arguments)

    def channel(self, given: str, *, named: bool = True) -> str:
        """Return the channel's id, from its id or (if `named`) its name. Raises RefusedError."""
        for channel, name in self.channels.items():
            if given == channel or (named and given.removeprefix("#") == name):
                return channel
        raise RefusedError("channel_not_found")

    def post(self, channel: str, arguments: Fields) -> Message:
        """Put a new message into a channel that the bot is a member of. Raises RefusedError."""
        if channel in self.archived:
            raise RefusedError("is_archived")
        if channel not in self.members:
            raise RefusedError("not_in_channel")
        content = content_of(arguments, most=40_000)
        thread = self._thread(channel, arguments.get("thread_ts"))
        broadcast = thread is not None and flag(arguments, "reply_broadcast")
        message = Message(
            ts=self._next_ts(), channel=channel, thread_ts=thread, broadcast=broadcast, **{"text": ""} | content
        )
        self.messages[channel, message.ts] = message
        return message

    def replies(self, parent: Message) -> list[Message]:
        """Return the messages of a thread below its parent, oldest first."""
        thread = parent.channel, parent.ts
        return [message for message in self.messages.values() if (message.channel, message.thread_ts) == thread]

    def who(self, _: Fields) -> dict[str, Any]:
        """Handle auth.test."""
        return {"url": "https://stand-in.example/", "team": "stand-in", "team_id": "T0BACKFLOW", **BOT}

    def post_message(self, arguments: Fields) -> dict[str, Any]:
        """Handle chat.postMessage."""
        message = self.post(self.channel(required(arguments, "channel")), arguments)
        return {"channel": message.channel, "ts": message.ts, "message": self._shown(message)}

    def post_ephemeral(self, arguments: Fields) -> dict[str, Any]:
        """Handle chat.postEphemeral: to a member of the channel."""
        channel, user = self.channel(required(arguments, "channel"), named=False), required(arguments, "user")
        if channel not in self.members:
            raise RefusedError("not_in_channel")
        if user in self.outsiders:
            raise RefusedError("user_not_in_channel")
        self.ephemerals.append(Ephemeral(channel, user, content_of(arguments, most=40_000)["text"]))
        return {"message_ts": self._next_ts()}

    def update(self, arguments: Fields) -> dict[str, Any]:
        """Handle chat.update: what is not given stays as it is."""
        message = self._message(arguments, "ts")
        if message.channel in self.archived:
            raise RefusedError("is_archived")
        content = content_of(arguments, most=4_000)
        message.edits.append(Version(message.text, message.blocks, message.attachments))
        for name, value in content.items():
            setattr(message, name, value)
        return {"channel": message.channel, "ts": message.ts, "text": message.text, "message": self._shown(message)}

    def permalink(self, arguments: Fields) -> dict[str, Any]:
        """Handle chat.getPermalink."""
        message = self._message(arguments, "message_ts")
        link = f"https://stand-in.example/archives/{message.channel}/p{message.ts.replace('.', '')}"
        return {"channel": message.channel, "permalink": link}

    def join(self, arguments: Fields) -> dict[str, Any]:
        """Handle conversations.join."""
        channel = self.channel(required(arguments, "channel"), named=False)
        self.members.add(channel)
        return {"channel": {"id": channel, "name": self.channels[channel], "is_member": True}}

    def describe_channel(self, arguments: Fields) -> dict[str, Any]:
        """Handle conversations.info."""
        return {"channel": self._described(self.channel(required(arguments, "channel"), named=False))}

    def list_channels(self, arguments: Fields) -> dict[str, Any]:
        """Handle conversations.list. All channels are public."""
        is_listed = "public_channel" in types_of(arguments)
        known = [self._described(channel) for channel in self.channels if is_listed]
        shown = [channel for channel in known if not (flag(arguments, "exclude_archived") and channel["is_archived"])]
        page, cursor = _page_of(shown, arguments)
        return {"channels": page, "response_metadata": {"next_cursor": cursor}}

    def _described(self, channel: str) -> dict[str, Any]:
        return {
            "id": channel,
            "name": self.channels[channel],
            "is_member": channel in self.members,
            "is_archived": channel in self.archived,
        }

    def history(self, arguments: Fields) -> dict[str, Any]:
        """Handle conversations.history: newest first, without replies, except those shown in the channel too."""
        channel = self._joined(arguments)
        top = [
            message
            for message in self.messages.values()
            if message.channel == channel and (message.thread_ts is None or message.broadcast)
        ]
        return self._page(sorted(top, key=lambda message: message.ts, reverse=True), arguments)

    def thread_page(self, arguments: Fields) -> dict[str, Any]:
        """Handle conversations.replies: the parent, then its replies, oldest first."""
        parent = self.messages.get((self._joined(arguments), required(arguments, "ts")))
        if parent is None:
            raise RefusedError("thread_not_found")
        return self._page([parent, *self.replies(parent)], arguments)

    def announce_upload(self, arguments: Fields) -> dict[str, Any]:
        """Handle files.getUploadURLExternal; the server adds the URL."""
        length = integer(arguments, "length", 0)
        if length < 1:
            raise RefusedError("missing_argument")
        upload = Upload(f"F{len(self.uploads) + 1:010d}", required(arguments, "filename"), length)
        self.uploads[upload.id] = upload
        return {"file_id": upload.id}

    def share_uploads(self, arguments: Fields) -> dict[str, Any]:
        """Handle files.completeUploadExternal: in a channel or a thread of it, if one is named."""
        files = json_argument(arguments, "files", "invalid_arguments")
        if (
            not isinstance(files, list)
            or not files
            or not all(isinstance(file, dict) and "id" in file for file in files)
        ):
            raise RefusedError("invalid_arguments", ["must be an array of files with ids [json-pointer:/files]"])
        for file in files:
            upload = self.uploads.get(file["id"])
            if upload is None or upload.content is None:
                raise RefusedError("file_not_found")
            upload.title = file.get("title") or upload.filename
        if arguments.get("thread_ts") and not arguments.get("channel_id"):
            raise RefusedError("invalid_arguments", ["thread_ts needs a channel_id [json-pointer:/thread_ts]"])
        if arguments.get("channel_id"):
            given = {**arguments, "text": arguments.get("initial_comment") or " "}
            self.post(self.channel(arguments["channel_id"], named=False), given).files = [file["id"] for file in files]
        return {"files": [{"id": file["id"], "title": self.uploads[file["id"]].title} for file in files]}

    def _joined(self, arguments: Fields) -> str:
        channel = self.channel(required(arguments, "channel"), named=False)
        if channel not in self.members:
            raise RefusedError("not_in_channel")
        return channel

    def _message(self, arguments: Fields, name: str) -> Message:
        channel = self.channel(required(arguments, "channel"), named=False)
        message = self.messages.get((channel, required(arguments, name)))
        if message is None:
            raise RefusedError("message_not_found")
        return message

    def _thread(self, channel: str, ts: Any) -> str | None:
        """Return the thread to reply in. Stricter than Slack, which hides a reply to a deleted message."""
        if ts is None:
            return None
        parent = self.messages.get((channel, str(ts)))
        if parent is None:
            raise RefusedError("thread_not_found")
        if parent.thread_ts is not None:
            raise RefusedError("cannot_reply_to_message")
        return parent.ts

    def _next_ts(self) -> str:
        self._last_ts = max(time.time_ns() // 1000, self._last_ts + 1)
        return f"{self._last_ts // 1_000_000}.{self._last_ts % 1_000_000:06d}"

    def _page(self, messages: Sequence[Message], arguments: Fields) -> dict[str, Any]:
        """Return a page between oldest and latest (both left out unless inclusive), with a cursor for the next."""
        oldest, latest = timestamp(arguments, "oldest", 0), timestamp(arguments, "latest", 9e9)
        edges = () if flag(arguments, "inclusive") else (oldest, latest)
        within = [
            message for message in messages if oldest <= float(message.ts) <= latest and float(message.ts) not in edges
        ]
        page, cursor = _page_of(within, arguments)
        metadata = flag(arguments, "include_all_metadata")
        return {
            "messages": [self._shown(message, metadata=metadata) for message in page],
            "has_more": bool(cursor),
            "response_metadata": {"next_cursor": cursor},
        }

    def _shown(self, message: Message, *, metadata: bool = True) -> dict[str, Any]:
        shown: dict[str, Any] = {"type": "message", "ts": message.ts, "text": message.text, **BOT}
        replies = self.replies(message)
        if replies or message.thread_ts:
            shown["thread_ts"] = message.thread_ts or message.ts
        if message.broadcast:
            shown["subtype"] = "thread_broadcast"
        if replies:
            shown |= {"reply_count": len(replies), "latest_reply": replies[-1].ts}
        if message.edits:
            shown["edited"] = {"user": BOT["user"], "ts": message.ts}
        if message.files:
            files = (self.uploads[file] for file in message.files)
            shown["files"] = [{"id": file.id, "name": file.filename, "title": file.title} for file in files]
        optional = {
            "blocks": message.blocks,
            "attachments": message.attachments,
            "metadata": message.metadata if metadata else None,
        }
        return shown | {name: value for name, value in optional.items() if value}


def _page_of(items: Sequence[T], arguments: Fields) -> tuple[Sequence[T], str]:
    """Return the page that limit and cursor ask for, and the cursor of the next; empty after the last."""
    limit = integer(arguments, "limit", 100)
    if not 1 <= limit <= 999:
        raise RefusedError("invalid_limit")
    try:
        start = int(base64.b64decode(arguments.get("cursor") or "MA==", validate=True))
    except ValueError:
        raise RefusedError("invalid_cursor") from None
    following = base64.b64encode(str(start + limit).encode()).decode()
    return items[start : start + limit], following if start + limit < len(items) else ""


_METHODS: Mapping[str, Callable[[Workspace, Fields], dict[str, Any]]] = {
    "auth.test": Workspace.who,
    "chat.getPermalink": Workspace.permalink,
    "chat.postEphemeral": Workspace.post_ephemeral,
    "chat.postMessage": Workspace.post_message,
    "chat.update": Workspace.update,
    "conversations.history": Workspace.history,
    "conversations.info": Workspace.describe_channel,
    "conversations.join": Workspace.join,
    "conversations.list": Workspace.list_channels,
    "conversations.replies": Workspace.thread_page,
    "files.completeUploadExternal": Workspace.share_uploads,
    "files.getUploadURLExternal": Workspace.announce_upload,
}
