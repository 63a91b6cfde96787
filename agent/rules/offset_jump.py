"""offset_jump: a committed offset leaps ahead over records that cannot have been read."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from agent.evidence import by_operator, end_of, moves, recreated
from agent.facts import Facts
from agent.findings import Finding, Records, Severity
from agent.observations import Commit, LogOffsets, Observation
from agent.rule import Case, GroupRule, recovered

_RHYTHM = 4


class OffsetJump(GroupRule):
    """A group's committed offset leaps ahead over records it cannot have read: they were skipped (a reset to latest).

    Told when it came back to the log's end after Kafka had forgotten its offset (`after_expiry`), after its offset had fallen below the
    log's start (only what retention had left counts as skipped), when an operator moved an idle group (`operator_reset`; info), when it
    advanced faster than `max_rate`, or when a group that lagged leapt to the log's end `surge` times faster than it had ever read.
    Not: catching up, transaction markers, a topic created again, records deleted unread (retention_overrun tells that).
    Recovers when the group goes back to where it leapt from, to read what it skipped.
    """

    title = "{group} skipped {records} records on {topic}[{partition}]"

    min_records: int = 1000
    """Smallest leap told, in records skipped."""
    max_rate: int = 1_000_000
    """Records per second that no consumer reads from one partition."""
    surge: int = 20
    """How many times faster than ever before a lagging group may catch up."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:
        """Each commit that advanced by `min_records`; each log start that passed one before it."""
        match observation:
            case Commit(offset=int()):
                history = facts.commits(
                    observation.cluster, observation.group, observation.topic, observation.partition
                )
                leapt = any(
                    (after.offset or 0) - (before.offset or 0) >= self.min_records
                    for before, after in _last_pair(history.changes)
                )
                groups = [observation.group] if leapt else []
            case LogOffsets():
                previous = facts.log_offsets(observation.cluster, observation.topic, observation.partition).changes[-2:]
                risen = len(previous) > 1 and previous[0].log_start < previous[-1].log_start
                groups = facts.groups_of(observation.cluster, observation.topic, observation.partition) if risen else []
            case _:
                return ()
        return [
            Case(observation.cluster, one, observation.topic, observation.partition)
            for one in groups
            if self.judged(one, observation.topic)
        ]

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each leap that cannot have been read."""
        history = facts.commits(*case.series)
        series = moves(history)
        for index, (before, after) in enumerate(pairwise(series), start=1):
            old, new = before.offset or 0, after.offset or 0
            ends = facts.log_offsets(*case.in_partition)
            reading = ends.as_of(after.at)
            start = reading.log_start if reading is not None else 0
            skipped = new - max(old, start)
            if skipped < self.min_records or recreated(facts, case.in_partition, before.at, after.at):
                continue
            forgotten = any(one.offset is None for one in history if before.at < one.at <= after.at)
            operator = by_operator(facts, before, after, self.min_records)
            known_end = ends.as_of(before.at)
            to_latest = known_end is not None and new >= known_end.log_end
            if not (
                operator
                or (to_latest and (forgotten or old < start))
                or self._too_fast(series[: index + 1], to_latest, facts, case)
            ):
                continue
            labels = [
                label
                for label, holds in (
                    ("to_latest", to_latest),
                    ("after_expiry", forgotten),
                    ("operator_reset", operator),
                )
                if holds
            ]
            yield self.find(
                case,
                after,
                detail=f"{case.group} on {case.topic}[{case.partition}] leapt from {old:,} to {new:,}: {skipped:,} records were not read",
                severity=Severity.INFO if operator else None,
                labels=labels,
                previous={"offset": old},
                current={"offset": new},
                records=Records(skipped=skipped),
            )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when the group goes back to read what it skipped, or the partition is no more."""
        old = int(finding.previous["offset"])
        back = (
            one.at
            for one in facts.commits(*case.series).after(finding.at)
            if one.offset is not None and one.offset <= old
        )
        return recovered(finding, next(back, end_of(facts, case.in_partition, finding.at)))

    def _too_fast(self, series: list[Commit], to_latest: bool, facts: Facts, case: Case) -> bool:
        before, after = series[-2:]
        rates = [_rate(one, two) for one, two in pairwise(series)]
        if rates[-1] > self.max_rate:
            return True
        end = facts.log_offsets(*case.in_partition).as_of(before.at)
        lagged = end is not None and end.log_end - (before.offset or 0) >= self.min_records
        return len(rates) > _RHYTHM and to_latest and lagged and rates[-1] > self.surge * max(rates[:-1]) > 0


def _last_pair(changes: list[Commit]) -> list[tuple[Commit, Commit]]:
    known = [one for one in changes[-3:] if one.offset is not None]
    return list(pairwise(known))[-1:]


def _rate(before: Commit, after: Commit) -> float:
    return ((after.offset or 0) - (before.offset or 0)) * 1000 / max(after.at - before.start, 1)
