"""Lines of logs in words: what a line says without its time, which lines are alike, what many come to. Pure."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain

from agent.model.findings import Finding

MOST_LINES = 10
"""How many lines that differ are kept of one moment; the others are counted together under `OTHERS`."""

OTHERS = "other lines"

_SHORT = 160
_TIME = re.compile(r"\s*\[?\d{4}-\d\d-\d\d[ T]\d[^\s\]]*\]?\s*")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def said(text: str) -> str:
    """What the line says in short: without its time; of an entry and a line below it the latter, which matched."""
    line = text.rpartition("\n")[2]
    time = _TIME.match(line)
    line = " ".join(line[time.end() if time else 0 :].split()) or line
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


def counted(texts: Iterable[str]) -> dict[str, int]:
    """How often each line was written, by what the first that is like it says, in their order."""
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for text in map(said, texts):
        shape = shape_of(text)
        line = first.setdefault(shape, text) if shape in first or len(first) < MOST_LINES else OTHERS
        counts[line] = counts.get(line, 0) + 1
    return counts


def shape_of(line: str) -> str:
    """What lines that differ in their numbers alone have in common."""
    return _NUMBER.sub("0", line)


def lines_of(finding: Finding) -> Mapping[str, int]:
    """What was written at the finding's moment, and how often; empty where it is about no line of a log."""
    lines = finding.current.get("lines") if finding.kind == "log_pattern" else None
    return lines if isinstance(lines, Mapping) else {}


def first_line(finding: Finding) -> str:
    """What the first of its lines says; "?" where it is about none."""
    return next(iter(lines_of(finding)), "?")


def together(findings: Iterable[Finding]) -> str:
    """How many lines the findings are of, and how many of them differ by more than numbers; "" of a single one."""
    counts = [lines_of(one) for one in findings]
    number = sum(sum(one.values()) for one in counts)
    different = len({shape_of(line) for line in chain.from_iterable(counts)})
    return f"{number:,} lines, {different} of them different" if number > 1 else ""


def gathered(findings: Iterable[Finding]) -> list[list[Finding]]:
    """The findings in their order; those of alike lines about one subject where the first of them stands."""
    groups: dict[object, list[Finding]] = {}
    for one in findings:
        shapes = tuple(map(shape_of, lines_of(one)))
        groups.setdefault((one.rule, one.key[1], shapes) if shapes else one.key, []).append(one)
    return list(groups.values())
