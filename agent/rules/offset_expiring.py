"""offset_expiring: Kafka will soon forget the committed offsets of a group without members."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.condition_rule import intervals_where
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.name_filter import NameFilter
from agent.model.observations.kafka import ClusterSettings, Commit, GroupState
from agent.model.text import day_of, instant, span
from agent.rules.queries.operators import find_end_of_absence
from agent.rules.queries.subjects import partitions_of
from agent.rules.queries.unread import first_not_final

_SHARE = 4
"""The warning comes at the earliest in the last quarter of offsets.retention.minutes."""


class OffsetExpiring(GroupRule):
    """A group that had members has been Empty for so long that Kafka forgets its committed offsets within `before`.

    After offsets.retention.minutes without members; then the group begins at auto.offset.reset, which reprocesses or
    skips records. Needs the cluster's settings.
    Not: groups that only use assign(), whose offsets expire after the last commit.
    Recovers when a member joins. Over when the offsets have expired or the group is deleted.
    """

    title = "the committed offsets of {group} expire soon"
    is_ongoing = True
    is_single = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="If {reader} is still needed, start it once before then, or note its offsets: "
            "`kafka-consumer-groups.sh --bootstrap-server HOST:PORT --describe --group {group_argument}`. If not, "
            "delete the group.",
            prevent="Raise offsets.retention.minutes above the longest pause of {reader}.",
            only_while_open=True,
        ),
    }
    observes = ()
    revisits = GroupState

    groups: NameFilter = NameFilter(exclude=["console-consumer-*"])
    """Which groups the rule is about."""
    before: PositiveDuration = 86_400_000
    """How long before the offsets expire, at most a quarter of offsets.retention.minutes."""

    def revisit(self, history: History[GroupState], facts: Facts) -> Iterable[Scope]:
        state = first_not_final(facts, history)
        if not _is_empty(state) or not self.groups.match(state.group):
            return ()
        retention = _retention(facts, state.cluster)
        if retention is None or facts.now < state.at + retention - self.before:
            return ()
        return (Scope(state.cluster, state.group),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, group = scope.cluster, scope.group or ""
        retention = _retention(facts, cluster)
        if retention is None:
            return
        states = facts.history(GroupState, cluster, group)
        for interval in intervals_where(states, _is_empty):
            empty, expires_at = interval.begin, interval.begin.at + retention
            at = expires_at - min(self.before, retention // _SHARE)
            known_at = next((state.seen for state in states.after(at - 1)), states.confirmed)
            if known_at < at or (interval.end is not None and interval.end.at <= at):
                continue
            if not facts.had_members(cluster, group, empty.at) or not self._has_offsets(scope, facts, at):
                continue
            day = day_of(at)
            yield self.make_finding(
                scope,
                empty,
                at=at,
                since=at,
                known_at=known_at,
                detail=f"{group} has had no members since {instant(empty.at, day)} UTC: Kafka forgets its committed "
                f"offsets {span(retention)} after that, at {instant(expires_at, day)} UTC or soon after",
                current={"state": empty.state, "expires_at": expires_at},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        end = find_end_of_absence(facts, scope.cluster, scope.group or "", finding.at)
        if end is not None and end.is_gone:
            return ended(finding, end.at, "the group was deleted or its offsets expired")
        if end is not None:
            return recovered(finding, end.at)
        forgotten = [
            commit.at
            for topic, partition in partitions_of(facts, scope.cluster, scope.group or "")
            for commit in [facts.history(Commit, scope.cluster, scope.group or "", topic, partition).last]
            if commit is not None and commit.offset is None and commit.at > finding.at
        ]
        return ended(finding, min(forgotten), "its offsets expired") if forgotten else finding

    def _has_offsets(self, scope: Scope, facts: Facts, at: int) -> bool:
        cluster, group = scope.cluster, scope.group or ""
        return any(
            commit is not None and commit.offset is not None and self.topics.match(topic)
            for topic, partition in partitions_of(facts, cluster, group)
            for commit in [facts.history(Commit, cluster, group, topic, partition).as_of(at)]
        )


def _is_empty(state: GroupState) -> bool:
    """Return whether the group has no members. offsets.retention.minutes does not apply to share groups (KIP-932)."""
    return state.state == "Empty" and state.type != "share"


def _retention(facts: Facts, cluster: str) -> int | None:
    settings = facts.history(ClusterSettings, cluster).last
    return None if settings is None or settings.offsets_retention_ms <= 0 else settings.offsets_retention_ms
