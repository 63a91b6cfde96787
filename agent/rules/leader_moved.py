"""leader_moved: a partition has another leader."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Scope, TopicRule, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState
from agent.model.topic_ids import is_other_incarnation
from agent.rules.queries.partitions import (
    find_leader_changes,
    find_unclean_elections,
    leader_of,
)


class LeaderMoved(TopicRule):
    """A partition's leader is another broker than before, or was elected again. Info: never reported alone.

    Labels: `unclean`, `elected_again` (the same broker under a higher leader epoch: it was away for a moment).
    Not: a time without a leader in between, an epoch that rises with a smaller ISR (brokers do so without an election),
    the first leader of a re-created topic.
    Recovers when the old leader leads again, is back in the ISR, or is no longer a replica.
    """

    title = "leader of {topic}[{partition}] changed"
    titles: ClassVar[Mapping[str, str]] = {"elected_again": "leader of {topic}[{partition}] was elected again"}
    default_severity = Severity.INFO
    observes = (PartitionState,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, PartitionState) or leader_of(observation) is None:
            return ()
        if not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes
        changed = len(history) > 1 and (
            leader_of(history[-2]) != leader_of(observation) or history[-2].leader_epoch != observation.leader_epoch
        )
        return (Scope.of_partition(observation),) if changed else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(PartitionState, *scope.in_partition)
        elections = [election.after for election in find_unclean_elections(facts, scope.in_partition)]
        for old, new in [*find_leader_changes(history), *_find_reelections(history)]:
            is_unclean = any(new is after for after in elections)
            is_same = leader_of(old) == leader_of(new)
            change = f"leader {leader_of(old)} -> {leader_of(new)}{', unclean election' * is_unclean}"
            again = f"leader {leader_of(new)} elected again (leader epoch {old.leader_epoch} -> {new.leader_epoch})"
            yield self.make_finding(
                scope,
                new,
                detail=f"{scope.topic}[{scope.partition}]: {again if is_same else change}",
                labels=("unclean",) if is_unclean else ("elected_again",) if is_same else (),
                subject={"brokers": [leader_of(new)] if is_same else [leader_of(old), leader_of(new)]},
                previous={"leader": leader_of(old), "leader_epoch": old.leader_epoch},
                current={"leader": leader_of(new), "leader_epoch": new.leader_epoch, "isr": list(new.isr)},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = finding.previous["leader"]
        history = facts.history(PartitionState, *scope.in_partition)
        known = history.as_of(finding.at)
        states = [*([] if known is None else [known]), *history.after(finding.at)]
        back = (
            state.at
            for state in states
            if state.is_deleted or old == leader_of(state) or old in state.isr or old not in state.replicas
        )
        return recovered(finding, next(back, None))


def _find_reelections(history: Iterable[PartitionState]) -> Iterator[tuple[PartitionState, PartitionState]]:
    """Yield (last state before, first state after) of elections of the broker that led before, oldest first."""
    old: PartitionState | None = None
    was_offline = False
    for state in history:
        if state.is_deleted:
            old = None
        elif leader_of(state) is None:
            was_offline = True
        else:
            is_next = old is not None and not is_other_incarnation(old.topic_id, state.topic_id)
            if old is not None and is_next and leader_of(old) == leader_of(state):
                before, after = old.leader_epoch, state.leader_epoch
                is_higher = before is not None and after is not None and before < after
                if is_higher and (was_offline or set(old.isr) <= set(state.isr)):
                    yield old, state
            old, was_offline = state, False
