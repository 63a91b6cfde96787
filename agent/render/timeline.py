"""Findings as statements: one for each thing that happened, whoever detected it; and statements as timeline rows."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Rule
from agent.model.findings import Finding
from agent.model.log_text import group_alike, lines_of
from agent.model.text import change, count, instant, is_leader_change, more, place, places
from agent.rules import KINDS

_ROW_LENGTH = 110
_SLACK_MS = 60_000
_ALIKE_MS = 10_000
"""How far apart the same change of several partitions may happen and still be one row."""

_PLACES = "\0"
"""Stands in a row's text for its partitions; no text has this character."""


class Statement(NamedTuple):
    """One thing that happened. finding: the one that describes it best; others: findings that report the same."""

    finding: Finding
    others: tuple[Finding, ...] = ()

    @property
    def confirmations(self) -> list[Finding]:
        """What Spark checks found of the same."""
        return [] if is_checked(self.finding) else [finding for finding in self.others if is_checked(finding)]


class Row(NamedTuple):
    """One line of a timeline: when (ms), what, and the findings behind it.

    folded: how many of the findings, from the end, the line only counts.
    """

    at: int
    text: str
    findings: tuple[Finding, ...]
    folded: int = 0


def rule_of(finding: Finding) -> type[Rule]:
    """Return the rule that owns the finding's text; the base for kinds of another version."""
    return KINDS.get(finding.kind, Rule)


def is_checked(finding: Finding) -> bool:
    """Return whether a Spark check found it."""
    return issubclass(rule_of(finding), CheckRule)


def statements(findings: Iterable[Finding]) -> list[Statement]:
    """Return one statement for each thing that happened, in time order."""
    groups: list[list[Finding]] = []
    known: dict[tuple[object, ...], list[tuple[int, Finding]]] = {}
    for finding in sorted(findings, key=_preference):
        keys, wanted = _event_keys(finding)
        candidates = [candidate for key in wanted for candidate in known.get(key, ())]
        number = min((number for number, other in candidates if _is_same_event(finding, other)), default=len(groups))
        if number == len(groups):
            groups.append([])
        groups[number].append(finding)
        for key in keys:
            known.setdefault(key, []).append((number, finding))
    return sorted(
        (Statement(first, tuple(others)) for first, *others in groups),
        key=lambda statement: _time_order(statement.finding),
    )


def rows(events: Iterable[Statement], day: str, most: int) -> list[Row]:
    """Return the timeline in time order, with the same change of several partitions as one row.

    most: if there are more rows than this, rows of one kind, reader and topic become one, "(and 3 more)".
    """
    made = _same_change_rows(events, day)
    return made if len(made) <= most else _summary_rows(made)


def format_row(row: Row, day: str) -> str:
    """Return the row as one line: its time in UTC and what happened, shortened at the end of a clause if too long."""
    return f"{instant(row.at, day)}  {_shortened(with_arrows(row.text))}"


def with_arrows(text: str) -> str:
    """Return text with arrows as people read them."""
    return text.replace(" -> ", " → ")


