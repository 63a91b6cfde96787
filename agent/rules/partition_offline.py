"""partition_offline: a partition has no leader."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.condition_rule import Condition, PartitionConditionRule
from agent.engine.rule import Advice, Scope
from agent.model.observations.kafka import PartitionState
from agent.model.text import join_names
from agent.model.times import clock
from agent.rules.queries.partitions import leader_of


class PartitionOffline(PartitionConditionRule):
    """A partition has had no leader for `after`: it can be neither written nor read.

    Recovers when a broker leads it again; over when the partition is deleted.
    """

    title = "{topic}[{partition}] is offline: it has no leader"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Restart a broker that holds an in-sync replica of {place}. An unclean election would lose records.",
            only_while_open=True,
        ),
    }

    def holds(self, observation: PartitionState) -> bool:
        return leader_of(observation) is None and not observation.is_deleted

    def describe_condition(self, scope: Scope, begin: PartitionState, before: object) -> Condition:
        del before
        isr = join_names(begin.isr) if begin.isr else "empty"
        return Condition(
            f"{scope.topic}[{scope.partition}] has had no leader since {clock(begin.at)} UTC (ISR {isr})",
            subject={"brokers": list(begin.isr)},
            current={"leader": None, "leader_epoch": begin.leader_epoch, "isr": list(begin.isr)},
        )
