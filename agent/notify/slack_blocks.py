"""A report in Slack's Block Kit: a header, and a bar in the severity's colour beside the rest."""

from collections.abc import Sequence
from typing import Any

from agent.model.findings import Severity
from agent.render.report import Report

HEADER_LIMIT = 150
TEXT_LIMIT = 2_900
"""Characters in a text as sent: Slack refuses a section's text over 3,000."""

FALLBACK_LIMIT = 150
"""Characters of the text that notifications show: what fits a phone's lock screen."""

# Slack refuses blocks whose texts have more than about 13,200 characters in all (msg_blocks_too_long).
_TOTAL_LIMIT = 12_000
_CONTEXT_LIMIT = 1_000
PLAIN_LIMIT = 3_900
"""Characters of a message without blocks."""

LAYOUT_REFUSED = frozenset(
    {
        *("invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"),
        *("invalid_attachments", "too_many_attachments", "attachment_payload_limit_exceeded", "invalid_payload"),
    }
)
"""Slack's codes for a message whose text alone it would take."""

_SIGNS = {Severity.CRITICAL: "🔴", Severity.WARNING: "🟠", Severity.INFO: "🔵"}
_COLOURS = {Severity.CRITICAL: "#d92d20", Severity.WARNING: "#f79009", Severity.INFO: "#2e90fa"}
_RESOLVED_SIGN, _RESOLVED_COLOUR = "🟢", "#12b76a"
_VOID_SIGN, _VOID_COLOUR = "⚪", "#98a2b3"


def content_of(report: Report, buttons: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the message's text, blocks and attachments, all within Slack's limits. buttons: blocks below the rest."""
    sign, colour = _look(report)
    headline = f"{report.headline}{report.reference}"
    shown = f"{sign} {headline}"
    fits = len(shown) <= HEADER_LIMIT
    room = HEADER_LIMIT - len(report.reference)
    header = shown if fits else f"{_cut(f'{sign} {report.headline}', room)}{report.reference}"
    header_block = {"type": "header", "text": {"type": "plain_text", "text": header, "emoji": True}}
    return {
        "text": clipped(headline, FALLBACK_LIMIT),
        "blocks": [header_block],
        "attachments": [
            {
                "color": colour,
                "fallback": clipped(headline, FALLBACK_LIMIT),
                "blocks": [*_body(report, fits=fits), *buttons],
            }
        ],
    }


def plain_content_of(report: Report) -> dict[str, Any]:
    """Return the message as text alone, for a Slack that refuses its layout."""
    return {"text": clipped("\n".join(report.lines()), PLAIN_LIMIT), "blocks": [], "attachments": []}


def _look(report: Report) -> tuple[str, str]:
    """Return the sign and the colour of the bar."""
    if report.state in ("MERGED", "WITHDRAWN"):
        return _VOID_SIGN, _VOID_COLOUR
    if report.is_resolved:
        return _RESOLVED_SIGN, _RESOLVED_COLOUR
    return _SIGNS[report.severity], _COLOURS[report.severity]


def _body(report: Report, *, fits: bool) -> list[dict[str, Any]]:
    """Return the blocks below the header. fits: whether the header has the whole title, which must not be lost."""
    texts: list[tuple[str, tuple[str, ...]]] = [("", (report.paragraph,) if fits else (report.title, report.paragraph))]
    if report.highlights:
        texts.append(("", tuple(f"• {line}" for line in report.highlights)))
    if report.timeline:
        texts.append(("Timeline (UTC)", tuple(map(_with_code, report.timeline_lines))))
    texts += report.sections()
    room = (_TOTAL_LIMIT - HEADER_LIMIT - _CONTEXT_LIMIT) // len(texts)
    blocks = []
    for heading, lines in texts:
        title = f"*{heading}*\n" if heading else ""
        text = title + clipped("\n".join(line for line in lines if line), min(TEXT_LIMIT, room) - len(title))
        if text:
            blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}})
    context = {"type": "mrkdwn", "text": clipped(report.context, _CONTEXT_LIMIT), "verbatim": True}
    return [*blocks, {"type": "context", "elements": [context]}]


def _with_code(line: str) -> str:
    """Return a row of the timeline with its time in a fixed width."""
    time, gap, text = line.partition("  ")
    return f"`{time}` {text}" if gap else line


def escaped(text: str) -> str:
    """Return text in which Slack sees no markup of its own (mentions, links)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the escaped text in at most `limit` characters; an escape is never cut in two."""
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


def _cut(text: str, limit: int) -> str:
    """Plain text in at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
