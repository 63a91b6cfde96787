"""offset_rewind: a committed offset, or the position of a Flink subtask, moves backwards."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeAlias

from msgspec.structs import replace

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations.base import Observation
from agent.model.observations.flink import Position
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.text import count, is_bounded, place, recovery, time_range
from agent.model.times import clock
from agent.rules.queries.advice import DEDUPLICATE, DURABLE_WRITES
from agent.rules.queries.operators import is_moved_by_operator, operator_known_at
from agent.rules.queries.partitions import (
    earliest,
    find_deletion,
    find_truncations,
    has_unclean_election,
    is_recreated,
)
from agent.rules.queries.restores import find_restore_context, is_explained_by_restore
from agent.rules.queries.subjects import groups_of

Offset: TypeAlias = Commit | Position

_HOW = {
    "operator_reset": "was reset by an operator",
    "checkpoint_restore": "was moved back by a checkpoint restore",
    "after_expiry": "rewound after its committed offset expired",
    "to_earliest": "was reset to the log start",
    "to_divergence": "was reset to the divergence point",
    "": "rewound",
}
"""What happened, by label; the first label that a finding has decides."""

_PACE_MS = 3_000
_CACHED_MS = 60_000
"""Flink never reports an older position; 40 s were seen after an idle time."""

_PREDICTABLE_MS = 86_400_000


class _Rewind(NamedTuple):
    """The highest reading before a rewind, the one that shows it, and the commits that moved back with a position."""

    before: Offset
    after: Offset
    committed: list[Offset]


class OffsetRewind(GroupRule):
    """A group's committed offset, or a Flink subtask's position, moves backwards by at least `min_records`.

    The records in between are reprocessed.
    Labels: `to_earliest` (at the log start offset, or as near as a poll can see; critical), `to_divergence` (to where
    the log was truncated), `after_expiry` (Kafka had forgotten the offset), `operator_reset` (an operator moved an idle
    group, or reset a Kafka Streams application; info), `checkpoint_restore` (a Flink job was restored from a savepoint
    or checkpoint; info). With polls, the new offset is an upper bound: the consumer has moved on since. For a Kafka
    Streams application with stores it is reported 5 s later, when an operator's reset is visible.
    Not: a re-created topic, a rewind of less than `min_records`, an offset older than the last one seen, a position
    that may come from a cache in Flink: it must be below what was read a minute before, or a second reading or a
    committed offset must have moved back with it.
    Recovers when the old offset is committed, or reached, again.
    """

    title = "{reader} rewound {records} records on {topic}[{partition}]"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "checkpoint_restore": Advice(),
        "after_expiry": Advice(
            now=DEDUPLICATE, prevent="Set offsets.retention.minutes longer than the longest pause of {reader}."
        ),
        "to_divergence": Advice(now=DEDUPLICATE, prevent=DURABLE_WRITES),
        "": Advice(
            now=DEDUPLICATE,
            prevent="Set auto.offset.reset=none for {reader} if it should rather stop than reprocess everything.",
        ),
    }
    observes = (Commit, Position)

    min_records: int = 1000
    """The smallest rewind reported, in records."""

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        if "offset" not in finding.previous or "offset" not in finding.current:
            return super().describe(finding, day)
        is_open = finding.recovered_at is None
        least = "at least " if is_bounded(finding) else ""
        reprocessed = f"{count(finding.records.reread, 'record')} {'are being' if is_open else 'were'} reprocessed"
        # The second clause of `detail` predicts when the reader has caught up.
        prediction = f"; {finding.detail.partition('; ')[2].removesuffix(' UTC')}".rstrip("; ") if is_open else ""
        return (
            f"{_who(finding)} on {_move(finding)} {time_range(finding, day)}; "
            f"{least}{reprocessed}{prediction}{recovery(finding, day, 'caught up')}"
        )

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        if "offset" not in finding.previous or "offset" not in finding.current:
            return super().timeline(finding, day)
        return f"{reader(finding.subject)} on {_move(finding)}"

    @classmethod
    def ruled_out(cls, findings: Iterable[Finding]) -> list[str]:
        findings = list(findings)
        labels = {label for finding in findings for label in finding.labels}
        causes = []
        if any("group" in finding.subject for finding in findings):
            causes += ["operator reset"] * ("operator_reset" not in labels)
            causes += ["expired offsets"] * ("after_expiry" not in labels)
        restores = [finding.current["restores"] for finding in findings if "restores" in finding.current]
        if restores and not any(restores):
            causes.append("checkpoint restore")
        return [*causes, *super().ruled_out(findings)]

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, Commit | Position) or observation.offset is None:
            return ()
        name = observation.group if isinstance(observation, Commit) else observation.name
        if not self.applies_to(name, observation.topic):
            return ()
        scope = _scope(observation)
        known = [state.offset for state in _offsets(scope, facts).changes[-4:] if state.offset is not None]
        # A position's rewind is confirmed by the reading after it.
        recent = known[-3 if scope.job else -2 :]
        return (scope,) if any(after < before for before, after in pairwise(recent)) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = _offsets(scope, facts)
        for before, after in find_decreases(history, self.min_records):
            rewind = _Rewind(before, after, list(self._find_commits(scope, before, after, facts)))
            if isinstance(after, Commit):
                known_at: int | None = operator_known_at(facts, after)
            else:
                known_at = _confirm_position(rewind, history)
            if known_at is not None and not is_recreated(facts, scope.in_partition, before.at, after.at):
                yield self._finding(scope, rewind, known_at, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        later = _offsets(scope, facts).after(finding.at)
        regained = (state.at for state in later if (state.offset or 0) >= old)
        return recovered(finding, earliest(regained, find_deletion(facts, scope.in_partition, finding.at)))

    def _find_commits(self, scope: Scope, before: Offset, after: Offset, facts: Facts) -> Iterator[Offset]:
        """Yield the commits of the partition that moved back when a position there did."""
        for group in groups_of(facts, *scope.in_partition) if scope.job is not None else ():
            commits = facts.history(Commit, scope.cluster, group, *scope.in_partition[1:])
            for high, low in find_decreases(commits, self.min_records):
                if low.start <= after.at + LATENESS_MS and before.at - LATENESS_MS <= low.at and high.at <= after.at:
                    yield low

    def _finding(self, scope: Scope, rewind: _Rewind, known_at: int, facts: Facts) -> Finding:
        before, after, _ = rewind
        old, new = before.offset or 0, after.offset or 0
        log_start = _log_start(scope, after, facts)
        labels = list(self._find_labels(scope, rewind, log_start, facts))
        severity = Severity.CRITICAL if "to_earliest" in labels else None
        if "operator_reset" in labels or "checkpoint_restore" in labels:
            severity = Severity.INFO
        start = {"log_start": log_start} if "to_earliest" in labels else {}
        context = find_restore_context(facts, scope.in_partition, before.at, after.at)
        finding = self.make_finding(
            scope,
            after,
            detail="",
            known_at=known_at,
            severity=severity,
            labels=labels,
            previous={"offset": old},
            current={"offset": new, **start, **(context._asdict() if context is not None else {})},
            records=Records(reread=old - new),
            subject=_flink_subject(after),
        )
        return replace(finding, detail=f"{_who(finding)} on {_move(finding)}{_predict(old, after, scope, facts)}")

    def _find_labels(self, scope: Scope, rewind: _Rewind, log_start: int | None, facts: Facts) -> Iterator[str]:
        before, after, committed = rewind
        old = before.offset or 0
        # Each reading shows the reader at some moment after its rewind: the lowest is nearest to where it went.
        new = min(state.offset or 0 for state in (after, *committed))
        truncated_to = [
            truncation.after.log_end
            for truncation in find_truncations(facts, scope.in_partition)
            if truncation.after.log_end < old
            and before.at <= truncation.after.at <= after.at + LATENESS_MS
            and truncation.before.at <= after.at
        ]
        is_below_truncation = bool(truncated_to) and new < min(truncated_to) - self.min_records
        start = new if log_start is None else log_start
        near = max(self.min_records, (old - start) * 0.05)
        if is_below_truncation:  # not divergence but out of range: reset to the log start, and read on since
            near = max(near, _estimate_read_since(after, _offsets(scope, facts)))
        if log_start is not None and new - start <= near:
            yield "to_earliest"
        elif not is_below_truncation and (
            truncated_to or has_unclean_election(facts, scope.in_partition, before.at, after.at)
        ):
            yield "to_divergence"
        if is_explained_by_restore(facts, before, after):
            yield "checkpoint_restore"
        if isinstance(before, Commit) and isinstance(after, Commit):
            commits = facts.history(Commit, *scope.series).between(before.at - 1, after.at - 1)
            if any(commit.offset is None for commit in commits):
                yield "after_expiry"
            if is_moved_by_operator(facts, before, after, self.min_records):
                yield "operator_reset"


def find_decreases(history: Iterable[Offset], min_records: int) -> Iterator[tuple[Offset, Offset]]:
    """Yield (the highest before, the one after) of decreases by at least `min_records`, oldest first.

    Small steps add up.
    """
    highest: Offset | None = None
    for state in history:
        if state.offset is None:
            continue
        if highest is None or highest.offset is None or state.offset >= highest.offset:
            highest = state
        elif highest.offset - state.offset >= min_records:
            yield highest, state
            highest = state


def _who(finding: Finding) -> str:
    """Return the reader in words, with its Flink subtask and host if they are known."""
    subject = finding.subject
    subtask = f"subtask {subject['subtask']} of " if "subtask" in subject else ""
    host = f" ({subject['host']})" if "host" in subject else ""
    return f"{subtask}{reader(subject)}{host}"


def _move(finding: Finding) -> str:
    """Return where the reader moved, how, and from which offset to which: "t[3] rewound: 5,547 -> 327 or lower"."""
    how = next(words for label, words in _HOW.items() if not label or label in finding.labels)
    bound = " or lower" if is_bounded(finding) else ""
    offsets = f"{finding.previous['offset']:,} -> {finding.current['offset']:,}"
    return f"{place(finding.subject)} {how}: {offsets}{bound}"


def _confirm_position(rewind: _Rewind, readings: History[Commit] | History[Position]) -> int | None:
    """Return when it is certain that a position moved back, or None if it may be an old one from a cache."""
    before, after, committed = rewind
    following = next((reading for reading in readings if reading.at > after.at), None)
    older = readings.as_of(after.at - _CACHED_MS)
    times = [max(low.seen, after.seen) for low in committed]
    if following is not None and (following.offset or 0) < (before.offset or 0):
        times.append(following.seen)
    if older is not None and (after.offset or 0) < (older.offset or 0):
        times.append(after.seen)
    return min(times, default=None)


def _log_start(scope: Scope, after: Offset, facts: Facts) -> int | None:
    readings = facts.history(LogOffsets, *scope.in_partition)
    soon_after = (reading for reading in readings if reading.at <= after.at + LATENESS_MS)
    reading = readings.as_of(after.at) or next(soon_after, None)
    return None if reading is None else reading.log_start


def _scope(observation: Offset) -> Scope:
    group = observation.group if isinstance(observation, Commit) else None
    job = observation.job if isinstance(observation, Position) else None
    return Scope(observation.cluster, group, observation.topic, observation.partition, job=job)


def _offsets(scope: Scope, facts: Facts) -> History[Commit] | History[Position]:
    if scope.job is None:
        return facts.history(Commit, *scope.series)
    cluster, topic, partition = scope.in_partition
    return facts.history(Position, cluster, scope.job, topic, partition)


def _flink_subject(observation: Offset) -> dict[str, Any]:
    """Return what a position names besides its scope."""
    if isinstance(observation, Commit):
        return {}
    names = {
        "flink": observation.flink,
        "job_name": observation.name,
        "subtask": observation.subtask,
        "host": observation.host,
    }
    return {name: value for name, value in names.items() if value is not None}


def _predict(old: int, after: Offset, scope: Scope, facts: Facts) -> str:
    """Return when the reader will have caught up at the pace of the first seconds, as a clause; empty if unknown."""
    later = _find_later(after, _offsets(scope, facts))
    low, high = after.offset or 0, (later.offset or 0) if later is not None else 0
    if later is None or not low < high < old:
        return ""
    rate = (high - low) * 1000 / (later.at - after.at)
    remaining_ms = round((old - low) * 1000 / rate)
    if remaining_ms >= _PREDICTABLE_MS:
        return ""
    return f"; at {rate:,.0f} records/s caught up by about {clock(after.at + remaining_ms)} UTC"


def _estimate_read_since(after: Offset, history: History[Commit] | History[Position]) -> float:
    """Return how many records the reader may have reprocessed before the reading that shows its rewind."""
    later = _find_later(after, history)
    if later is None:
        return 0
    return ((later.offset or 0) - (after.offset or 0)) / (later.at - after.at) * (after.at - after.start)


def _find_later(after: Offset, history: History[Commit] | History[Position]) -> Offset | None:
    """Return the reading some seconds after a rewind, which shows the reader's pace."""
    later = history.between(after.at + _PACE_MS - 1, after.at + LATENESS_MS)
    return next((state for state in later if state.offset is not None), None)
