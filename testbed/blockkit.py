"""What Slack accepts inside a message: blocks, attachments, text and metadata; each problem with its place.

Limits are those of Slack's Block Kit reference (2026) and `msg_blocks_too_long` as seen in slackapi/bolt-js issue 2509.
Stricter than Slack on purpose: only the block types below are known, attachments take no legacy fields but `fallback`
and `text`, and text must be escaped (Slack accepts it and displays something else).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from typing import Any, NamedTuple, TypeAlias

BLOCKS = 50
ATTACHMENTS = 100
BLOCK_CHARACTERS = 13_000
METADATA_BYTES = 8_000

Problems: TypeAlias = Iterator[str]
Check: TypeAlias = Callable[[Any, str], Problems]

_ENTITY = re.compile(r"&(?:amp|lt|gt);")
_CONTROL = re.compile(r"<(?:https?://|mailto:|@[UW]|#C|![a-z])[^<>]*>")
_QUOTE = re.compile(r"^(?:>>>|>)", re.MULTILINE)
_NAME = re.compile(r"[\w.:-]{1,255}")
_SCALAR = (str, int, float)


class Field(NamedTuple):
    """A property of a block: how it is checked, and whether it must be there."""

    check: Check
    required: bool = False


def block_problems(blocks: Any, pointer: str = "/blocks") -> list[str]:
    """Return what Slack would refuse about these blocks, in its words; empty if nothing."""
    return list(_blocks(blocks, pointer))


def attachment_problems(attachments: Any) -> list[str]:
    """Return what Slack would refuse about these attachments, in its words; empty if nothing."""
    if not isinstance(attachments, list) or not all(isinstance(attachment, dict) for attachment in attachments):
        return [_at("/attachments", "must be an array of objects")]
    return [
        problem
        for index, attachment in enumerate(attachments)
        for problem in _attachment(attachment, f"/attachments/{index}")
    ]


def text_problem(text: str) -> str | None:
    """Return what is wrong with mrkdwn text: an &, < or > neither escaped nor part of a link, mention or quote."""
    rest = _QUOTE.sub("", _CONTROL.sub("", _ENTITY.sub("", text)))
    found = re.search(r"[&<>]", rest)
    return f"{found[0]!r} must be escaped" if found else None


def metadata_error(metadata: Any) -> str | None:
    """Return Slack's error for this metadata, if any: it takes a type and a payload of flat values, 8 kB in all."""
    match metadata:
        case {"event_type": str(name), "event_payload": dict(payload), **rest} if not rest and _NAME.fullmatch(name):
            if not all(_flat(value) for value in payload.values()):
                return "invalid_metadata_format"
        case _:
            return "invalid_metadata_format"
    return "metadata_too_large" if len(json.dumps(metadata).encode()) > METADATA_BYTES else None


def characters(blocks: Any) -> int:
    """Return how many characters of text these blocks and attachments have."""
    return sum(len(text) for text in _texts(blocks))


def words(blocks: Any) -> str:
    """Return the text of these blocks and attachments as a reader sees it, one line per text object."""
    return "\n".join(unescape(text) for text in _texts(blocks))


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _texts(child)
    elif isinstance(node, Mapping):
        text = node.get("text")
        if isinstance(text, str):
            yield text
        for name in ("title", "text", "fields", "elements", "accessory", "blocks"):
            if not isinstance(node.get(name), str):
                yield from _texts(node.get(name))


def _flat(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, dict) and _flat(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(item, _SCALAR) for item in value.values())
    return isinstance(value, _SCALAR)


def _at(pointer: str, problem: str) -> str:
    return f"{problem} [json-pointer:{pointer}]"


def _string(most: int, pattern: str = "") -> Check:
    """Return a string of 1 to `most` characters."""

    def check(value: Any, pointer: str) -> Problems:
        if not isinstance(value, str):
            yield _at(pointer, "must be a string")
        elif not value:
            yield _at(pointer, "must be more than 0 characters")
        elif len(value) > most:
            yield _at(pointer, f"must be less than {most + 1} characters")
        elif pattern and not re.fullmatch(pattern, value):
            yield _at(pointer, f"must match {pattern}")

    return check


def _boolean(value: Any, pointer: str) -> Problems:
    if not isinstance(value, bool):
        yield _at(pointer, "must be a boolean")


def _text(most: int, *types: str) -> Check:
    """Return a text object of 1 to `most` characters."""

    def check(value: Any, pointer: str) -> Problems:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in types:
            yield _at(pointer, f"must be a text object of type {' or '.join(types)}")
            return
        flag = "emoji" if kind == "plain_text" else "verbatim"
        yield from _object({"text": Field(_string(most), required=True), flag: Field(_boolean)})(value, pointer)
        problem = text_problem(str(value.get("text"))) if kind == "mrkdwn" else None
        if problem:
            yield _at(f"{pointer}/text", problem)

    return check


