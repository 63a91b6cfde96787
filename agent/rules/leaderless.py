"""leaderless: nobody leads a partition."""

from collections.abc import Iterable, Iterator

from agent.evidence import deleted, leader_of, spells
from agent.facts import Facts
from agent.findings import Finding
from agent.observations import Observation, PartitionState, clock
from agent.options import Duration
from agent.rule import Case, TopicRule, recovered


class Leaderless(TopicRule):
    """A partition has had no leader for `after`: it can neither be written nor read.

    Recovers when a broker leads it again or it is deleted.
    """

    title = "{topic}[{partition}] has no leader"
    sees = (PartitionState,)

    after: Duration = 300_000
    """How long it may last."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:  # noqa: ARG002 - the base's signature
        """Each partition state without a leader."""
        if (
            not isinstance(observation, PartitionState)
            or not _nobody(observation)
            or not self.topics.match(observation.topic)
        ):
            return ()
        return (Case(observation.cluster, None, observation.topic, observation.partition),)

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.partition(*case.in_partition), _nobody):
            if end is None or end.at >= begin.at + self.after:
                yield self.find(
                    case,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=(
                        f"nobody has led {case.topic}[{case.partition}] since {clock(begin.at)} UTC; "
                        f"its in-sync replicas are {list(begin.isr)}"
                    ),
                    subject={"brokers": list(begin.isr)},
                    current={"leader": None, "leader_epoch": begin.leader_epoch, "isr": list(begin.isr)},
                )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when somebody leads it or it is deleted."""
        states = facts.partition(*case.in_partition).after(finding.at)
        return recovered(finding, next((one.at for one in states if not _nobody(one)), None))


def _nobody(state: PartitionState) -> bool:
    return leader_of(state) is None and not deleted(state)
