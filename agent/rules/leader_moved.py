"""leader_moved: a partition has another leader."""

from collections.abc import Iterable, Iterator

from agent.engine.facts import Facts
from agent.engine.rule import Scope, TopicRule, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations import Observation, PartitionState, clock
from agent.rules.queries.partitions import deleted, leader_moves, leader_of, unclean_elections


class LeaderMoved(TopicRule):
    """A partition's leader is another broker than before. Info: a cause, never posted alone.

    Not: a time without a leader in between, the same broker elected again, the first leader of a topic created again.
    Recovers when the old leader leads again, is back in the ISR, or is no replica any more.
    """

    title = "leader of {topic}[{partition}] moved"
    default_severity = Severity.INFO
    changes_leader = True
    observes = (PartitionState,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each partition state after the first that has a leader."""
        if (
            not isinstance(observation, PartitionState)
            or leader_of(observation) is None
            or not self.topics.match(observation.topic)
        ):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes
        moved = len(history) > 1 and leader_of(history[-2]) != leader_of(observation)
        return (Scope(observation.cluster, None, observation.topic, observation.partition),) if moved else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each move within one incarnation."""
        for old, new in leader_moves(facts.history(PartitionState, *scope.in_partition)):
            unclean = any(
                after is new for _, after in unclean_elections(facts.history(PartitionState, *scope.in_partition))
            )
            move = f"{leader_of(old)} -> {leader_of(new)} at {clock(new.at)} UTC{' (unclean)' * unclean}"
            yield self.make_finding(
                scope,
                new,
                detail=f"leader of {scope.topic}[{scope.partition}] {move}",
                labels=("unclean",) if unclean else (),
                subject={"brokers": [leader_of(old), leader_of(new)]},
                previous={"leader": leader_of(old), "leader_epoch": old.leader_epoch},
                current={"leader": leader_of(new), "leader_epoch": new.leader_epoch, "isr": list(new.isr)},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the old leader leads or is in sync again, or the partition or the replica is no more."""
        old = finding.previous["leader"]
        history = facts.history(PartitionState, *scope.in_partition)
        held = history.as_of(finding.at)
        states = [*([] if held is None else [held]), *history.after(finding.at)]
        back = (
            one.at
            for one in states
            if deleted(one) or old == leader_of(one) or old in one.isr or old not in one.replicas
        )
        return recovered(finding, next(back, None))
