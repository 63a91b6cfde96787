"""Finds the lines of a block that match a pattern: RE2 in Arrow filters all lines at once, then RE2 itself decides.

Arrow takes a few ns a line, a call for each line and pattern a few us. Arrow sees bytes: a line on which bytes and
characters may differ passes its filter.
"""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.sources.logs.files import MAX_LINE
from agent.sources.logs.patterns import Pattern
from agent.sources.logs.timestamps import begins_entry

_NAMED_GROUP = re.compile(r"(\\.)|\(\?P<\w+>", re.DOTALL)
_NOT_ASCII = r"[\x80-\xff]"


class MatchedLine(NamedTuple):
    """A line that matched. header: the first line of its entry (itself if it is the first), "" if unknown."""

    pattern: Pattern
    match: Any
    text: str
    header: str


class Matcher:
    """Patterns as expressions for Arrow, each by itself and all as one."""

    def __init__(self, shipped: Sequence[Pattern], configured: Sequence[Pattern] = ()) -> None:
        """Take the patterns.

        shipped: written so that what they match in text is found in bytes, too. configured: any patterns of users.
        """
        self._patterns = [
            *((pattern, _unnamed(pattern.regex)) for pattern in shipped),
            *((pattern, f"(?:{_unnamed(pattern.regex)})|{_NOT_ASCII}") for pattern in configured),
        ]
        expression = "|".join(f"(?:{text})" for _, text in self._patterns)
        self._expression = expression if _compiles(expression) else None  # too large for RE2

    def find_lines(self, block: bytes, encoding: str, header: str) -> tuple[list[MatchedLine], str]:
        """Return the lines that match, and the header of the block's last entry.

        block: complete lines in an ASCII-compatible encoding. header: of the entry in which the block begins, "" if
        unknown.
        """
        if b"\r\n" in block:
            block = block.replace(b"\r\n", b"\n")
        if not block.endswith(b"\n"):
            block += b"\n"
        lines = pc.split_pattern(pa.array([block], pa.large_binary()), "\n").values.slice(0, block.count(b"\n"))

        def decode(index: int) -> str:
            raw: bytes = lines[index].as_py()
            return raw[: 4 * MAX_LINE].decode(encoding, "replace")[:MAX_LINE]

        found: list[MatchedLine] = []
        last = -1
        for index, patterns in self._filter(lines):
            text = decode(index)
            matches = {pattern.name: (pattern, match) for pattern in patterns if (match := pattern.regex.search(text))}
            if matches:
                header, last = _find_header(decode, index, last, header), index
                found += [MatchedLine(pattern, match, text, header) for pattern, match in matches.values()]
        return found, _find_header(decode, len(lines) - 1, last, header)

    def _filter(self, lines: Any) -> list[tuple[int, list[Pattern]]]:
        """Return the indexes of the lines that may match, and which patterns may."""
        indexes = pa.array(range(len(lines)))
        if self._expression is not None:
            indexes = pc.indices_nonzero(pc.match_substring_regex(lines, self._expression))
            if not len(indexes):
                return []
        candidates = lines.take(indexes)
        patterns_by_line: dict[int, list[Pattern]] = {}
        for pattern, text in self._patterns:
            hits = indexes.filter(pc.match_substring_regex(candidates, text))
            for index in hits.to_pylist():
                patterns_by_line.setdefault(index, []).append(pattern)
        return sorted(patterns_by_line.items(), key=itemgetter(0))


def _find_header(decode: Any, index: int, known: int, header: str) -> str:
    """Return the first line of the entry that a line belongs to; `header` is that of the earlier line `known`."""
    for earlier in range(index, known, -1):
        line: str = decode(earlier)
        if begins_entry(line):
            return line
    return header


def _unnamed(regex: Any) -> str:
    """Return the pattern without group names, which an expression may have only once each.

    If something else looks like a name, the empty pattern, which matches every line.
    """
    text, count = _NAMED_GROUP.subn(lambda match: match[1] or "(?:", regex.pattern)
    escapes = sum(match[1] is not None for match in _NAMED_GROUP.finditer(regex.pattern))
    return text if count - escapes == len(regex.groupindex) else ""


def _compiles(expression: str) -> bool:
    try:
        pc.match_substring_regex(pa.array([b""], pa.large_binary()), expression)
    except pa.ArrowInvalid:
        return False
    return True
