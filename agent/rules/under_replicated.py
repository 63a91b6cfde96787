"""under_replicated: a partition lacks in-sync replicas."""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent.engine.condition_rule import Condition, PartitionConditionRule
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope
from agent.model.observations.kafka import PartitionState
from agent.model.times import clock
from agent.rules.queries.partitions import infer_reassignments


class UnderReplicated(PartitionConditionRule):
    """A partition's ISR has been smaller than its replica set for `after`.

    Not: a replica that a reassignment adds (KIP-455) and that has not caught up yet; a replica that it removes, if
    enough others are in sync.
    Recovers when all replicas are in sync again; over when the partition is deleted.
    """

    title = "{topic}[{partition}] is under-replicated"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out why {place} is not replicated by {brokers}: broker down, disk or network.",
            only_while_open=True,
        ),
    }

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return infer_reassignments(super().find_history(scope, facts))

    def holds(self, observation: PartitionState) -> bool:
        needed = len(observation.replicas) - len(observation.removing)
        return len(observation.isr) < needed and bool(_out_of_sync(observation))

    def describe_condition(self, scope: Scope, begin: PartitionState, before: object) -> Condition:
        del before
        missing = _out_of_sync(begin)
        where = f"{scope.topic}[{scope.partition}]"
        return Condition(
            f"{where}: replicas {', '.join(map(str, missing))} out of sync since {clock(begin.at)} UTC",
            subject={"brokers": missing},
            previous={"replicas": list(begin.replicas)},
            current={"isr": list(begin.isr)},
        )


def _out_of_sync(state: PartitionState) -> list[int]:
    """Return the brokers whose replicas should be in sync and are not, sorted."""
    return sorted(set(state.replicas) - set(state.isr) - set(state.adding))
