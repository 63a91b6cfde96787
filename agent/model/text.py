"""Findings in words: places, times, one sentence each. Of many: summaries; an incident as a whole: report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from agent.model.findings import Finding, Records, reader, sight
from agent.model.observations import Unavailable, clock, rfc3339

PLACES = 5
"""How many places are told by name."""

_LASTING = {
    "beyond_end", "source_unavailable", "broker_down", "check_failed", "checkpoint_failing", "duplicate_job", "hidden_reset",
    "job_restarting", "job_resurrected", "partition_offline", "orphan_job_graph", "rebalancing", "state_not_restored",
    "under_replicated",
}  # fmt: skip
_HOW = {
    "operator_reset": "was reset by an operator",
    "checkpoint_restore": "was taken back by a checkpoint restore",
    "after_expiry": "came back after its committed offsets had expired",
    "to_earliest": "was reset to the log's start",
    "to_divergence": "went back to where the logs diverge",
}


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


def sentence(finding: Finding, day: str) -> str:
    """One finding in one sentence, with its time and, where that means something, that it is over."""
    if finding.kind == "offset_rewind" and "offset" in finding.previous and "offset" in finding.current:
        return _rewind(finding, day)
    if finding.kind == "unclean_election":
        return _election(finding, day)
    if finding.kind in ("log_segments", "replica_divergence"):
        return _on_disk(finding, day)
    if finding.kind == "log_pattern":
        return _logged(finding, day)
    time = "" if " UTC" in finding.detail else f", {time_range(finding, day)}"
    lasted = finding.kind in _LASTING and finding.recovered_at is not None
    return f"{finding.detail.rstrip('.')}{time}{recovery(finding, day, 'over') if lasted else ''}"


def more(left_out: int, one: str, many: str | None = None) -> tuple[str, ...]:
    """That so many of something are left out; nothing where none are."""
    return (f"and {left_out} {one if left_out == 1 else many or f'{one}s'}",) if left_out > 0 else ()


def change(finding: Finding) -> str:
    """Who led before and who leads now; empty of what is no leader move."""
    if "leader" not in finding.previous or "leader" not in finding.current:
        return ""
    return f" {_leader(finding.previous['leader'])} -> {_leader(finding.current['leader'])}"


def _leader(leader: int | None) -> str:
    return "nobody" if leader is None or leader < 0 else str(leader)


def is_bounded(finding: Finding) -> bool:
    """Whether it happened at an unknown moment before `at`: its figures are a poll's, hence bounds."""
    return finding.start < finding.at


def time_range(finding: Finding, day: str) -> str:
    at = instant(finding.at, day)
    return f"between {instant(finding.start, day)} and {at}" if is_bounded(finding) else f"at {at}"


def recovery(finding: Finding, day: str, words: str) -> str:
    return "" if finding.recovered_at is None else f"; {words} at {instant(finding.recovered_at, day)}"


def _rewind(finding: Finding, day: str) -> str:
    how = next((words for label, words in _HOW.items() if label in finding.labels), "went back")
    to, least, when = "", "", time_range(finding, day)
    if is_bounded(finding):
        to, least = "at least back to ", "at least "
        when = f"by {instant(finding.at, day)} (seen before it at {instant(finding.start, day)})"
    lasts = finding.recovered_at is None
    again = f"{least}{count(finding.records.reread, 'record')} {'are' if lasts else 'were'} read again"
    # What the rule adds behind its first clause is when it will be back: of use until it is.
    until = f"; {finding.detail.partition('; ')[2]}".rstrip("; ") if lasts else ""
    subtask = finding.subject.get("subtask")
    who = f"{'' if subtask is None else f'subtask {subtask} of '}{reader(finding.subject)}"
    host = f" ({finding.subject['host']})" if "host" in finding.subject else ""
    return (
        f"{who}{host} on {place(finding.subject)} {how}: "
        f"{finding.previous['offset']:,} -> {to}{finding.current['offset']:,} {when}; "
        f"{again}{until}{recovery(finding, day, 'back where it was')}"
    )


def _election(finding: Finding, day: str) -> str:
    isr = ", ".join(map(str, finding.previous.get("isr") or ())) or "nobody"
    leader = _leader(finding.current.get("leader"))
    return (
        f"leader of {place(finding.subject)}{change(finding)} {time_range(finding, day)} "
        f"(unclean: {leader} was not in the ISR, which was {isr})"
    )


def _logged(finding: Finding, day: str) -> str:
    """Which rule asked for the line, and when it was written: times in a line are of any zone."""
    return f"{finding.rule}: {finding.detail.rstrip('.')}, {time_range(finding, day)}"


def _on_disk(finding: Finding, day: str) -> str:
    """What is wrong with logs on disks: when it came there is known by the records' own timestamps only."""
    told = finding.detail.rstrip(".")
    before, after = (side.get("offset") for side in (finding.previous, finding.current))
    if "offsets_went_back" in finding.labels and isinstance(before, int) and isinstance(after, int):
        byte = "" if finding.position is None else f" at byte {finding.position:,}"
        told = (
            f"offsets go back in broker {finding.subject.get('broker')}'s copy of {place(finding.subject)}: "
            f"{after:,} follows {before:,}{byte} of {finding.subject.get('file', 'its log')}"
        )
    return f"{told} (records of {instant(finding.at, day)} UTC){recovery(finding, day, 'no longer found')}"
