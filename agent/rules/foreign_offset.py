"""foreign_offset: a committed offset lies beyond everything that its log ever had."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.engine.ordinary import CommitProgress
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.batches import Flags
from agent.model.findings import Finding, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.text import place
from agent.rules.queries.partitions import confirm_truncation, earliest, find_deletion
from agent.rules.queries.positions import is_beyond_growth, is_beyond_usual_growth, is_foreign_offset, is_near_log_end


class ForeignOffset(GroupRule):
    """A group commits an offset that its log never had, such as the offset of another partition.

    Nothing was read up to there and nothing is lost, but a consumer that starts from it is out of range. Reported if
    the log cannot have grown up to the offset, ten times faster than it was ever observed to grow, and the log end
    offset is still lower 5 s after the next reading, or does not change for a minute. A burst of less than 1,000
    records/s is ruled out, a minute after the commit, if the log end offset does not decrease and neither leader nor
    ISR change: the burst would have been truncated.
    Not: an offset that the log had before it was truncated (beyond_end), one that the log reaches within a minute, the
    first reading of a partition, a re-created topic.
    Recovers when the group commits an offset within the log.
    """

    title = "{group} committed an offset on {topic}[{partition}] that the log never had"
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Commit a valid offset for {reader} on {place} before it restarts: from {high} its first fetch is out "
            "of range, and auto.offset.reset decides where it resumes.",
            prevent="Find out what committed it: an application that mixes up partitions, a tool, or an offset copied "
            "from another cluster.",
            only_while_open=True,
        ),
    }
    observes = (Commit, LogOffsets)
    ignores_growth = True

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        offset, end = finding.current.get("offset"), finding.current.get("log_end")
        if offset is None or end is None:
            return super().timeline(finding, day)
        return f"{reader(finding.subject)} on {place(finding.subject)}: committed {offset:,}, log ends at {end:,}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        match observation:
            case Commit():
                if not is_beyond_usual_growth(facts, observation):
                    return ()
                commits = [observation]
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_end=log_end):
                # It may arrive after later commits.
                histories = facts.commits_beyond(cluster, topic, partition, log_end)
                commits = [commit for history in histories for commit in history.after(observation.at - 1)]
            case _:
                return ()
        return [
            Scope(commit.cluster, commit.group, commit.topic, commit.partition)
            for commit in commits
            if self.applies_to(commit.group, commit.topic) and is_beyond_usual_growth(facts, commit)
        ]

    def ignores_progress(self, progress: CommitProgress, facts: Facts) -> Flags:
        del facts
        return is_near_log_end(progress)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        readings, was_foreign = facts.history(LogOffsets, *scope.in_partition), False
        previous: Commit | None = None
        for commit in facts.history(Commit, *scope.series):
            before, previous = previous, commit
            is_first, was_foreign = not was_foreign, is_foreign_offset(facts, commit)
            if not is_first or not was_foreign:
                continue
            offset, known_at = commit.offset or 0, self._known_at(commit, facts)
            reading = next(iter(readings.after(commit.at)), None) or readings.as_of(commit.at)
            if known_at is None or reading is None:
                continue
            yield self.make_finding(
                scope,
                commit,
                known_at=known_at,
                detail=(
                    f"{scope.group} committed {offset:,} on {scope.topic}[{scope.partition}], but the log ends at "
                    f"{reading.log_end:,} and never had that offset: it is no position in this log"
                ),
                previous={} if before is None or before.offset is None else {"offset": before.offset},
                current={"offset": offset, "log_end": reading.log_end},
            )

    def _known_at(self, commit: Commit, facts: Facts) -> int | None:
        """Return when it is certain that the offset is foreign, or may be, or None if it is not."""
        partition = (commit.cluster, commit.topic, commit.partition)
        reading = next(iter(facts.history(LogOffsets, *partition).after(commit.at)), None)
        proven_at = commit.seen + LATENESS_MS
        if reading is None or reading.at > commit.at + LATENESS_MS:  # the log stands still
            return proven_at
        certain_at = confirm_truncation(facts, partition, commit.offset or 0, commit.at, reading)
        if certain_at is None:
            return None
        # Otherwise a change of the leader, which may arrive late, would leave it open.
        return max(certain_at, commit.seen if is_beyond_growth(facts, commit) else proven_at)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        offset = int(finding.current["offset"])
        commits = facts.history(Commit, *scope.series).after(finding.at)
        readings = facts.history(LogOffsets, *scope.in_partition)
        grown_at = readings.when(finding.at, "log_end", lambda log_end: log_end >= offset)
        elsewhere = (commit for commit in commits if commit.offset != offset)
        moved = next((commit for commit in elsewhere if not is_foreign_offset(facts, commit)), None)
        over = earliest(grown_at, find_deletion(facts, scope.in_partition, finding.at))
        if moved is None or (over is not None and over <= moved.at):
            return recovered(finding, over)
        return (
            ended(finding, moved.at, "its offset was deleted") if moved.offset is None else recovered(finding, moved.at)
        )
