"""What the methods of Slack's Web API need and take, checked as Slack checks it, with its error codes. No state."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from testbed import blockkit

Fields = Mapping[str, Any]

_COLOR = re.compile(r"#?[0-9A-Fa-f]{6}|good|warning|danger")


SCOPES: Mapping[str, str] = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "conversations.history": "channels:history",
    "conversations.join": "channels:join",
    "conversations.list": "channels:read",
    "conversations.replies": "channels:history",
    "files.completeUploadExternal": "files:write",
    "files.getUploadURLExternal": "files:write",
}
"""The scope that each method needs, of those that need one in a public channel."""


class RefusedError(Exception):
    """Slack answers `ok: false` with this error; problems are sentences that point into the arguments."""

    def __init__(self, error: str, problems: Iterable[str] = ()) -> None:
        super().__init__(error)
        self.error = error
        self.problems = list(problems)


def content_of(arguments: Fields, most: int) -> dict[str, Any]:
    """The text (of `most` characters), blocks, attachments and metadata given, checked. Raises RefusedError."""
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
        _check_blocks(content["blocks"], "/blocks", "invalid_blocks")
    if arguments.get("attachments") is not None:
        content["attachments"] = json_argument(arguments, "attachments", "invalid_attachments")
        _check_attachments(content["attachments"])
    if arguments.get("metadata") is not None:
        content["metadata"] = json_argument(arguments, "metadata", "invalid_metadata_format")
        error = blockkit.metadata_error(content["metadata"])
        if error:
            raise RefusedError(error)
    if not any(content.get(name) for name in ("text", "blocks", "attachments")):
        raise RefusedError("no_text")
    return content


def _check_blocks(blocks: Any, pointer: str, error: str) -> None:
    problems = blockkit.block_problems(blocks, pointer)
    if problems:
        raise RefusedError(error, problems)
    if blockkit.characters(blocks) > blockkit.BLOCK_CHARACTERS:
        raise RefusedError("msg_blocks_too_long")


def _check_attachments(attachments: Any) -> None:
    if not isinstance(attachments, list) or not all(isinstance(one, dict) for one in attachments):
        raise RefusedError("invalid_attachments")
    if len(attachments) > 100:
        raise RefusedError("too_many_attachments")
    for index, one in enumerate(attachments):
        pointer = f"/attachments/{index}"
        unknown = sorted(one.keys() - {"color", "fallback", "blocks", "text"})
        if unknown:
            raise RefusedError("invalid_attachments", [f"additional property: {unknown[0]} [json-pointer:{pointer}]"])
        if not _COLOR.fullmatch(str(one.get("color", "good"))):
            raise RefusedError("invalid_attachments", [f"must be a colour [json-pointer:{pointer}/color]"])
        _check_blocks(one.get("blocks", []), f"{pointer}/blocks", "invalid_attachments")


def required(arguments: Fields, name: str) -> str:
    """An argument that must be there. Raises RefusedError."""
    value = arguments.get(name)
    if value in (None, ""):
        raise RefusedError("invalid_arguments", [f"missing required field: {name}"])
    return str(value)


def integer(arguments: Fields, name: str, default: int) -> int:
    """A whole number, which a form gives as text. Raises RefusedError."""
    try:
        return int(arguments.get(name) or default)
    except ValueError:
        raise RefusedError("invalid_arguments", [f"must be an integer [json-pointer:/{name}]"]) from None


def timestamp(arguments: Fields, name: str, default: float) -> float:
    """A message's ts, in seconds. Raises RefusedError."""
    try:
        return float(arguments.get(name) or default)
    except ValueError:
        raise RefusedError(f"invalid_ts_{name}") from None


def flag(arguments: Fields, name: str) -> bool:
    """A truth value, which a form gives as 1 or true."""
    return arguments.get(name) in (True, 1, "1", "true")


def json_argument(arguments: Fields, name: str, error: str) -> Any:
    """An argument that is JSON text in a form and itself in a JSON body. Raises RefusedError."""
    value = arguments.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise RefusedError(error) from None