def _shortened(text: str) -> str:
    if len(text) <= _ROW_LENGTH:
        return text
    ends = [text.rfind(mark, _ROW_LENGTH // 3, _ROW_LENGTH) for mark in ("; ", ". ", ", ", " (", ": ", " ")]
    end = next((end for end in ends if end > 0), _ROW_LENGTH - 1)
    return f"{text[:end].rstrip()}…"


def _preference(finding: Finding) -> tuple[object, ...]:
    """Sorts the finding that describes an event best before others that report the same.

    That is the live rule's before the check's, then the gravest, the largest, a group's before a job's and a
    partition's before a group's.
    """
    records = finding.records
    return (
        is_checked(finding),
        -finding.severity.rank,
        -(records.reread + records.lost + records.skipped),
        "job" in finding.subject,
        "group" in finding.subject,
        _time_order(finding),
    )


def _time_order(finding: Finding) -> tuple[object, ...]:
    return finding.at, finding.start, finding.key


def _event_keys(finding: Finding) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return keys under which a finding is found, and under which all others are found that may be of the same event.

    There may be thousands of findings about one partition, so not all of them are compared.
    """
    rule, partition = rule_of(finding), _partition(finding)
    is_check, is_job = issubclass(rule, CheckRule), "job" in finding.subject
    shared: list[tuple[object, ...]] = [("leader", partition, finding.at)] if is_leader_change(finding) else []
    keys: list[tuple[object, ...]] = [(is_check, _subject(finding))]
    wanted: list[tuple[object, ...]] = [(not is_check, _subject(finding))]
    if "partition" in finding.subject and not is_check:
        keys.append((rule, is_job, partition))
        wanted.append((rule, not is_job, partition))
        if finding.records.lost and not rule.moves_reader:
            shared.append(("lost", partition))
    return keys + shared, wanted + shared


def _is_same_event(finding: Finding, known: Finding) -> bool:
    """Whether both, of one partition, report one event: the same leader change, loss, or reader, or a check's of it."""
    rule, other = rule_of(finding), rule_of(known)
    is_reader_and_job = ("job" in finding.subject) is not ("job" in known.subject)
    if rule is other and not is_reader_and_job and (rule.moves_reader or issubclass(rule, CheckRule)):
        return False  # each of its own reader
    if is_leader_change(finding) and is_leader_change(known):
        return finding.at == known.at
    if issubclass(rule, CheckRule) is not issubclass(other, CheckRule):
        return (
            _overlap(finding, known)
            and bool(finding.records.reread) is bool(known.records.reread)
            and bool(finding.records.skipped) is bool(known.records.skipped)
        )
    if rule is other and is_reader_and_job:
        return _overlap(finding, known, _SLACK_MS)
    if rule.moves_reader or other.moves_reader:
        return False
    return bool(finding.records.lost and known.records.lost) and _overlap(finding, known)


def _partition(finding: Finding) -> tuple[object, ...]:
    return tuple(finding.subject.get(name) for name in ("cluster", "topic", "partition"))


def _subject(finding: Finding) -> tuple[object, ...]:
    names = ("cluster", "group", "topic", "partition", "broker", "job")
    return tuple(finding.subject.get(name) for name in names)


def _overlap(finding: Finding, known: Finding, slack: int = 0) -> bool:
    return finding.start <= known.at + slack and known.start <= finding.at + slack


def _same_change_rows(events: Iterable[Statement], day: str) -> list[Row]:
    made: list[list[Finding]] = []
    texts: list[str] = []
    latest: dict[str, int] = {}
    for lines in group_alike([event.finding for event in events]):
        finding = lines[0]
        text = _phrase(lines, day)
        where = place(finding.subject)
        shape = f"{finding.kind} {text.replace(where, _PLACES)}" if where in text else f"{finding.key}"
        index = latest.get(shape)
        if index is not None and finding.at - made[index][0].at <= _ALIKE_MS:
            made[index] += lines
            texts[index] = text.replace(where, _PLACES)
            continue
        latest[shape] = len(made)
        made.append(lines)
        texts.append(text)
    return [
        Row(joined[0].at, text.replace(_PLACES, places(finding.subject for finding in joined)), tuple(joined))
        for text, joined in zip(texts, made, strict=True)
    ]


def _phrase(findings: Sequence[Finding], day: str) -> str:
    """Return the rule's phrase; of alike lines of a log the first line's, and how often it was repeated until when."""
    first, *again = findings
    text = rule_of(first).timeline(first, day)
    number = sum(sum(lines_of(finding).values()) for finding in again)
    if not number:
        return text
    return f"{text}; {count(number, 'more line')} like it until {instant(max(finding.at for finding in again), day)}"


def _summary_rows(made: Iterable[Row]) -> list[Row]:
    """One row for each kind of finding, leader change, reader and topic; how much more there was in brackets."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in made:
        finding = row.findings[0]
        reader = finding.subject.get("group"), finding.subject.get("job"), finding.subject.get("topic")
        key = (finding.rule, change(finding), *reader) if finding.subject.get("topic") else (row.at, row.text)
        alike.setdefault(key, []).append(row)
    summed = []
    for first, *others in alike.values():
        folded = tuple(finding for row in others for finding in row.findings)
        text = f"{first.text} ({_count_more(first.findings, folded)})" if folded else first.text
        summed.append(Row(first.at, text, (*first.findings, *folded), len(folded)))
    return summed


def _count_more(shown: Sequence[Finding], folded: Sequence[Finding]) -> str:
    """Return what is folded: events, or partitions, each of which may have had several."""
    if "partition" not in shown[0].subject:
        return more(len(folded), "more event")[0]
    where = {place(finding.subject) for finding in shown}
    elsewhere = {place(finding.subject) for finding in folded} - where
    if len(elsewhere) == len(folded):
        return more(len(folded), "more partition")[0]
    if not elsewhere:
        return more(len(folded), "more time")[0]
    return f"{more(len(elsewhere), 'more partition')[0]}, {count(len(shown) + len(folded), 'time')} in all"
