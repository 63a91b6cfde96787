"""Findings in words: places, times, one sentence each. Of many: summaries; an incident as a whole: report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from agent.model.findings import Finding, Records, sight
from agent.model.observations import Unavailable, clock, rfc3339

PLACES = 5
"""How many places are told by name."""


def day_of(at: int) -> str:
    """The UTC date of a time in ms, as 2026-11-20."""
    return rfc3339(at)[:10]


def instant(at: int, day: str) -> str:
    """A time in ms as HH:MM:SS.s in UTC, with its date where that is another than `day`."""
    return clock(at) if day_of(at) == day else f"{day_of(at)} {clock(at)}"


def span(ms: int) -> str:
    """A length of time for people: 6.0 s, 4 min 10 s, 3 h 5 min, 2 d 4 h."""
    seconds = ms // 1000
    for size, unit, smaller, small_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{ms / 1000:.1f} s"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 partition, 12,223 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def place(subject: Mapping[str, Any]) -> str:
    """Where: topic[partition], else the topic, the brokers, the group, the source or the cluster."""
    if subject.get("topic") is not None:
        partition = subject.get("partition")
        return str(subject["topic"]) if partition is None else f"{subject['topic']}[{partition}]"
    if subject.get("brokers"):
        return f"brokers {listed(subject['brokers'])}"
    if subject.get("job_name") is not None:
        return f"job {subject['job_name']}"
    names = (f"{name} {subject[name]}" for name in ("broker", "group", "job", "source", "cluster") if name in subject)
    return next(names, "the cluster")


def listed(names: Iterable[Any]) -> str:
    """Names in one phrase: 1, 2 and 3."""
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def places(subjects: Iterable[Mapping[str, Any]]) -> str:
    """Places in one phrase: by name, of more than five the topics and how many partitions of each."""
    named = {place(subject): subject for subject in subjects}
    if len(named) <= PLACES:
        return ", ".join(named)
    topics = Counter(str(subject.get("topic", where)) for where, subject in named.items()).most_common()
    phrases = [f"{topic} ({count(number, 'partition')})" for topic, number in topics[:PLACES]]
    return ", ".join([*phrases, *more(len(topics) - PLACES, "further topic")])


def sights(unseen: Iterable[Unavailable], day: str, *, why: bool = False) -> tuple[str, ...]:
    """What is out of sight, in one phrase: by source, with the reason first given if asked; empty where nothing is."""
    by_source: dict[str, list[Unavailable]] = {}
    for one in unseen:
        by_source.setdefault(one.source, []).append(one)
    phrases = []
    for source, ones in by_source.items():
        what = list(dict.fromkeys(sight(asdict(one)) for one in ones))
        phrase = ", ".join([*what[:PLACES], *more(len(what) - PLACES, "other")])
        first = min(ones, key=lambda one: one.at)
        phrases.append(f"{source}: {phrase}" + (f", since {instant(first.at, day)} UTC: {first.reason}" if why else ""))
    return ("; ".join(phrases),) if phrases else ()


def radius(records: Records) -> str:
    """The blast radius in words; empty where there is none."""
    parts = ((records.reread, "read again"), (records.lost, "lost"), (records.skipped, "skipped unread"))
    return ", ".join(f"{count(number, 'record')} {what}" for number, what in parts if number)


def more(left_out: int, one: str, many: str | None = None) -> tuple[str, ...]:
    """That so many of something are left out; nothing where none are."""
    return (f"and {left_out} {one if left_out == 1 else many or f'{one}s'}",) if left_out > 0 else ()


def change(finding: Finding) -> str:
    """Who led before and who leads now; empty of what is no leader move."""
    if "leader" not in finding.previous or "leader" not in finding.current:
        return ""
    return f" {leader_name(finding.previous['leader'])} -> {leader_name(finding.current['leader'])}"


def leader_name(leader: int | None) -> str:
    """Return the broker that leads, or "nobody"."""
    return "nobody" if leader is None or leader < 0 else str(leader)


def is_bounded(finding: Finding) -> bool:
    """Whether it happened at an unknown moment before `at`: its figures are a poll's, hence bounds."""
    return finding.start < finding.at


def time_range(finding: Finding, day: str) -> str:
    """Return when it happened: at a moment, or between two sightings."""
    at = instant(finding.at, day)
    return f"between {instant(finding.start, day)} and {at}" if is_bounded(finding) else f"at {at}"


def recovery(finding: Finding, day: str, words: str) -> str:
    """Return when the finding recovered as a clause, empty while it has not."""
    return "" if finding.recovered_at is None else f"; {words} at {instant(finding.recovered_at, day)}"
