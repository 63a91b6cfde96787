"""Which lines of a block match which pattern: RE2, in Arrow, sifts a block's lines at once; Python's re decides.

RE2 takes a few ns a line where Python's re takes a few us for each pattern. Where RE2 could judge otherwise than re
does, the line passes the sieve: nothing is missed, it only costs more.
"""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.sources.logs.lines import MAX_LINE, begins_entry
from agent.sources.logs.patterns import Pattern

_NAMED_GROUP = re.compile(r"(\\.)|\(\?P<\w+>", re.DOTALL)
_OTHERWISE = re.compile(r"\{,\d|\[:")
"""What RE2 reads otherwise than re does; most of what only re knows RE2 refuses."""

_ODD = r"[\r\x0b\x1c-\x1f\x80-\xff]"
"""Bytes of which the two differ: whether they are space, letters or part of one."""


class Line(NamedTuple):
    """A line that matched. header: the first line of its entry, itself where it is one; "" where that is not known."""

    pattern: Pattern
    match: re.Match[str]
    text: str
    header: str


class Sieve:
    """The patterns as one expression for RE2, and each of them as one."""

    def __init__(self, shipped: Sequence[Pattern], configured: Sequence[Pattern] = ()) -> None:
        """shipped: written so that RE2 finds in bytes all that re finds in text. configured: by users, in any way."""
        plain = [(one, _for_re2(one.regex.pattern)) for one in shipped]
        ours = [(one, _for_re2(one.regex.pattern)) for one in configured]
        self._patterns = [*plain, *((one, text and f"(?:{text})|{_ODD}") for one, text in ours)]
        texts = [text for _, text in self._patterns]
        self._expression = None if None in texts else "|".join(f"(?:{text})" for text in texts)
        if self._expression is not None and not _compiles(self._expression):
            self._expression = None

    @property
    def fast(self) -> bool:
        """Whether RE2 knows all the patterns; else every line is looked at by re."""
        return self._expression is not None

    def lines(self, block: bytes, encoding: str, header: str) -> tuple[list[Line], str]:
        """The lines that match, and the header of the block's last entry.

        block: complete lines, ASCII being ASCII. header: of the entry that the block begins in, "" where unknown.
        """
        if b"\r\n" in block:
            block = block.replace(b"\r\n", b"\n")
        if not block.endswith(b"\n"):
            block += b"\n"
        every = pc.split_pattern(pa.array([block], pa.large_binary()), "\n").values.slice(0, block.count(b"\n"))

        def text(index: int) -> str:
            raw: bytes = every[index].as_py()
            return raw[: 4 * MAX_LINE].decode(encoding, "replace")[:MAX_LINE]

        found: list[Line] = []
        last = -1
        for index, patterns in self._sifted(every):
            line = text(index)
            matches = {one.name: (one, match) for one in patterns if (match := one.regex.search(line))}
            if matches:
                header, last = _header(text, index, last, header), index
                found += [Line(pattern, match, line, header) for pattern, match in matches.values()]
        return found, _header(text, len(every) - 1, last, header)

    def _sifted(self, every: Any) -> list[tuple[int, list[Pattern]]]:
        """The indexes of the lines that may match, and which patterns."""
        places = pa.array(range(len(every)))
        if self._expression is not None:
            places = pc.indices_nonzero(pc.match_substring_regex(every, self._expression))
            if not len(places):
                return []
        lines = every.take(places)
        may: dict[int, list[Pattern]] = {}
        for pattern, text in self._patterns:
            hits = places if text is None else places.filter(pc.match_substring_regex(lines, text))
            for index in hits.to_pylist():
                may.setdefault(index, []).append(pattern)
        return sorted(may.items(), key=itemgetter(0))


def _header(text: Any, index: int, known: int, header: str) -> str:
    """The first line of the entry that the line belongs to; the header given is that of the line `known` before it."""
    for one in range(index, known, -1):
        line: str = text(one)
        if begins_entry(line):
            return line
    return header


def _for_re2(pattern: str) -> str | None:
    """The pattern without its groups' names, of which RE2 takes each once; None where RE2 cannot have it."""
    names = 0

    def unnamed(match: re.Match[str]) -> str:
        nonlocal names
        if match[1]:
            return match[1]
        names += 1
        return "(?:"

    plain = _NAMED_GROUP.sub(unnamed, pattern)
    if names != len(re.compile(pattern).groupindex) or _OTHERWISE.search(plain) or not _compiles(plain):
        return None
    return plain


def _compiles(expression: str) -> bool:
    try:
        pc.match_substring_regex(pa.array([b""], pa.large_binary()), expression)
    except pa.ArrowInvalid:
        return False
    return True
