"""unclean_election: a partition's new leader was not in its ISR."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.findings import Finding
from agent.model.observations import Observation, PartitionState, clock
from agent.model.text import change, leader_name, place, time_range
from agent.rules.queries.partitions import deleted, leader_of, unclean_elections


class UncleanElection(TopicRule):
    """A leader was elected that was not in the ISR: what it had not replicated is lost.

    Kafka does so with unclean.leader.election.enable=true. Inferred: the new leader was not in the ISR seen before.
    Not: a leader that had caught up between two polls (an old in-sync replica then stands beside it in the ISR), a
    reassignment (the replicas are others), a topic created again.
    Recovers when the replicas that were in sync before are so again.
    """

    title = "unclean leader election on {topic}[{partition}]"
    changes_leader = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="unclean.leader.election.enable=false for {topic}."),
    }
    observes = (PartitionState,)

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Say who led, who leads and why that is unclean."""
        isr = ", ".join(map(str, finding.previous.get("isr") or ())) or "nobody"
        leader = leader_name(finding.current.get("leader"))
        return (
            f"leader of {place(finding.subject)}{change(finding)} {time_range(finding, day)} "
            f"(unclean: {leader} was not in the ISR, which was {isr})"
        )

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each partition state whose leader was not in the ISR before."""
        if not isinstance(observation, PartitionState) or not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes
        outside = (
            len(history) > 1 and leader_of(observation) is not None and leader_of(observation) not in history[-2].isr
        )
        return (Scope(observation.cluster, None, observation.topic, observation.partition),) if outside else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each unclean election."""
        for before, after in unclean_elections(facts.history(PartitionState, *scope.in_partition)):
            old, new = leader_of(before), leader_of(after)
            brokers = [one for one in (*before.isr, new) if one is not None]
            yield self.make_finding(
                scope,
                after,
                detail=(
                    f"{scope.topic}[{scope.partition}] elected {new}, which was not in the ISR {list(before.isr)}, "
                    f"at {clock(after.at)} UTC"
                ),
                subject={"brokers": list(dict.fromkeys(brokers))},
                previous={"leader": old, "leader_epoch": before.leader_epoch, "isr": list(before.isr)},
                current={"leader": new, "leader_epoch": after.leader_epoch, "isr": list(after.isr)},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when those in sync before are in sync again, as far as they are replicas still."""
        in_sync = set(finding.previous["isr"])
        states = facts.history(PartitionState, *scope.in_partition).after(finding.at)
        return recovered(
            finding,
            next((one.at for one in states if deleted(one) or in_sync & set(one.replicas) <= set(one.isr)), None),
        )
