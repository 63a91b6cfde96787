"""beyond_end: a committed offset lies beyond the end of the log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.ordinary import CommitProgress
from agent.engine.rule import Advice, GroupRule, Scope
from agent.model.batches import UNKNOWN, Flags
from agent.model.findings import Finding, Records, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.text import count, place
from agent.rules.queries.advice import REUSED_OFFSETS, prevent_truncation
from agent.rules.queries.causes import check_recreation
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    confirm_truncation,
    earliest,
    find_replicas,
    has_unclean_election,
    is_recreated,
)
from agent.rules.queries.positions import is_foreign_offset
from agent.rules.queries.subjects import recovered_or_ended


class BeyondEnd(GroupRule):
    """The log end offset, read after a commit, is below the committed offset: the log lost records the group has read.

    Reported at once after an unclean election, else when the log end offset is still lower 5 s later.
    New records reuse the offsets of the lost ones.
    Not: a log end offset read before the commit, a high watermark that drops for a moment on a clean leader change
    (before Kafka 2.2), a re-created topic, an offset that the log never had (foreign_offset).
    Recovers when the log has grown past the offset again or the group has committed an offset within the log.
    Ends when the topic or the committed offset is deleted.
    """

    title = "{group} has read {records} records on {topic}[{partition}] that the log no longer holds"
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Watch {reader} on {place}: its next fetch is out of range, and auto.offset.reset decides where it "
            f"resumes. {REUSED_OFFSETS}",
            only_while_open=True,
        ),
    }
    observes = (Commit, LogOffsets)
    ignores_growth = True

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        return super().advice_for(finding)._replace(prevent=prevent_truncation(finding))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        read, end = finding.previous.get("offset"), finding.current.get("log_end")
        if read is None or end is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        lost = count(finding.records.lost, "record")
        return f"{where}: read up to {read:,}, log ends at {end:,}, at least {lost} lost"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        match observation:
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_end=log_end):
                groups = [
                    commit.group
                    for history in facts.commits_beyond(cluster, topic, partition, log_end)
                    for commit in [history.as_of(observation.at - 1)]
                    if commit is not None and (commit.offset or 0) > log_end
                ]
            case Commit(cluster=cluster, topic=topic, partition=partition, offset=int() as offset, at=at):
                later = facts.history(LogOffsets, cluster, topic, partition).after(at)
                if not any(reading.log_end < offset for reading in later):
                    return ()
                groups = [observation.group]
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def ignores_progress(self, progress: CommitProgress, facts: Facts) -> Flags:
        is_below = progress.offset <= progress.logs.next_end
        # Otherwise a later reading may be below it.
        decreased_at = progress.of_partition(facts.partitions.decreased_at)
        has_grown = (progress.at >= decreased_at) | (
            progress.at >= progress.of_partition(facts.partitions.read_before_at)
        )
        return is_below & has_grown

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        reported: int | None = None
        for reading in facts.history(LogOffsets, *scope.in_partition):
            commit = _committed_before(facts.history(Commit, *scope.series), reading)
            offset = commit.offset if commit is not None else None
            if commit is None or offset is None or offset <= reading.log_end or is_foreign_offset(facts, commit):
                reported = None
                continue
            if offset == reported or is_recreated(facts, scope.in_partition, commit.at, reading.at):
                continue
            reported = offset
            known_at = confirm_truncation(facts, scope.in_partition, offset, commit.at, reading)
            if known_at is not None:
                yield self._finding(scope, commit, reading, known_at, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        offset, end = int(finding.previous["offset"]), int(finding.current["log_end"])
        readings, commits = facts.history(LogOffsets, *scope.in_partition), facts.history(Commit, *scope.series)
        regrown_at = readings.when(finding.at, "log_end", lambda log_end: log_end >= offset)
        returned_at = commits.when(finding.at, "offset", lambda offset: (offset != UNKNOWN) & (offset <= end))
        return recovered_or_ended(finding, earliest(regrown_at, returned_at), scope, facts)

    def _finding(self, scope: Scope, commit: Commit, reading: LogOffsets, known_at: int, facts: Facts) -> Finding:
        offset = commit.offset or 0
        is_unclean = has_unclean_election(facts, scope.in_partition, commit.at, reading.at)
        return self.make_finding(
            scope,
            reading,
            since=max(commit.at, reading.since or commit.at),
            known_at=max(known_at, commit.seen),
            detail=(
                f"{scope.group} had read {scope.topic}[{scope.partition}] up to {offset:,}, but the log ends at "
                f"{reading.log_end:,}: at least {count(offset - reading.log_end, 'record')} lost"
            ),
            labels=("unclean",) if is_unclean else (),
            previous={"offset": offset},
            current={"log_end": reading.log_end, **find_replicas(facts, scope.in_partition, reading.at)},
            records=Records(lost=offset - reading.log_end),
            checks=[check_recreation(facts, scope.in_partition, commit.at, reading.at)],
        )


def _committed_before(history: History[Commit], reading: LogOffsets) -> Commit | None:
    """Return the commit that held when log offsets were read; None if it may have been made after that.

    The coordinator's clock dates commits that are read in the log. What was seen by then was made by then.
    """
    commit = history.as_of(reading.at - 1)
    if commit is None or commit.seen <= reading.at or commit.at <= reading.at - CLOCK_SLACK_MS:
        return commit
    before = history.as_of(reading.at - CLOCK_SLACK_MS)
    return None if before is None else min(commit, before, key=lambda made: made.offset or 0)
