"""reassignment_stalled: a replica that a reassignment adds does not come in sync."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from agent.engine.condition_rule import Condition, PartitionConditionRule
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope, ended, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations.kafka import BrokerRegistration, PartitionState
from agent.model.text import broker_names
from agent.model.times import clock
from agent.rules.queries.partitions import infer_reassignments


class ReassignmentStalled(PartitionConditionRule):
    """A reassignment or a higher replication factor has added replicas that are not in sync after `after`.

    Label `target_down`: a broker that it adds is down.
    Not: one that takes hours because the log is large or throttled; raise `after` where a day is not enough.
    Recovers when the added replicas are in sync or no longer assigned; over when the partition is deleted.
    """

    title = "the reassignment of {topic}[{partition}] does not finish"
    advice: ClassVar[Mapping[str, Advice]] = {
        "target_down": Advice(
            now="Restart {down}, or choose others: kafka-reassign-partitions.sh --cancel, then --execute.",
            only_while_open=True,
        ),
        "": Advice(
            now="Check that {brokers} can be reached, that there is disk space, and the replication throttle: "
            "kafka-reassign-partitions.sh --list.",
            only_while_open=True,
        ),
    }

    after: Duration = 86_400_000
    """How long added replicas may take to come in sync."""

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return infer_reassignments(super().find_history(scope, facts))

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for finding in super().detect(scope, facts):
            states = [
                facts.history(BrokerRegistration, scope.cluster, broker).as_of(finding.known_at)
                for broker in finding.current["adding"]
            ]
            down = [state.broker for state in states if state is not None and state.gone]
            if down:
                current = {**finding.current, "down": down}
                text = f"{finding.detail}; {broker_names(down)} down"
                finding = replace(finding, detail=text, labels=("target_down",), current=current)  # noqa: PLW2901
            yield finding

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Go by the replicas that the finding names: after a restart of the agent the ones before may be unknown."""
        adding = set(finding.current["adding"])
        later = facts.history(PartitionState, *scope.in_partition).after(finding.at)
        over = next((state for state in later if not adding & set(state.replicas) - set(state.isr)), None)
        if over is not None and over.is_deleted:
            return ended(finding, over.at, "the partition was deleted")
        return recovered(finding, None if over is None else over.at)

    def holds(self, observation: PartitionState) -> bool:
        return bool(observation.adding)

    def describe_condition(self, scope: Scope, begin: PartitionState, before: object) -> Condition:
        del before
        where, adding = f"{scope.topic}[{scope.partition}]", list(begin.adding)
        return Condition(
            f"{where}: replicas {', '.join(map(str, adding))} added at {clock(begin.at)} UTC, not in sync since",
            subject={"brokers": adding},
            previous={"replicas": [broker for broker in begin.replicas if broker not in adding]},
            current={"isr": list(begin.isr), "adding": adding, "removing": list(begin.removing)},
        )