def _object(fields: Mapping[str, Field]) -> Check:
    """Return an object with a type, these properties and no others."""

    def check(value: Any, pointer: str) -> Problems:
        for name, field in fields.items():
            if name in value:
                yield from field.check(value[name], f"{pointer}/{name}")
            elif field.required:
                yield _at(pointer, f"missing required field: {name}")
        for name in sorted(value.keys() - fields.keys() - {"type"}):
            yield _at(pointer, f"additional property: {name}")

    return check


def _typed(types: Mapping[str, Check]) -> Check:
    """Return an object whose type says how the rest of it is checked."""

    def check(value: Any, pointer: str) -> Problems:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in types:
            yield _at(f"{pointer}/type", f"unsupported type: {kind}")
        else:
            yield from types[kind](value, pointer)

    return check


def _items(most: int, item: Check) -> Check:
    """Return an array of 1 to `most` items."""

    def check(value: Any, pointer: str) -> Problems:
        if not isinstance(value, list):
            yield _at(pointer, "must be an array")
            return
        if not value:
            yield _at(pointer, "no less than 1 items allowed")
        if len(value) > most:
            yield _at(pointer, f"no more than {most} items allowed")
        for index, member in enumerate(value):
            yield from item(member, f"{pointer}/{index}")

    return check


def _unique(name: str, items: Check) -> Check:
    """Return an array whose items share no `name`."""

    def check(value: Any, pointer: str) -> Problems:
        yield from items(value, pointer)
        seen = set()
        for index, member in enumerate(value if isinstance(value, list) else ()):
            given = member.get(name) if isinstance(member, dict) else None
            if not isinstance(given, str):
                continue
            if given in seen:
                yield _at(f"{pointer}/{index}/{name}", f'`{name}` "{given}" already exists')
            seen.add(given)

    return check


def _section(value: Any, pointer: str) -> Problems:
    yield from _object(_SECTION)(value, pointer)
    if not value.keys() & {"text", "fields"}:
        yield _at(pointer, "missing required field: text")


_ID, _URL = _string(255), _string(3000, r"https?://\S+")
_BUTTON = _object(
    {
        "text": Field(_text(75, "plain_text"), required=True),
        "action_id": Field(_ID),
        "url": Field(_URL),
        "value": Field(_string(2000)),
        "style": Field(_string(10, "primary|danger")),
        "accessibility_label": Field(_string(75)),
    },
)
_IMAGE = {"image_url": Field(_URL, required=True), "alt_text": Field(_string(2000), required=True)}
_CONTEXT = _typed(
    {
        "plain_text": _text(3000, "plain_text"),
        "mrkdwn": _text(3000, "mrkdwn"),
        "image": _object(_IMAGE),
    },
)
_BLOCK_ID = {"block_id": Field(_ID)}
_SECTION = _BLOCK_ID | {
    "text": Field(_text(3000, "mrkdwn", "plain_text")),
    "fields": Field(_items(10, _text(2000, "mrkdwn", "plain_text"))),
    "accessory": Field(_typed({"button": _BUTTON, "image": _object(_IMAGE)})),
    "expand": Field(_boolean),
}
_ACTIONS = _unique("action_id", _items(25, _typed({"button": _BUTTON})))
_BLOCK = _typed(
    {
        "actions": _object(_BLOCK_ID | {"elements": Field(_ACTIONS, required=True)}),
        "context": _object(_BLOCK_ID | {"elements": Field(_items(10, _CONTEXT), required=True)}),
        "divider": _object(_BLOCK_ID),
        "header": _object(_BLOCK_ID | {"text": Field(_text(150, "plain_text"), required=True)}),
        "image": _object(_BLOCK_ID | _IMAGE | {"title": Field(_text(2000, "plain_text"))}),
        "section": _section,
    },
)
_ATTACHMENT = {
    "color": Field(_string(7, r"#?[0-9A-Fa-f]{6}|good|warning|danger")),
    "fallback": Field(_string(4000)),
    "text": Field(_string(4000)),
}


def _attachment(value: Mapping[str, Any], pointer: str) -> Problems:
    """Return an attachment has blocks, or else a text or a fallback to show."""
    if "type" in value:
        yield _at(pointer, "additional property: type")
    yield from _object(_ATTACHMENT | {"blocks": Field(_blocks)})(value, pointer)
    if not value.get("blocks") and not value.get("text") and not value.get("fallback"):
        yield _at(pointer, "missing required field: fallback")
    problem = text_problem(str(value.get("text", "")))
    if problem:
        yield _at(f"{pointer}/text", problem)


def _blocks(value: Any, pointer: str) -> Problems:
    if value != []:
        yield from _unique("block_id", _items(BLOCKS, _BLOCK))(value, pointer)
