"""under_replicated: a partition lacks in-sync replicas."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations import Observation, PartitionState, clock
from agent.rules.queries.partitions import spells


class UnderReplicated(TopicRule):
    """A partition's ISR has been smaller than its replica set for `after`.

    Recovers when it is whole again or deleted.
    """

    title = "{topic}[{partition}] is under-replicated"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="see why replicas of {place} do not follow (broker down, disk, network).", only_while_open=True),
    }
    observes = (PartitionState,)

    after: Duration = 300_000
    """How long it may last."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each partition state that lacks replicas."""
        if (
            not isinstance(observation, PartitionState)
            or not _lacking(observation)
            or not self.topics.match(observation.topic)
        ):
            return ()
        return (Scope(observation.cluster, None, observation.topic, observation.partition),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.history(PartitionState, *scope.in_partition), _lacking):
            if end is None or end.at >= begin.at + self.after:
                missing = sorted(set(begin.replicas) - set(begin.isr))
                where = f"{scope.topic}[{scope.partition}]"
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"{where} lacks in-sync replicas on {missing} since {clock(begin.at)} UTC",
                    subject={"brokers": missing},
                    previous={"replicas": list(begin.replicas)},
                    current={"isr": list(begin.isr)},
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the partition is whole again or deleted."""
        states = facts.history(PartitionState, *scope.in_partition).after(finding.at)
        return recovered(finding, next((one.at for one in states if not _lacking(one)), None))


def _lacking(state: PartitionState) -> bool:
    return len(state.isr) < len(state.replicas)
