"""consumer_stopped: a group that consumed regularly has no members any more and leaves records unread."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.model.text import count, places, span
from agent.model.times import clock
from agent.rules.queries.operators import find_end_of_absence, is_empty
from agent.rules.queries.partitions import CLOCK_SLACK_MS, drop_unmoved
from agent.rules.queries.subjects import groups_of, partitions_of
from agent.rules.queries.unread import (
    MARKER,
    REGULAR,
    first_not_final,
    first_observed,
    first_unread,
    log_end_at,
    remembered,
)

_MOSTLY = 10
"""How many times longer than its longest absence a group has run if it is a service rather than a job."""

_JOB_MS = 26 * 3_600_000
"""How long a job may be away in any case: a nightly one, an hour or two late."""

_FORGOTTEN_MS = 8 * 86_400_000

_DEPLOYMENT_MS = 300_000
"""How long after the old group the new one may start when a group is renamed."""


class _Absence(NamedTuple):
    """A time without members. uptime: how long the group ran before; longest: its longest absence before, ms."""

    begin: GroupState
    end: GroupState | None
    uptime: int
    longest: int


class ConsumerStopped(GroupRule):
    """A group that had members and committed regularly has been Empty for `after` with records to read.

    A group that comes and goes is a job: reported after three times its longest absence and at least 26 hours. An
    absence counts for eight days after its end.
    Not: a group that ran for less than `min_uptime`, has read everything, was deleted, or runs on another cluster now.
    Nor one that was renamed: a new group began within 5 minutes, still has consumers, and has committed each of the
    partitions.
    Recovers when a member joins. Over when the group is deleted.
    """

    title = "{group} has stopped consuming"
    is_ongoing = True
    is_single = True
    is_delay = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Start the consumers of {reader}; their logs tell why they stopped. If it was retired, delete the "
            "group: `kafka-consumer-groups.sh --bootstrap-server HOST:PORT --delete --group {group_argument}`.",
            only_while_open=True,
        ),
    }
    observes = ()
    revisits = GroupState

    after: PositiveDuration = 900_000
    """How long the group may be without members."""
    min_uptime: PositiveDuration = 1_800_000
    """How long the group must have had members before."""

    def revisit(self, history: History[GroupState], facts: Facts) -> Iterable[Scope]:
        state = first_not_final(facts, history)
        is_away = state.state == "Empty" and self.after <= facts.now - state.at <= _FORGOTTEN_MS
        return (Scope(state.cluster, state.group),) if is_away and self.groups.match(state.group) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        group = scope.group or ""
        for absence in _absences(facts, scope.cluster, group, self.after):
            begin = absence.begin
            if absence.uptime < self.min_uptime:
                continue
            is_job = absence.uptime < _MOSTLY * absence.longest
            due = begin.at + (max(self.after, 3 * absence.longest, _JOB_MS) if is_job else self.after)
            unread_from, partitions, records = self._find_unread(scope, facts, begin.at, due)
            due = max(due, begin.seen, unread_from + self.after)
            if not partitions or (absence.end is not None and absence.end.start < due):
                continue
            observed = (first_observed(facts, (scope.cluster, group, *pair), due) for pair in partitions)
            known_at = min((at for at in observed if at is not None), default=None)
            if known_at is None:
                continue
            if self._is_replaced(scope, facts, partitions, begin.at, due):
                continue
            where = places({"topic": topic, "partition": partition} for topic, partition in partitions)
            yield self.make_finding(
                scope,
                begin,
                known_at=known_at,
                detail=f"{group} has had no members since {clock(begin.at)} UTC, after {span(absence.uptime)} or more "
                f"with members: {count(records, 'record')} unread on {where}",
                current={"state": begin.state, "unread": records},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        end = find_end_of_absence(facts, scope.cluster, scope.group or "", finding.at)
        if end is not None and end.is_gone:
            return ended(finding, end.at, "the group was deleted")
        return finding if end is None else recovered(finding, end.at)

    def _find_unread(self, scope: Scope, facts: Facts, begin: int, due: int) -> tuple[int, list[tuple[str, int]], int]:
        """Return since when there are records to read, on which partitions, and how many when they are due.

        Nothing if the group has committed none of its partitions regularly.
        """
        group, partitions, records, times = scope.group or "", [], 0, [begin]
        is_regular = False
        for topic, partition in partitions_of(facts, scope.cluster, group):
            history = facts.history(Commit, scope.cluster, group, topic, partition)
            commit = history.as_of(due)
            if commit is None or commit.offset is None or not self.topics.match(topic):
                continue
            moves = [move for move in drop_unmoved(history) if move.at <= begin + CLOCK_SLACK_MS]
            is_regular = is_regular or len(moves) >= REGULAR
            log = facts.history(LogOffsets, scope.cluster, topic, partition)
            unread = first_unread(remembered(log), commit.offset + MARKER)
            if unread is None:
                continue
            partitions.append((topic, partition))
            times.append(unread[1])
            records += max(int(log_end_at(log, max(due, unread[1])) or 0) - commit.offset, 0)
        unread_from = max(begin, min(times[1:], default=begin))
        return (unread_from, partitions, records) if is_regular else (begin, [], 0)

    def _is_replaced(self, scope: Scope, facts: Facts, partitions: list[tuple[str, int]], begin: int, due: int) -> bool:
        """Return whether a new group reads these partitions instead, or the group runs on another cluster now."""
        cluster, group = scope.cluster, scope.group or ""
        readers = (set(groups_of(facts, cluster, *partition)) for partition in partitions)
        is_renamed = any(
            not facts.had_members(cluster, other, begin - self.after)
            and facts.had_members(cluster, other, begin + _DEPLOYMENT_MS)
            and _still_reads(facts, cluster, other, partitions, due)
            for other in set.intersection(*readers) - {group}
        )
        return is_renamed or any(
            state.has_consumers and state.cluster != cluster and state.at > begin - self.after
            for history in facts.histories(GroupState, group=group)
            for state in [history.as_of(due)]
            if state is not None
        )


def _still_reads(facts: Facts, cluster: str, group: str, partitions: list[tuple[str, int]], at: int) -> bool:
    """Return whether the group has consumers at that moment and has committed each of the partitions by then."""
    state = facts.history(GroupState, cluster, group).as_of(at)
    commits = (facts.history(Commit, cluster, group, *partition).as_of(at) for partition in partitions)
    return (
        state is not None
        and state.has_consumers
        and all(commit is not None and commit.offset is not None for commit in commits)
    )


def _absences(facts: Facts, cluster: str, group: str, after: int) -> Iterator[_Absence]:
    """Yield the times of at least `after` ms in which the group was Empty, oldest first."""
    presence, changes = facts.presence(cluster, group), facts.history(GroupState, cluster, group).changes
    for index, state in enumerate(changes):
        up_since = presence.up_since(after)
        if up_since is not None and is_empty(state) and presence.empty_since is None:
            end = next((later for later in changes[index + 1 :] if not is_empty(later)), None)
            if end is None or end.at - state.at >= after:
                yield _Absence(state, end, state.at - up_since, presence.longest_absence(after))
        presence = presence.then(state)
