"""offset_rewind: a committed offset, or the position of a Flink subtask, goes back."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeAlias

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations import Commit, LogOffsets, Observation, Position, clock
from agent.model.text import count, instant, is_bounded, place, recovery, time_range
from agent.rules.queries.advice import DEDUPLICATE, DURABLE_WRITES
from agent.rules.queries.operators import by_operator, sure_at
from agent.rules.queries.partitions import earliest, end_falls, end_of, recreated, unclean_near
from agent.rules.queries.restores import around, explained
from agent.rules.queries.subjects import groups_of

Offset: TypeAlias = Commit | Position

_HOW = {
    "operator_reset": "was reset by an operator",
    "checkpoint_restore": "was taken back by a checkpoint restore",
    "after_expiry": "came back after its committed offsets had expired",
    "to_earliest": "was reset to the log's start",
    "to_divergence": "went back to where the logs diverge",
}

_PACE_MS = 3_000
_CACHED_MS = 60_000
"""No position that Flink tells is older; 40 s were seen after a quiet time."""

_FORESEEN_MS = 86_400_000


class _Fall(NamedTuple):
    """The highest reading before a fall, the one that shows it, and the commits that fell where a position did."""

    before: Offset
    after: Offset
    committed: list[Offset]


class OffsetRewind(GroupRule):
    """A group's committed offset, or where a Flink subtask reads, falls by at least `min_records`: records will be read
    again.

    Labels: `to_earliest` (back at the log's start, or as near as a poll can see; critical), `to_divergence` (back to
    where the log was cut off), `after_expiry` (Kafka had forgotten the offset), `operator_reset` (an operator moved an
    idle group, or reset a Kafka Streams application; info), `checkpoint_restore` (a Flink job was restored from a
    savepoint or checkpoint; info). From a poll, where it went back to is an upper bound: the consumer has re-read
    since. Of a Kafka Streams application with stores it is told 5 s later: until then an operator's reset shows.
    Not: a topic deleted and created again, a fall of less than `min_records`, an offset older than the last one seen, a
    position that may come out of a cache of Flink's: it must lie below what was read a minute before, or a second
    reading or a committed offset must have fallen with it. Recovers when the old offset is committed, or
    read, again.
    """

    title = "{reader} went back {records} records on {topic}[{partition}]"
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "checkpoint_restore": Advice(),
        "after_expiry": Advice(
            now=DEDUPLICATE, prevent="offsets.retention.minutes longer than the longest pause of {reader}."
        ),
        "to_divergence": Advice(now=DEDUPLICATE, prevent=DURABLE_WRITES),
        "": Advice(
            now=DEDUPLICATE,
            prevent="auto.offset.reset=none for {reader}, if stopping is better than reading all again.",
        ),
    }
    observes = (Commit, Position)

    min_records: int = 1000
    """Smallest fall told, in records."""

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Say who moved from where to where, how much is reprocessed and until when."""
        if "offset" not in finding.previous or "offset" not in finding.current:
            return super().describe(finding, day)
        how = next((words for label, words in _HOW.items() if label in finding.labels), "went back")
        to, least, when = "", "", time_range(finding, day)
        if is_bounded(finding):
            to, least = "at least back to ", "at least "
            when = f"by {instant(finding.at, day)} (seen before it at {instant(finding.start, day)})"
        is_open = finding.recovered_at is None
        again = f"{least}{count(finding.records.reread, 'record')} {'are' if is_open else 'were'} read again"
        # What the rule adds behind its first clause is when it will be back: of use until it is.
        until = f"; {finding.detail.partition('; ')[2]}".rstrip("; ") if is_open else ""
        subtask = finding.subject.get("subtask")
        who = f"{'' if subtask is None else f'subtask {subtask} of '}{reader(finding.subject)}"
        host = f" ({finding.subject['host']})" if "host" in finding.subject else ""
        return (
            f"{who}{host} on {place(finding.subject)} {how}: "
            f"{finding.previous['offset']:,} -> {to}{finding.current['offset']:,} {when}; "
            f"{again}{until}{recovery(finding, day, 'back where it was')}"
        )

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each commit and position below one before it."""
        if not isinstance(observation, Commit | Position) or observation.offset is None:
            return ()
        scope = _scope(observation)
        if not self.applies_to(_reader(observation), observation.topic):
            return ()
        # A position's fall is told by the reading after it.
        known = [one.offset for one in _offsets(scope, facts).changes[-4:] if one.offset is not None]
        fell = any(after < before for before, after in pairwise(known[-3 if scope.job else -2 :]))
        return (scope,) if fell else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each fall within one incarnation of the partition."""
        history = _offsets(scope, facts)
        for before, after in falls(history, self.min_records):
            fall = _Fall(before, after, list(self._committed_with(scope, before, after, facts)))
            known_at = sure_at(facts, after) if isinstance(after, Commit) else _sure_of(fall, history)
            if known_at is not None and not recreated(facts, scope.in_partition, before.at, after.at):
                yield self._rewind(scope, fall, known_at, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the old offset is reached again, or the partition is no more."""
        old = int(finding.previous["offset"])
        regained = (one.at for one in _offsets(scope, facts).after(finding.at) if (one.offset or 0) >= old)
        return recovered(finding, earliest(regained, end_of(facts, scope.in_partition, finding.at)))

    def _committed_with(self, scope: Scope, before: Offset, after: Offset, facts: Facts) -> Iterator[Offset]:
        """The commits of the partition that fell when a position there did."""
        for group in groups_of(facts, *scope.in_partition) if scope.job is not None else ():
            for high, low in falls(
                facts.history(Commit, scope.cluster, group, *scope.in_partition[1:]), self.min_records
            ):
                if low.start <= after.at + LATENESS_MS and before.at - LATENESS_MS <= low.at and high.at <= after.at:
                    yield low

    def _rewind(self, scope: Scope, fall: _Fall, known_at: int, facts: Facts) -> Finding:
        before, after, _ = fall
        old, new = before.offset or 0, after.offset or 0
        log_start = _log_start(scope, after, facts)
        labels = list(self._labels(scope, fall, log_start, facts))
        severity = Severity.CRITICAL if "to_earliest" in labels else None
        if "operator_reset" in labels or "checkpoint_restore" in labels:
            severity = Severity.INFO
        where = f"{scope.topic}[{scope.partition}]"
        bound = " or below, as a poll sees it" if after.since is not None else ""
        start = " (the log's start)" if "to_earliest" in labels else ""
        start_at = {"log_start": log_start} if "to_earliest" in labels else {}
        until = _back_by(old, after, _offsets(scope, facts))
        checkpoints = around(facts, scope.in_partition, before.at, after.at)
        return self.make_finding(
            scope,
            after,
            detail=f"{_who(after)} on {where} went back from {old:,} to {new:,}{bound}{start}{until}",
            known_at=known_at,
            severity=severity,
            labels=labels,
            previous={"offset": old},
            current={"offset": new, **start_at, **(checkpoints._asdict() if checkpoints is not None else {})},
            records=Records(reread=old - new),
            subject=_of_flink(after),
        )

    def _labels(self, scope: Scope, fall: _Fall, log_start: int | None, facts: Facts) -> Iterator[str]:
        before, after, committed = fall
        old = before.offset or 0
        # All tell where the reader was at some moment after its fall: the lowest one is nearest to where it went.
        new = min(one.offset or 0 for one in (after, *committed))
        cuts = [
            low.log_end
            for fallen, low, _ in end_falls(facts, scope.in_partition)
            if low.log_end < old and before.at <= low.at <= after.at + LATENESS_MS and fallen.at <= after.at
        ]
        below_the_cut = bool(cuts) and new < min(cuts) - self.min_records
        start = new if log_start is None else log_start
        near = max(self.min_records, (old - start) * 0.05)
        if below_the_cut:  # no divergence but out of range: all the way back, and what was read since lies in between
            near = max(near, _read_since(after, _offsets(scope, facts)))
        if log_start is not None and new - start <= near:
            yield "to_earliest"
        elif not below_the_cut and (cuts or unclean_near(facts, scope.in_partition, before.at, after.at)):
            yield "to_divergence"
        if explained(facts, before, after):
            yield "checkpoint_restore"
        if isinstance(before, Commit) and isinstance(after, Commit):
            if any(
                one.offset is None for one in facts.history(Commit, *scope.series).between(before.at - 1, after.at - 1)
            ):
                yield "after_expiry"
            if by_operator(facts, before, after, self.min_records):
                yield "operator_reset"


def _sure_of(fall: _Fall, readings: History[Commit] | History[Position]) -> int | None:
    """When it is sure that a position fell, for a cache may have told an old one; None where it is not (yet)."""
    before, after, committed = fall
    following = next((one for one in readings if one.at > after.at), None)
    older = readings.as_of(after.at - _CACHED_MS)
    sure = [max(low.seen, after.seen) for low in committed]
    if following is not None and (following.offset or 0) < (before.offset or 0):
        sure.append(following.seen)
    if older is not None and (after.offset or 0) < (older.offset or 0):
        sure.append(after.seen)
    return min(sure, default=None)


def _log_start(scope: Scope, after: Offset, facts: Facts) -> int | None:
    ends = facts.history(LogOffsets, *scope.in_partition)
    reading = ends.as_of(after.at) or next((one for one in ends if one.at <= after.at + LATENESS_MS), None)
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


def _reader(observation: Offset) -> str:
    return observation.group if isinstance(observation, Commit) else observation.name


def _who(observation: Offset) -> str:
    if isinstance(observation, Commit):
        return observation.group
    subtask = f"subtask {observation.subtask} of " if observation.subtask is not None else ""
    host = f" (on {observation.host})" if observation.host is not None else ""
    return f"{subtask}{observation.name}{host}"


def _of_flink(observation: Offset) -> dict[str, Any]:
    """What a position names besides its scope."""
    if isinstance(observation, Commit):
        return {}
    named = {
        "flink": observation.flink,
        "job_name": observation.name,
        "subtask": observation.subtask,
        "host": observation.host,
    }
    return {name: value for name, value in named.items() if value is not None}


def _back_by(old: int, after: Offset, history: History[Commit] | History[Position]) -> str:
    """When the old offset is reached at the pace of the first seconds after the fall; empty while that is not known."""
    pace = _soon(after, history)
    low, high = after.offset or 0, (pace.offset or 0) if pace is not None else 0
    if pace is None or not low < high < old:
        return ""
    rate = (high - low) * 1000 / (pace.at - after.at)
    takes = round((old - low) * 1000 / rate)
    return f"; at {rate:,.0f} records/s it is back by {clock(after.at + takes)} UTC" if takes < _FORESEEN_MS else ""


def _read_since(after: Offset, history: History[Commit] | History[Position]) -> float:
    """How many records the reader may have read again before the reading that shows its fall, at the pace after it."""
    pace = _soon(after, history)
    if pace is None:
        return 0
    return ((pace.offset or 0) - (after.offset or 0)) / (pace.at - after.at) * (after.at - after.start)


def _soon(after: Offset, history: History[Commit] | History[Position]) -> Offset | None:
    """The reading that tells the pace after a fall."""
    later = history.between(after.at + _PACE_MS - 1, after.at + LATENESS_MS)
    return next((one for one in later if one.offset is not None), None)


def falls(history: Iterable[Offset], min_records: int) -> Iterator[tuple[Offset, Offset]]:
    """(the highest before, the one after) of falls by at least `min_records`, oldest first; small steps add up."""
    highest: Offset | None = None
    for one in history:
        if one.offset is None:
            continue
        if highest is None or highest.offset is None or one.offset >= highest.offset:
            highest = one
        elif highest.offset - one.offset >= min_records:
            yield highest, one
            highest = one
