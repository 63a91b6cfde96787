"""under_replicated: a partition lacks in-sync replicas."""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent.engine.condition_rule import Condition, LastingConditionRule
from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, Scope, TopicRule
from agent.model.observations.kafka import PartitionState
from agent.model.times import clock


class UnderReplicated(LastingConditionRule, TopicRule):
    """A partition's ISR has been smaller than its replica set for `after`.

    Recovers when all replicas are in sync again or the partition is deleted.
    """

    title = "{topic}[{partition}] is under-replicated"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out why brokers {brokers} do not replicate {place}: broker down, disk or network.",
            only_while_open=True,
        ),
    }
    observes = (PartitionState,)

    def find_scope(self, observation: PartitionState) -> Scope | None:
        return Scope.of_partition(observation) if self.topics.match(observation.topic) else None

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(PartitionState, *scope.in_partition)

    def holds(self, observation: PartitionState) -> bool:
        return len(observation.isr) < len(observation.replicas)

    def describe_condition(self, scope: Scope, begin: PartitionState, before: object) -> Condition:
        del before
        missing = sorted(set(begin.replicas) - set(begin.isr))
        where = f"{scope.topic}[{scope.partition}]"
        return Condition(
            f"{where}: replicas {', '.join(map(str, missing))} out of sync since {clock(begin.at)} UTC",
            subject={"brokers": missing},
            previous={"replicas": list(begin.replicas)},
            current={"isr": list(begin.isr)},
        )
