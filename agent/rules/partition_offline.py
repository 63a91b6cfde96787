"""partition_offline: nobody leads a partition."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations import Observation, PartitionState, clock
from agent.rules.queries.partitions import deleted, leader_of, spells


class PartitionOffline(TopicRule):
    """A partition has had no leader for `after`: it can neither be written nor read.

    Recovers when a broker leads it again or it is deleted.
    """

    title = "{topic}[{partition}] has no leader"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="bring back a replica of {place} that was in the ISR; an unclean election instead would lose records.",
            only_while_open=True,
        ),
    }
    observes = (PartitionState,)

    after: Duration = 300_000
    """How long it may last."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each partition state without a leader."""
        if (
            not isinstance(observation, PartitionState)
            or not _nobody(observation)
            or not self.topics.match(observation.topic)
        ):
            return ()
        return (Scope(observation.cluster, None, observation.topic, observation.partition),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.history(PartitionState, *scope.in_partition), _nobody):
            if end is None or end.at >= begin.at + self.after:
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=(
                        f"nobody has led {scope.topic}[{scope.partition}] since {clock(begin.at)} UTC; "
                        f"its in-sync replicas are {list(begin.isr)}"
                    ),
                    subject={"brokers": list(begin.isr)},
                    current={"leader": None, "leader_epoch": begin.leader_epoch, "isr": list(begin.isr)},
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when somebody leads it or it is deleted."""
        states = facts.history(PartitionState, *scope.in_partition).after(finding.at)
        return recovered(finding, next((one.at for one in states if not _nobody(one)), None))


def _nobody(state: PartitionState) -> bool:
    return leader_of(state) is None and not deleted(state)
