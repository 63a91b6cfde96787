"""broker_down: a broker stays unregistered."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from agent.engine.condition_rule import Condition, LastingConditionRule
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope, ended
from agent.model.findings import Finding
from agent.model.observations.kafka import BrokerRegistration
from agent.model.times import clock
from agent.rules.queries.brokers import find_last_replica_removal, holds_replicas


class BrokerDown(LastingConditionRule):
    """A broker that was registered has been missing for `after`.

    Not: a restart that is shorter, a broker that was never seen registered, a decommissioned broker: one that holds no
    replica of a monitored topic when `after` has passed.
    Recovers when the broker is registered again; over when its last replica is assigned to other brokers.
    """

    title = "broker {broker} is down"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="Restart broker {broker}; the last lines of its log say why it stopped.", only_while_open=True),
    }
    observes = (BrokerRegistration,)

    def find_scope(self, observation: BrokerRegistration) -> Scope:
        return Scope(observation.cluster, broker=observation.broker)

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(BrokerRegistration, scope.cluster, scope.broker or 0)

    def holds(self, observation: BrokerRegistration) -> bool:
        return observation.gone

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for finding in super().detect(scope, facts):
            if holds_replicas(facts, scope.cluster, scope.broker or 0, finding.at + self.after):
                yield finding

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        followed = super().follow(finding, scope, facts)
        removed_at = find_last_replica_removal(facts, scope.cluster, scope.broker or 0, finding.at)
        if removed_at is None or (followed.recovered_at is not None and followed.recovered_at <= removed_at):
            return followed
        return ended(finding, removed_at, "its replicas are assigned to other brokers")

    def describe_condition(
        self, scope: Scope, begin: BrokerRegistration, before: BrokerRegistration | None
    ) -> Condition | None:
        if before is None or before.gone:
            return None
        return Condition(
            f"broker {scope.broker} has been down since {clock(begin.at)} UTC",
            previous={"session": before.session, "epoch": before.epoch},
            current={"session": None, "epoch": None},
        )
