"""two_committers: two clients move one committed offset of a group in turns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, FLOOR
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.findings import Finding, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from agent.model.text import place
from agent.model.times import clock
from agent.rules.queries.partitions import find_deletion, is_recreated
from agent.rules.queries.unread import longest_interval

_TURNS = 3
"""How often each of the two must have taken over from the other."""

_QUIET_MS = FINALIZATION_MS
"""Histories are certain to hold that much."""


class TwoCommitters(GroupRule):
    """A group's committed offset of a partition alternates between two positions that both advance.

    Each of the two takes over three times, and the distance between them is larger than what either advances meanwhile.
    Two clients use assign() with one group.id, or two applications share a group.id: each restart takes up the wrong
    position, and records are processed twice or skipped.
    Not: a single rewind or several, commits that arrive out of order.
    Recovers when the offset has not alternated for three minutes, or ten of the group's longest intervals.
    """

    title = "two clients commit offsets of {group} on {topic}[{partition}] in turns"
    is_ongoing = True
    is_single = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find both clients that use the group.id {reader} (kafka-consumer-groups --describe --members; with "
            "assign() only their own configuration shows it) and give one of them another group.id.",
            prevent="Use subscribe(), or one group.id per application.",
        ),
    }
    observes = (Commit,)
    ignores_all_progress = True

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        low, high = finding.previous.get("offset"), finding.current.get("offset")
        if low is None or high is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: committed offset alternates between {min(low, high):,} and {max(low, high):,}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scope of a commit that moved back, if so many before it did."""
        match observation:
            case Commit(cluster=cluster, group=group, topic=topic, partition=partition, offset=int() as offset):
                changes = facts.history_of(observation).changes
            case _:
                return ()
        if len(changes) < 2 * _TURNS or (changes[-2].offset or 0) <= offset or not self.applies_to(group, topic):
            return ()
        recent = changes[-FLOOR:]
        moved_back = sum((after.offset or 0) < (before.offset or 0) for before, after in pairwise(recent))
        return (Scope(cluster, group, topic, partition),) if moved_back >= _TURNS else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        commits = [commit for commit in facts.history(Commit, *scope.series) if commit.offset is not None]
        for index, (before, after) in enumerate(pairwise(commits), 1):
            if (after.offset or 0) >= (before.offset or 0):
                continue
            recent = commits[max(index + 1 - FLOOR, 0) : index + 1]
            first = _find_alternation(recent)
            if first is None or is_recreated(facts, scope.in_partition, first.at, after.at):
                continue
            yield self.make_finding(
                scope,
                after,
                since=first.at,
                detail=f"{scope.group} on {scope.topic}[{scope.partition}]: two clients have committed in turns since "
                f"{clock(first.at)} UTC, now at {after.offset:,} and {before.offset:,}",
                previous={"offset": before.offset},
                current={"offset": after.offset},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        commits = [commit for commit in facts.history(Commit, *scope.series) if commit.offset is not None]
        moved_back = [after.at for before, after in pairwise(commits) if (after.offset or 0) < (before.offset or 0)]
        quiet = max(_QUIET_MS, 10 * longest_interval(commits))
        last = max([finding.at, *moved_back, int(finding.current.get("last_at", finding.at))])
        deleted = find_deletion(facts, scope.in_partition, finding.at)
        over = last + quiet if deleted is None else deleted
        if over <= facts.now:  # the history may forget the last turn before the finding is final
            finding = replace(finding, current={**finding.current, "last_at": last})
        return recovered(finding, over)


def _find_alternation(commits: Sequence[Commit]) -> Commit | None:
    """Return the first of the latest commits that two clients made in turns, or None if they did not."""
    for begin in range(len(commits) - 2 * _TURNS + 1):
        if _is_alternating([commit.offset or 0 for commit in commits[begin:]]):
            return commits[begin]
    return None


def _is_alternating(offsets: Sequence[int]) -> bool:
    """Return whether the offsets are two series that both advance, further apart than either advances at a time."""
    low, high = min(offsets[:2]), max(offsets[:2])
    series: list[list[int]] = [[], []]
    owners: list[int] = []
    for offset in offsets:
        owner = int(abs(offset - high) < abs(offset - low))
        series[owner].append(offset)
        owners.append(owner)
        low, high = (offset, high) if owner == 0 else (low, offset)
    if not all(len(own) > _TURNS - 1 and own[0] < own[-1] and own == sorted(own) for own in series):
        return False
    largest_step = max(after - before for own in series for before, after in pairwise(own))
    switches = [(owner, after) for owner, after in pairwise(owners) if owner != after]
    distance = min(
        (
            abs(after - before)
            for (before, after), (old, new) in zip(pairwise(offsets), pairwise(owners), strict=True)
            if old != new
        ),
        default=0,
    )
    up, down = switches.count((0, 1)), switches.count((1, 0))
    return min(up, down) >= _TURNS - 1 and max(up, down) >= _TURNS and distance > largest_step
