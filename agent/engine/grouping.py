"""Which findings without a common cause belong together: one event in many places, or one reader's repeated trouble.

Pure: the same findings in any order give the same pairs. All pairs are of one cluster, but for a Flink job's restore
and the rewinds that it explains.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, TypeAlias

from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AFTER
from agent.model.findings import Finding, FindingKey, Severity
from agent.model.observations.kafka import OFFSETS_TOPIC
from agent.model.text import is_bounded

GROUPING_MS = LATENESS_MS
"""Findings that begin this close together can be one event."""

GROUPING_REACH_MS = 600_000 + FINALIZATION_MS
"""How far apart in time two findings may become known and still be grouped."""

RECURRENCE_MS = 7_500_000
"""How soon a reader that recovered does the same again to count as its habit: every two hours, or more often."""

_ANY = "*"
"""No topic has this name: stands for all that a group reads."""

Pair: TypeAlias = tuple[FindingKey, FindingKey]


def key_values(finding: Finding, key: str) -> tuple[Any, ...]:
    """Return the values of a subject key: one, several ("brokers") or none."""
    if key == "coordinator":
        partition = finding.subject.get("partition") if finding.subject.get("topic") == OFFSETS_TOPIC else None
        value = finding.current.get(key, partition)
    else:
        value = finding.subject.get(key)
    return (value,) if value is not None else tuple(finding.subject.get(f"{key}s", ()))


def find_groups(
    findings: Sequence[Finding],
    chained: Collection[FindingKey],
    effects: AbstractSet[FindingKey],
    check_rules: Collection[str],
    delay_rules: Collection[str],
) -> Iterator[Pair]:
    """Yield pairs of findings that belong to one incident. findings: in time order.

    Info findings outside of a correlation join only their like, or the restore that explains them: what is worth a
    message must not open with them.
    chained: the findings of complete correlations; effects: those of their last steps. check_rules: the rules whose
    findings come from checks. delay_rules: those whose findings are about a reader that does not keep up.
    """
    loud = [
        finding for finding in findings if finding.severity is not Severity.INFO and finding.rule not in check_rules
    ]
    reported = [finding for finding in findings if finding.severity is not Severity.INFO or finding.key in chained]
    quiet = [finding for finding in findings if finding.severity is Severity.INFO and finding.key not in chained]
    yield from _find_alike(reported)
    yield from _find_alike(quiet)
    yield from _find_repeated(loud, effects)
    yield from _find_simultaneous(loud)
    yield from _find_delays(loud, delay_rules)
    # What happened to a broker explains what coincides with it, even if by itself it is worth no message.
    brokers = [
        f for f in reported if f.severity is Severity.INFO and {"broker", "topic"} & f.subject.keys() == {"broker"}
    ]
    yield from _find_coinciding([*loud, *brokers])
    yield from _find_explained(loud, findings)


def _find_alike(findings: Iterable[Finding]) -> Iterator[Pair]:
    """Yield pairs of findings of one rule within 60 s of each other, of one group (else job, broker or topic).

    Also of one partition, if one is about where a Flink job reads and the other about the group that it commits for.
    Also of one topic, if records are lost: they are lost to all who read it, and while the loss grows, to more of them.
    """
    latest: dict[tuple[Any, ...], tuple[int, Finding]] = {}
    for finding in findings:
        key = next((key for key in ("group", "job", "broker", "topic") if key_values(finding, key)), None)
        shared = [(key, value) for value in (key_values(finding, key) if key else (None,))]
        is_position = "job" in finding.subject
        partition = (finding.subject.get("topic"), finding.subject.get("partition"))
        counterpart = (partition, not is_position)
        if finding.records.lost and "group" in finding.subject:
            shared.append(("topic", finding.subject.get("topic")))
        for other in (*shared, counterpart) if "partition" in finding.subject else shared:
            last_grown_at, before = latest.get((finding.rule, finding.subject.get("cluster"), *other), (0, None))
            if (
                before is not None
                and finding.start - last_grown_at <= GROUPING_MS
                and abs(finding.known_at - before.known_at) <= GROUPING_REACH_MS
            ):
                yield before.key, finding.key
        grown_at = max(finding.at, int(finding.current.get("grown_at", finding.at)))
        for own in (*shared, (partition, is_position)):
            names = (finding.rule, finding.subject.get("cluster"), *own)
            if names not in latest or grown_at >= latest[names][0]:
                latest[names] = grown_at, finding


def _find_repeated(findings: Iterable[Finding], effects: AbstractSet[FindingKey]) -> Iterator[Pair]:
    """Yield pairs of findings about one reader of one partition: the later begins before the earlier recovers.

    Only findings with an impact on records: lag for days must not hide a rewind. Also pairs that show a habit: the same
    again and again, of about as many records and no worse, each time recovered and without a cause.
    """
    readers: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        reader = reader_of(finding)
        if reader is not None and _impact(finding):
            readers.setdefault(reader, []).append(finding)
    for of_reader in readers.values():
        of_reader.sort(key=lambda finding: (finding.start, finding.key))
        lasting = of_reader[0]
        latest = {lasting.rule: lasting}
        for finding in of_reader[1:]:
            before = latest.get(finding.rule)
            if finding.start <= _end(lasting) and finding.known_at <= _end(lasting) + GROUPING_REACH_MS:
                yield lasting.key, finding.key
            elif before is not None and is_habit(before, finding) and effects.isdisjoint((before.key, finding.key)):
                yield before.key, finding.key
            latest[finding.rule] = finding
            lasting = max(lasting, finding, key=_end)


def is_habit(before: Finding, finding: Finding) -> bool:
    """Return whether a finding is the same again as one before, of one rule and reader, and no worse."""
    fewer, more = sorted((before, finding), key=_impact)
    # What was polled may have been as many, and from the log start too: its reader had moved on by then.
    is_alike = is_bounded(fewer) or _impact(more) <= 2 * _impact(fewer)
    is_worse = finding.severity.rank > before.severity.rank and not (is_bounded(before) and before is fewer)
    return not is_worse and is_alike and finding.at - before.at <= RECURRENCE_MS


def _find_simultaneous(findings: Iterable[Finding]) -> Iterator[Pair]:
    """Yield pairs of findings about one reader of one partition that begin within a minute of each other.

    An offset that is stuck since a leader change is a reader that stands still, whichever of the two is known first.
    """
    latest: dict[tuple[Any, ...], Finding] = {}
    for finding in findings:
        reader = reader_of(finding)
        if reader is None:
            continue
        before = latest.get(reader)
        if (
            before is not None
            and finding.start - before.at <= GROUPING_MS
            and abs(finding.known_at - before.known_at) <= GROUPING_REACH_MS
        ):
            yield before.key, finding.key
        latest[reader] = finding


def reader_of(finding: Finding) -> tuple[Any, ...] | None:
    """Return who reads which partition, if the finding is about that."""
    subject = finding.subject
    partition, group, job = subject.get("partition"), subject.get("group"), subject.get("job")
    if partition is None or not (group or job):
        return None
    return subject.get("cluster"), subject.get("topic"), partition, group, job


def _find_delays(findings: Iterable[Finding], delay_rules: Collection[str]) -> Iterator[Pair]:
    """Yield pairs of overlapping findings about one group on one topic of which the later known is about a delay.

    A reader is reset or stops, falls behind, is about to lose records, and loses them: one story. A finding about the
    whole group has every topic; one that names the partitions on which the group is behind has only theirs.
    """
    lasting: dict[tuple[Any, Any, Any], tuple[int, Finding]] = {}
    for finding in sorted(findings, key=lambda finding: (finding.known_at, finding.key)):
        cluster, group = (finding.subject.get(name) for name in ("cluster", "group"))
        if group is None:
            continue
        topics = _topics_of(finding)
        end = _end(finding)
        for name in (*(topics or (_ANY,)), None) if finding.rule in delay_rules else ():
            ended, before = lasting.get((cluster, group, name), (0, None))
            if before is None or finding.known_at > ended + GROUPING_REACH_MS:
                continue
            if max(before.start, finding.start) <= min(ended, end) + GROUPING_MS:
                yield before.key, finding.key
        for name in (*(topics or (None,)), _ANY):
            names = cluster, group, name
            if names not in lasting or end > lasting[names][0]:
                lasting[names] = end, finding


def _topics_of(finding: Finding) -> list[str]:
    """Return the topics that a finding about a group concerns, sorted; none if it concerns the whole group."""
    topic = finding.subject.get("topic")
    if topic is not None:
        return [topic]
    return sorted({topic for topic, _ in finding.current.get("behind", ())})


def _find_coinciding(findings: Iterable[Finding]) -> Iterator[Pair]:
    """Yield pairs of findings about brokers, logs and sources that share a broker, topic or log file and coincide.

    Each begins within a minute of when the other begins or ends: a broker goes down, or comes back with an empty disk.
    Of one partition, it suffices that the other lasts and is recent: replicas fall out of sync, then the log is cut.
    A source that cannot read a whole cluster, or a group, shares everything in the cluster.
    """
    places: dict[tuple[Any, ...], list[Finding]] = {}
    partitions: dict[tuple[Any, ...], list[Finding]] = {}
    symptoms: dict[Any, list[Finding]] = {}
    for finding in findings:
        cluster = finding.subject.get("cluster")
        if "source" in finding.subject and "topic" not in finding.subject:
            symptoms.setdefault(cluster, []).append(finding)
        elif not any(name in finding.subject for name in ("group", "job")):
            for key in ("broker", "topic", "log"):
                for value in key_values(finding, key) or _led_by(finding, key):
                    places.setdefault((cluster, key, value), []).append(finding)
            if "partition" in finding.subject:
                partitions.setdefault((cluster, finding.subject["topic"], finding.subject["partition"]), []).append(
                    finding
                )
    for here in partitions.values():
        yield from _overlapping_pairs(here)
    for here in (*places.values(), *symptoms.values()):
        yield from _coinciding_pairs(here)
    for (cluster, *_), here in places.items():
        seen = symptoms.get(cluster, [])
        for finding in here if seen else ():
            index = bisect_left(seen, finding.at, key=lambda symptom: symptom.at)
            for symptom in seen[max(index - 1, 0) : index + 1]:
                if max(finding.start, symptom.start) - GROUPING_MS <= min(finding.at, symptom.at):
                    yield finding.key, symptom.key


def _led_by(finding: Finding, key: str) -> tuple[Any, ...]:
    """Return the broker that led the partition which lost records or cannot be read, if the key is `broker`."""
    return (finding.current["led_by"],) if key == "broker" and "led_by" in finding.current else ()


def _overlapping_pairs(findings: Sequence[Finding]) -> Iterator[Pair]:
    """Yield pairs of findings of which one begins while the other lasts, unless that is known for long."""
    for before, finding in pairwise(sorted(findings, key=lambda finding: (finding.start, finding.key))):
        if finding.start <= _end(before) and finding.known_at <= before.known_at + GROUPING_REACH_MS:
            yield before.key, finding.key


def _coinciding_pairs(findings: Sequence[Finding]) -> Iterator[Pair]:
    """Yield pairs of findings of which one begins within a minute of when the other begins or ends."""
    begins = [(finding.start, finding.at, finding, True) for finding in findings]
    ends = [
        (finding.recovered_at, finding.recovered_at, finding, False)
        for finding in findings
        if finding.recovered_at is not None and finding.recovered_at > finding.at
    ]
    last_begin: tuple[int, Finding] | None = None
    last_end: tuple[int, Finding] | None = None
    for start, at, finding, is_begin in sorted([*begins, *ends], key=lambda mark: (*mark[:2], mark[2].key, mark[3])):
        for last in (last_begin, last_end) if is_begin else (last_begin,):
            if last is not None and start <= last[0] + GROUPING_MS:
                yield last[1].key, finding.key
        if is_begin:
            last_begin = max(last_begin or (at, finding), (at, finding), key=lambda mark: mark[0])
        else:
            last_end = (at, finding)


def _find_explained(restores: Iterable[Finding], findings: Iterable[Finding]) -> Iterator[Pair]:
    """Yield pairs of a finding about a Flink job's restore and a rewind that this restore explains."""
    by_restore = {
        (finding.subject.get("cluster"), finding.subject.get("job"), finding.current["restored_at"]): finding
        for finding in restores
        if "restored_at" in finding.current
    }
    for finding in findings if by_restore else ():
        for restore in finding.current.get("explained_by", ()):
            explanation = by_restore.get((restore["cluster"], restore["job"], restore["restored_at"]))
            if explanation is not None and abs(finding.known_at - explanation.known_at) <= RECURRENCE_MS:
                yield explanation.key, finding.key


def _impact(finding: Finding) -> int:
    return max(finding.records.reread, finding.records.lost, finding.records.skipped)


def _end(finding: Finding) -> int:
    return LONG_AFTER if finding.recovered_at is None else max(finding.recovered_at, finding.at)
