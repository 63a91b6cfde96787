"""HTML from values: all text is escaped here, so that a group named <script> is only a name."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from agent.model.text import visible


class Html(str):
    """Markup that is safe to insert: made in this module or from its parts."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return the value as escaped text, on one line; markup stays as it is."""
    return value if isinstance(value, Html) else Html(escape(visible(str(value))))


def element(name: str, *content: object, of: str = "", **attributes: object) -> Html:
    """Return an element. of: its class; other attributes by name, with hyphens for underscores."""
    shown = ({"class": of} if of else {}) | {key.replace("_", "-"): value for key, value in attributes.items()}
    opening = "".join(f' {key}="{escape(visible(str(value)))}"' for key, value in shown.items())
    return Html(f"<{name}{opening}>{''.join(map(text, content))}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Return the parts one after the other."""
    return Html(between.join(map(text, parts)))


def with_code(sentence: str) -> Html:
    """Return a sentence in which what is in backticks is shown as code."""
    parts = sentence.split("`")
    return joined(element("code", part) if index % 2 else part for index, part in enumerate(parts))


class Heading(NamedTuple):
    """A column's heading. kind: `n` for numbers, `wide` for what a phone leaves out, or both."""

    title: str
    kind: str = ""


def table(headings: Sequence[Heading], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table that scrolls by itself if it is too wide."""
    head = element("tr", *(element("th", heading.title, of=heading.kind) for heading in headings))
    body = [
        element("tr", *(element("td", cell, of=heading.kind) for heading, cell in zip(headings, row, strict=True)))
        for row in rows
    ]
    return element("div", element("table", element("thead", head), element("tbody", *body)), of="scroll")


def badge(word: str, kind: str) -> Html:
    """Return a coloured word. kind: critical, warning or good."""
    return element("span", word, of=f"badge {kind}")


def share_bar(share: float, kind: str) -> Html:
    """Return a bar that is filled to a share between 0 and 1. kind: critical, warning or good."""
    width = f"width:{min(max(share, 0.0), 1.0) * 100:.1f}%"
    return element("span", element("i", style=width), of=f"bar {kind}", aria_hidden="true")
