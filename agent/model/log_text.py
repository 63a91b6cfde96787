"""The lines of logs in findings: shortened, counted, and grouped by what they say."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import re2

from agent.model.findings import Finding

MOST_LINES = 10
"""How many different lines of one millisecond a finding keeps; the others are counted together under `OTHERS`."""

OTHERS = "other lines"

_LINE_LENGTH = 160
_TIME = re.compile(r"\s*\[?\d{4}-\d\d-\d\d[ T]\d[^\s\]]*\]?\s*")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def compile_pattern(pattern: str) -> Any:
    """Return the pattern compiled by RE2, which takes time linear in a line's length. Raises ValueError if it cannot.

    Its interface is that of `re.Pattern`.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(reason) from None


def shorten_line(line: str, length: int = _LINE_LENGTH) -> str:
    """Return the line, cut to `length` characters."""
    return line if len(line) <= length else f"{line[: length - 1]}…"


def strip_time(text: str) -> str:
    """Return the line without its time, shortened; of an entry and a line below it the latter, which matched."""
    line = text.rpartition("\n")[2]
    time = _TIME.match(line)
    return shorten_line(" ".join(line[time.end() if time else 0 :].split()) or line)


def count_lines(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each line was written, in order; lines that differ only in numbers are alike."""
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for text in map(strip_time, texts):
        shape = shape_of(text)
        line = first.setdefault(shape, text) if shape in first or len(first) < MOST_LINES else OTHERS
        counts[line] = counts.get(line, 0) + 1
    return counts


def shape_of(line: str) -> str:
    """Return what lines that differ only in numbers have in common."""
    return _NUMBER.sub("0", line)


def lines_of(finding: Finding) -> Mapping[str, int]:
    """Return how often each line was written at the finding's moment; empty if it is not about lines of a log."""
    lines = finding.current.get("lines")
    return lines if isinstance(lines, Mapping) else {}


def first_line(finding: Finding) -> str:
    """Return the finding's first line, or "?" if it is not about lines of a log."""
    return next(iter(lines_of(finding)), "?")


def describe_lines(findings: Iterable[Finding]) -> str:
    """Return how many lines the findings are about and how many differ in more than numbers; empty for one line."""
    counts = [lines_of(finding) for finding in findings]
    total = sum(sum(lines.values()) for lines in counts)
    different = len({shape_of(line) for line in chain.from_iterable(counts)})
    return f"{total:,} lines, {different} of them different" if total > 1 else ""


def group_alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings in order, those of one rule and subject whose lines differ only in numbers as one group."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        shapes = tuple(map(shape_of, lines_of(finding)))
        key = (finding.rule, finding.key[1], shapes) if shapes else finding.key
        groups.setdefault(key, []).append(finding)
    return list(groups.values())
