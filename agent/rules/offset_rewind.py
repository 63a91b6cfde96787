"""offset_rewind: a committed offset goes back."""

from collections.abc import Iterable, Iterator

from agent.evidence import earliest, end_falls, end_of, recreated, unclean_near
from agent.facts import LATENESS_MS, Facts, History
from agent.findings import Finding, Records, Severity
from agent.observations import Commit, Observation, clock
from agent.operators import by_operator
from agent.rule import Case, GroupRule, recovered

_PACE_MS = 3_000
_FORESEEN_MS = 86_400_000


class OffsetRewind(GroupRule):
    """A group's committed offset falls by at least `min_records`: records will be read again.

    Labels: `to_earliest` (back at the log's start, or as near as a poll can see; critical), `to_divergence` (back to
    where the log was cut off), `after_expiry` (Kafka had forgotten the offset), `operator_reset` (an operator moved an
    idle group; info). From a poll, where it went back to is an upper bound: the consumer has re-read since.
    Not: a topic deleted and created again, a fall of less than `min_records`, an offset older than the last one seen.
    Recovers when the old offset is committed again.
    """

    title = "{group} went back {records} records on {topic}[{partition}]"
    sees = (Commit,)

    min_records: int = 1000
    """Smallest fall told, in records."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:
        """Each commit below one before it."""
        if not isinstance(observation, Commit) or observation.offset is None:
            return ()
        history = facts.commits(observation.cluster, observation.group, observation.topic, observation.partition)
        before = next((one.offset for one in reversed(history.changes[-3:-1]) if one.offset is not None), None)
        if before is None or observation.offset >= before or not self.judged(observation.group, observation.topic):
            return ()
        return (Case(observation.cluster, observation.group, observation.topic, observation.partition),)

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each fall within one incarnation of the partition."""
        for before, after in falls(facts.commits(*case.series), self.min_records):
            if not recreated(facts, case.in_partition, before.at, after.at):
                yield self._rewind(case, before, after, facts)

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when the old offset is committed again, or the partition is no more."""
        old = int(finding.previous["offset"])
        regained = (one.at for one in facts.commits(*case.series).after(finding.at) if (one.offset or 0) >= old)
        return recovered(finding, earliest(regained, end_of(facts, case.in_partition, finding.at)))

    def _rewind(self, case: Case, before: Commit, after: Commit, facts: Facts) -> Finding:
        old, new = before.offset or 0, after.offset or 0
        labels = list(self._labels(case, before, after, facts))
        severity = Severity.CRITICAL if "to_earliest" in labels else None
        if "operator_reset" in labels:
            severity = Severity.INFO
        where = f"{case.topic}[{case.partition}]"
        bound = " or below, as a poll sees it" if after.since is not None else ""
        start = " (the log's start)" if "to_earliest" in labels else ""
        until = _back_by(old, after, facts.commits(*case.series))
        return self.find(
            case,
            after,
            detail=f"{case.group} on {where} went back from {old:,} to {new:,}{bound}{start}{until}",
            severity=severity,
            labels=labels,
            previous={"offset": old},
            current={"offset": new},
            records=Records(reread=old - new),
        )

    def _labels(self, case: Case, before: Commit, after: Commit, facts: Facts) -> Iterator[str]:
        old, new = before.offset or 0, after.offset or 0
        ends = facts.log_offsets(*case.in_partition)
        reading = ends.as_of(after.at) or next((one for one in ends if one.at <= after.at + LATENESS_MS), None)
        if reading is not None and new - reading.log_start <= max(self.min_records, (old - reading.log_start) * 0.05):
            yield "to_earliest"
        elif unclean_near(facts, case.in_partition, before.at, after.at) or any(
            low.log_end < old and before.at <= low.at <= after.at + LATENESS_MS and fallen.at <= after.at
            for fallen, low, _ in end_falls(facts, case.in_partition)
        ):
            yield "to_divergence"
        if any(one.offset is None for one in facts.commits(*case.series).between(before.at - 1, after.at - 1)):
            yield "after_expiry"
        if by_operator(facts, before, after, self.min_records):
            yield "operator_reset"


def _back_by(old: int, after: Commit, history: History[Commit]) -> str:
    """When the old offset is reached at the pace of the first seconds after the fall; empty while that is not known."""
    later = history.between(after.at + _PACE_MS - 1, after.at + LATENESS_MS)
    pace = next((one for one in later if one.offset is not None), None)
    low, high = after.offset or 0, (pace.offset or 0) if pace is not None else 0
    if pace is None or not low < high < old:
        return ""
    rate = (high - low) * 1000 / (pace.at - after.at)
    takes = round((old - low) * 1000 / rate)
    return f"; at {rate:,.0f} records/s it is back by {clock(after.at + takes)} UTC" if takes < _FORESEEN_MS else ""


def falls(history: History[Commit], min_records: int) -> Iterator[tuple[Commit, Commit]]:
    """(commit before, commit after) of falls by at least `min_records`, oldest first; small steps add up."""
    highest: Commit | None = None
    for one in history:
        if one.offset is None:
            continue
        if highest is None or highest.offset is None or one.offset >= highest.offset:
            highest = one
        elif highest.offset - one.offset >= min_records:
            yield highest, one
            highest = one
