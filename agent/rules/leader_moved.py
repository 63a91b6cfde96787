"""leader_moved: a partition has another leader."""

from collections.abc import Iterable, Iterator

from agent.engine.facts import Facts
from agent.engine.rule import Scope, TopicRule, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState
from agent.rules.queries.partitions import find_leader_changes, find_unclean_elections, is_deleted, leader_of


class LeaderMoved(TopicRule):
    """A partition's leader is another broker than before. Info: a contributing event, never reported alone.

    Not: a time without a leader in between, the same broker elected again, the first leader of a re-created topic.
    Recovers when the old leader leads again, is back in the ISR, or is no longer a replica.
    """

    title = "leader of {topic}[{partition}] changed"
    default_severity = Severity.INFO
    changes_leader = True
    observes = (PartitionState,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, PartitionState) or leader_of(observation) is None:
            return ()
        if not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes
        changed = len(history) > 1 and leader_of(history[-2]) != leader_of(observation)
        return (Scope.of_partition(observation),) if changed else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(PartitionState, *scope.in_partition)
        for old, new in find_leader_changes(history):
            is_unclean = any(after is new for _, after in find_unclean_elections(history))
            change = f"leader {leader_of(old)} -> {leader_of(new)}{', unclean election' * is_unclean}"
            yield self.make_finding(
                scope,
                new,
                detail=f"{scope.topic}[{scope.partition}]: {change}",
                labels=("unclean",) if is_unclean else (),
                subject={"brokers": [leader_of(old), leader_of(new)]},
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
            if is_deleted(state) or old == leader_of(state) or old in state.isr or old not in state.replicas
        )
        return recovered(finding, next(back, None))
