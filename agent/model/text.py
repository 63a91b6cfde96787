"""Phrases about findings: places, times, amounts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from agent.model.findings import Finding, Records, observed_part
from agent.model.observations.base import Unavailable
from agent.model.times import clock, rfc3339

_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, changes of the writing direction, and halves of characters."""

MAX_PLACES = 5
"""How many places are named; of more, only their number."""


def day_of(at: int) -> str:
    """Return the UTC date of a time in ms, as 2026-11-20."""
    return rfc3339(at)[:10]


def instant(at: int, day: str) -> str:
    """Return a time in ms as HH:MM:SS.s in UTC, with its date unless that is `day`."""
    return clock(at) if day_of(at) == day else f"{day_of(at)} {clock(at)}"


def span(ms: int) -> str:
    """Return a length of time for people: 6.0 s, 4 min 10 s, 3 h 5 min, 2 d 4 h."""
    seconds = ms // 1000
    for size, unit, smaller, small_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{ms / 1000:.1f} s"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 partition, 12,223 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a number as an ordinal: 1st, 2nd, 3rd, 4th, 11th."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def place(subject: Mapping[str, Any]) -> str:
    """Return where: topic[partition], else the topic, the brokers, the job, the group, the source or the cluster."""
    if subject.get("topic") is not None:
        partition = subject.get("partition")
        return str(subject["topic"]) if partition is None else f"{subject['topic']}[{partition}]"
    if subject.get("brokers"):
        return broker_names(subject["brokers"])
    if subject.get("job_name") is not None:
        return f"job {subject['job_name']}"
    names = (f"{name} {subject[name]}" for name in ("broker", "group", "job", "source", "cluster") if name in subject)
    return next(names, "the cluster")


def broker_names(brokers: Iterable[Any]) -> str:
    """Return brokers by their ids: broker 1, brokers 1 and 2."""
    ids = list(brokers)
    return f"broker{'' if len(ids) == 1 else 's'} {join_names(ids)}"


def join_names(names: Iterable[Any], conjunction: str = "and") -> str:
    """Join names to one phrase: 1, 2 and 3."""
    *others, last = map(str, names)
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def places(subjects: Iterable[Mapping[str, Any]]) -> str:
    """Return places as one phrase: orders[1,4], payments[0]; of many partitions only their number.

    Partitions of one topic share its name.
    """
    partitions: dict[str, set[int]] = {}
    for subject in subjects:
        numbers = partitions.setdefault(str(subject["topic"]) if subject.get("topic") else place(subject), set())
        if subject.get("topic") and isinstance(subject.get("partition"), int):
            numbers.add(subject["partition"])
    phrases = [_partitions(topic, sorted(numbers)) for topic, numbers in partitions.items()]
    return ", ".join([*phrases[:MAX_PLACES], *more(len(phrases) - MAX_PLACES, "more topic")])


def _partitions(topic: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return topic
    if len(numbers) > MAX_PLACES:
        return f"{topic} ({count(len(numbers), 'partition')})"
    return f"{topic}[{','.join(map(str, numbers))}]"


def unavailable_parts(unavailable: Iterable[Unavailable]) -> tuple[str, ...]:
    """Return what each source cannot read, one phrase per source: kafka cannot read orders[1,4]."""
    by_source: dict[str, dict[str | None, list[Unavailable]]] = {}
    for report in unavailable:
        by_source.setdefault(report.source, {}).setdefault(report.group, []).append(report)
    phrases = []
    for source, by_group in by_source.items():
        parts = [_unavailable_part(group, reports) for group, reports in by_group.items()]
        phrases.append(f"{source} cannot read {', '.join([*parts[:2], *more(len(parts) - 2, 'more group')])}")
    return tuple(phrases)


def _unavailable_part(group: str | None, reports: Sequence[Unavailable]) -> str:
    subjects = [asdict(report) for report in reports]
    if any(subject["topic"] is None for subject in subjects):
        return observed_part(next(subject for subject in subjects if subject["topic"] is None))
    return f"group {group} on {places(subjects)}" if group is not None else places(subjects)


def describe_records(records: Records, *, bounded: bool = False) -> str:
    """Return the impact in words, empty if there is none. bounded: the numbers are lower bounds."""
    parts = ((records.reread, "reprocessed"), (records.lost, "lost"), (records.skipped, "skipped"))
    plus = "+" if bounded else ""
    return ", ".join(f"{number:,}{plus} record{'' if number == 1 else 's'} {what}" for number, what in parts if number)


def visible(text: str) -> str:
    """Return the text on one line, with characters that a terminal or a reader would not show as escapes.

    Names of groups and clients are free text: a newline in one must not look like a line of ours.
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def more(left_out: int, noun: str) -> tuple[str, ...]:
    """Return that so many of something are left out; nothing if none are."""
    return (f"and {count(left_out, noun)}",) if left_out > 0 else ()


def is_leader_change(finding: Finding) -> bool:
    """Return whether the finding says who led a partition before and after."""
    return "leader" in finding.previous and "leader" in finding.current


def change(finding: Finding) -> str:
    """Return who led before and who leads now; empty for what is no leader change."""
    if not is_leader_change(finding):
        return ""
    return f" {leader_name(finding.previous['leader'])} -> {leader_name(finding.current['leader'])}"


def leader_name(leader: int | None) -> str:
    """Return the broker that leads, or "none", as Kafka's tools print it."""
    return "none" if leader is None or leader < 0 else str(leader)


def is_bounded(finding: Finding) -> bool:
    """Return whether it happened at an unknown moment before `at`: its figures come from a poll and are bounds."""
    return finding.start < finding.at


def time_range(finding: Finding, day: str) -> str:
    """Return when it happened: at a moment, or between two readings."""
    at = instant(finding.at, day)
    return f"between {instant(finding.start, day)} and {at}" if is_bounded(finding) else f"at {at}"


def recovery(finding: Finding, day: str, words: str) -> str:
    """Return when the finding recovered, or why it ended without, as a clause; empty while it is active."""
    if finding.recovered_at is None:
        return ""
    at = instant(finding.recovered_at, day)
    return f"; over since {at}: {finding.current['ended']}" if "ended" in finding.current else f"; {words} at {at}"
