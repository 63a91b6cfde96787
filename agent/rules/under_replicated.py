"""under_replicated: a partition lacks in-sync replicas."""

from collections.abc import Iterable, Iterator

from agent.evidence import spells
from agent.facts import Facts
from agent.findings import Finding
from agent.observations import Observation, PartitionState, clock
from agent.options import Duration
from agent.rule import Case, TopicRule, recovered


class UnderReplicated(TopicRule):
    """A partition's ISR has been smaller than its replica set for `after`.

    Recovers when it is whole again or deleted.
    """

    title = "{topic}[{partition}] is under-replicated"
    sees = (PartitionState,)

    after: Duration = 300_000
    """How long it may last."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:  # noqa: ARG002 - the base's signature
        """Each partition state that lacks replicas."""
        if (
            not isinstance(observation, PartitionState)
            or not _lacking(observation)
            or not self.topics.match(observation.topic)
        ):
            return ()
        return (Case(observation.cluster, None, observation.topic, observation.partition),)

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.partition(*case.in_partition), _lacking):
            if end is None or end.at >= begin.at + self.after:
                missing = sorted(set(begin.replicas) - set(begin.isr))
                where = f"{case.topic}[{case.partition}]"
                yield self.find(
                    case,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"{where} lacks in-sync replicas on {missing} since {clock(begin.at)} UTC",
                    subject={"brokers": missing},
                    previous={"replicas": list(begin.replicas)},
                    current={"isr": list(begin.isr)},
                )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when the partition is whole again or deleted."""
        states = facts.partition(*case.in_partition).after(finding.at)
        return recovered(finding, next((one.at for one in states if not _lacking(one)), None))


def _lacking(state: PartitionState) -> bool:
    return len(state.isr) < len(state.replicas)
