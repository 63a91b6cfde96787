"""Many findings in words: in order of time or of gravity, with what is alike together. One by one: the package."""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec.structs import replace

from agent.engine.impact import worst_first
from agent.engine.rule import Rule
from agent.model.findings import Finding, Records
from agent.model.log_text import describe_lines, group_alike, lines_of
from agent.model.text import PLACES, change, count, instant, more, place, places, radius
from agent.rules import KINDS

MOST = 10
"""How many findings are told one by one; of more there is a summary and the worst ten."""

_OTHERS = 3


def summary(findings: Iterable[Finding], *others: Iterable[Finding], day: str) -> tuple[str, ...]:
    """One line per finding in time order; of more than ten, one per kind of change: its places, its time span.

    others: told in the same order of time, but of more than three of them one line per kind of change at once.
    """
    lines: list[tuple[int, str]] = []
    left_out = 0
    for part, most in ((findings, MOST), *((other, _OTHERS) for other in others)):
        told = _summed_up(part, day, most)
        lines += told[:MOST]
        left_out += len(told[MOST:])
    return (*(line for _, line in sorted(lines, key=itemgetter(0))), *more(left_out, "further kind"))


def _summed_up(findings: Iterable[Finding], day: str, most: int) -> list[tuple[int, str]]:
    """(when it held first, line) in time order."""
    ordered = sorted(_without_doubles(findings), key=lambda one: (one.at, one.start, one.key))
    groups = group_alike(ordered)
    if len(groups) <= most:
        return [(ones[0].at, _repeated(ones, day)) for ones in groups]
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in ordered:
        alike.setdefault((_title(one), change(one)), []).append(one)
    return [
        (
            ones[0].at,
            describe(ones[0], day)
            if len(ones) == 1
            else f"{title}{moved}: {_extent(ones, day)}: {places(one.subject for one in ones)}",
        )
        for (title, moved), ones in alike.items()
    ]


def worst(findings: Iterable[Finding], day: str) -> tuple[str, ...]:
    """The findings worst first; of more than ten, a line per kind, reader and topic (five), then the worst ten."""
    ordered = worst_first(findings)
    groups = group_alike(ordered)
    if len(groups) <= MOST:
        return tuple(_repeated(ones, day) for ones in groups)
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in ordered:
        names = [str(one.subject[name]) for name in ("group", "topic") if one.subject.get(name) is not None]
        alike.setdefault((_title(one), " on ".join(names) or place(one.subject)), []).append(one)
    lines = []
    for (title, where), ones in alike.items():
        total = radius(sum((one.records for one in ones), Records()))
        lines.append(f"{title}, {where}: {_extent(ones, day)}{f'; {total}' if total else ''}")
    told = (f"• {_repeated(ones, day)}" for ones in groups[:MOST])
    rest = more(len(lines) - PLACES, "further group or topic", "further groups and topics")
    return (*lines[:PLACES], *rest, f"The worst {MOST} of {len(groups)}:", *told)


def _without_doubles(findings: Iterable[Finding]) -> list[Finding]:
    """The findings less each leader move that an unclean election tells too."""
    findings = list(findings)
    moves = {(place(one.subject), one.at): one for one in findings if one.kind == "leader_moved"}
    told = []
    for one in findings:
        if one.kind == "unclean_election":
            move = moves.pop((place(one.subject), one.at), None)
            # The election's own "before" may be the moment when nobody led; the move knows who led last.
            told.append(
                one if move is None else replace(one, previous={**one.previous, "leader": move.previous.get("leader")})
            )
        elif one.kind != "leader_moved":
            told.append(one)
    return told + list(moves.values())


def _repeated(findings: Sequence[Finding], day: str) -> str:
    """What alike lines of a log say: the first of them, and how often until when; of one finding its sentence."""
    first, *again = findings
    number = sum(sum(lines_of(one).values()) for one in again)
    if not number:
        return describe(first, day)
    until = instant(max(one.at for one in again), day)
    return f"{describe(first, day)}; {number:,} more such until {until}"


def _title(finding: Finding) -> str:
    """What many findings are called together: lines of logs by the rule that asked for them."""
    return finding.rule if finding.kind == "log_pattern" else finding.kind.replace("_", " ")


def _extent(findings: Sequence[Finding], day: str) -> str:
    """How many lines of a log, partitions, or times within which span."""
    first, last = instant(min(one.start for one in findings), day), instant(max(one.at for one in findings), day)
    parts = {place(one.subject) for one in findings if "partition" in one.subject}
    lines = describe_lines(findings)
    number = f"{lines}," if lines else count(len(parts), "partition") if parts else count(len(findings), "time")
    return f"{number} {f'at {first}' if first == last else f'between {first} and {last}'}"


def describe(finding: Finding, day: str) -> str:
    """Return the finding as its rule describes it."""
    return KINDS.get(finding.kind, Rule).describe(finding, day)
