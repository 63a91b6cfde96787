"""Finds the lines of a block that match a pattern: RE2, in Arrow, filters all lines at once; Python's re decides.

RE2 takes a few ns a line where Python's re takes a few us for each pattern. Where RE2 could decide otherwise than re
does, the line passes the filter: nothing is missed, it only costs more.
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
_DIFFERENT_IN_RE2 = re.compile(r"\{,\d|\[:")
"""Syntax that RE2 reads otherwise than re does; most of what only re knows RE2 refuses."""

_AMBIGUOUS_BYTES = r"[\r\x0b\x1c-\x1f\x80-\xff]"
"""Bytes on which the two differ: whether they are space, letters or part of one."""


class MatchedLine(NamedTuple):
    """A line that matched. header: the first line of its entry (itself if it is the first), "" if unknown."""

    pattern: Pattern
    match: re.Match[str]
    text: str
    header: str


class Matcher:
    """Patterns compiled for RE2, each by itself and all as one expression."""

    def __init__(self, shipped: Sequence[Pattern], configured: Sequence[Pattern] = ()) -> None:
        """Compile the patterns.

        shipped: written so that RE2 finds in bytes all that re finds in text. configured: any patterns of users.
        """
        for_shipped = [(pattern, _to_re2(pattern.regex.pattern)) for pattern in shipped]
        for_configured = [(pattern, _to_re2(pattern.regex.pattern)) for pattern in configured]
        self._patterns = [
            *for_shipped,
            *((pattern, text and f"(?:{text})|{_AMBIGUOUS_BYTES}") for pattern, text in for_configured),
        ]
        texts = [text for _, text in self._patterns]
        self._expression = None if None in texts else "|".join(f"(?:{text})" for text in texts)
        if self._expression is not None and not _compiles(self._expression):
            self._expression = None

    @property
    def is_fast(self) -> bool:
        """Whether RE2 supports all patterns; otherwise re searches every line."""
        return self._expression is not None

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
            hits = indexes if text is None else indexes.filter(pc.match_substring_regex(candidates, text))
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


def _to_re2(pattern: str) -> str | None:
    """Return the pattern without group names, which RE2 allows only once each; None if RE2 does not support it."""
    group_count = 0

    def remove_name(match: re.Match[str]) -> str:
        nonlocal group_count
        if match[1]:
            return match[1]
        group_count += 1
        return "(?:"

    unnamed = _NAMED_GROUP.sub(remove_name, pattern)
    is_complete = group_count == len(re.compile(pattern).groupindex)
    return unnamed if is_complete and not _DIFFERENT_IN_RE2.search(unnamed) and _compiles(unnamed) else None


def _compiles(expression: str) -> bool:
    try:
        pc.match_substring_regex(pa.array([b""], pa.large_binary()), expression)
    except pa.ArrowInvalid:
        return False
    return True
