"""The arguments of Slack's Web API methods, checked as Slack checks them, with its error codes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from testbed import blockkit

Fields = Mapping[str, Any]

SCOPES: Mapping[str, str] = {
    "chat.postEphemeral": "chat:write",
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "conversations.history": "channels:history",
    "conversations.info": "channels:read",
    "conversations.join": "channels:join",
    "conversations.list": "channels:read",
    "conversations.replies": "channels:history",
    "files.completeUploadExternal": "files:write",
    "files.getUploadURLExternal": "files:write",
}
"""The scope that each method needs in a public channel."""

_LISTED: Mapping[str, str] = {"public_channel": "channels:read", "private_channel": "groups:read"}
"""The scope that conversations.list needs for each type of channel."""


class RefusedError(Exception):
    """A request that Slack refuses with this error code; problems: sentences that point into the arguments."""

    def __init__(self, error: str, problems: Iterable[str] = ()) -> None:
        super().__init__(error)
        self.error = error
        self.problems = list(problems)


def content_of(arguments: Fields, most: int) -> dict[str, Any]:
    """Return the text (of `most` characters), blocks, attachments and metadata, checked. Raises RefusedError."""
    content: dict[str, Any] = {}
    if arguments.get("text") is not None:
        content["text"] = str(arguments["text"])
        if len(content["text"]) > most:
            raise RefusedError("msg_too_long")
        problem = blockkit.text_problem(content["text"])
        if problem:
            raise RefusedError("invalid_arguments", [f"{problem} [json-pointer:/text]"])
    if arguments.get("blocks") is not None:
        content["blocks"] = json_argument(arguments, "blocks", "invalid_blocks_format")
        problems = blockkit.block_problems(content["blocks"])
        if problems:
            raise RefusedError("invalid_blocks", problems)
    if arguments.get("attachments") is not None:
        content["attachments"] = json_argument(arguments, "attachments", "invalid_attachments")
        _check_attachments(content["attachments"])
    shown = [*content.get("blocks", ()), *content.get("attachments", ())]
    if blockkit.characters(shown) > blockkit.BLOCK_CHARACTERS:
        raise RefusedError("msg_blocks_too_long")
    if arguments.get("metadata") is not None:
        content["metadata"] = json_argument(arguments, "metadata", "invalid_metadata_format")
        error = blockkit.metadata_error(content["metadata"])
        if error:
            raise RefusedError(error)
    if not any(content.get(name) for name in ("text", "blocks", "attachments")):
        raise RefusedError("no_text")
    return content


def _check_attachments(attachments: Any) -> None:
    if isinstance(attachments, list) and len(attachments) > blockkit.ATTACHMENTS:
        raise RefusedError("too_many_attachments")
    problems = blockkit.attachment_problems(attachments)
    if problems:
        raise RefusedError("invalid_attachments", problems)


def types_of(arguments: Fields) -> list[str]:
    """Return the types of channels that are to be listed. Raises RefusedError."""
    types = str(arguments.get("types") or "public_channel").split(",")
    if not set(types) <= set(_LISTED):
        raise RefusedError("invalid_types")
    return types


def scopes_of(method: str, arguments: Fields) -> list[str]:
    """Return the scopes of which a call needs each; a list of channels those of all its types. Raises RefusedError."""
    if method == "conversations.list":
        return [_LISTED[kind] for kind in types_of(arguments)]
    return [SCOPES[method]] if method in SCOPES else []


def required(arguments: Fields, name: str) -> str:
    """Return a required argument. Raises RefusedError."""
    value = arguments.get(name)
    if value in (None, ""):
        raise RefusedError("invalid_arguments", [f"missing required field: {name}"])
    return str(value)


def integer(arguments: Fields, name: str, default: int) -> int:
    """Return a whole number, which is text in a form. Raises RefusedError."""
    try:
        return int(arguments.get(name) or default)
    except ValueError:
        raise RefusedError("invalid_arguments", [f"must be an integer [json-pointer:/{name}]"]) from None


def timestamp(arguments: Fields, name: str, default: float) -> float:
    """Return a message's ts, in seconds. Raises RefusedError."""
    try:
        return float(arguments.get(name) or default)
    except ValueError:
        raise RefusedError(f"invalid_ts_{name}") from None


def flag(arguments: Fields, name: str) -> bool:
    """Return a truth value, which is 1 or true in a form."""
    return arguments.get(name) in (True, 1, "1", "true")


def json_argument(arguments: Fields, name: str, error: str) -> Any:
    """Return an argument that is JSON text in a form and an object in a JSON body. Raises RefusedError."""
    value = arguments.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise RefusedError(error) from None
