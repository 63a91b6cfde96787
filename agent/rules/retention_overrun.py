"""retention_overrun: records are deleted before a living group has read them."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from agent.evidence import end_of, intervals, moves, recreated
from agent.facts import Facts
from agent.findings import Finding, Records
from agent.observations import Commit, LogOffsets, Observation
from agent.options import Duration
from agent.rule import Case, GroupRule, recovered


class RetentionOverrun(GroupRule):
    """The log's start passes the committed offset of a living group: records were deleted unread (retention, DeleteRecords).

    A group lives by its own rhythm: it has a member for the partition, or has committed the topic within max(`alive`, 3 x its longest
    interval). Not: abandoned groups, groups at the end of their log, a topic created again, a start already passed when first seen.
    Recovers when the group commits an offset within the log.
    """

    title = "{group} lost {records} unread records on {topic}[{partition}] to retention"

    alive: Duration = 60_000
    """How long after its last commit a group surely lives."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:
        """Each reading whose start passed a group's offset, and each commit below a later start."""
        match observation:
            case LogOffsets(cluster=cluster, topic=topic, partition=partition, log_start=start):
                last = facts.log_offsets(cluster, topic, partition).changes[-2:]
                if len(last) < len("ab") or last[0].log_start >= start:
                    return ()
                groups = [
                    group
                    for group in facts.groups_of(cluster, topic, partition)
                    if any(
                        one.offset is not None and one.offset < start
                        for one in facts.commits(cluster, group, topic, partition).changes[-8:]
                    )
                ]
            case Commit(cluster=cluster, topic=topic, partition=partition, offset=int() as offset, at=at):
                later = facts.log_offsets(cluster, topic, partition).after(at)
                groups = [observation.group] if any(one.log_start > offset for one in later) else []
            case _:
                return ()
        return [Case(cluster, group, topic, partition) for group in groups if self.judged(group, topic)]

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each reading whose start passed the offset that held then."""
        history = facts.commits(*case.series)
        for before, after in pairwise(facts.log_offsets(*case.in_partition)):
            commit = history.as_of(after.at)
            offset = commit.offset if commit is not None else None
            if commit is None or offset is None or not before.log_start <= offset < after.log_start:
                continue
            if recreated(facts, case.in_partition, min(before.at, commit.at), after.at) or not self._lives(
                case, after.at, facts
            ):
                continue
            lost = after.log_start - offset
            yield self.find(
                case,
                after,
                known_at=max(after.seen, commit.seen),
                detail=(
                    f"{case.group} on {case.topic}[{case.partition}] stood at {offset:,} when the log's start rose to {after.log_start:,}: "
                    f"{lost:,} records were deleted unread"
                ),
                previous={"offset": offset, "log_start": before.log_start},
                current={"log_start": after.log_start},
                records=Records(lost=lost),
            )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when the group commits within the log again, or the partition is no more."""
        start = int(finding.current["log_start"])
        within = (one.at for one in facts.commits(*case.series).after(finding.at) if (one.offset or -1) >= start)
        return recovered(finding, next(within, end_of(facts, case.in_partition, finding.at)))

    def _lives(self, case: Case, at: int, facts: Facts) -> bool:
        cluster, group, topic, partition = case.series
        state = facts.group(cluster, group).as_of(at)
        assigned = {pair for member in state.members for pair in member.partitions} if state is not None else set()
        if assigned:
            return (topic, partition) in assigned
        for one, number in facts.partitions_of(cluster, group):
            series = [commit for commit in moves(facts.commits(cluster, group, one, number)) if commit.at <= at]
            longest = max(intervals(series), default=0)
            if one == topic and longest and at - series[-1].at <= max(self.alive, 3 * longest):
                return True
        return False
