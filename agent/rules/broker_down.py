"""broker_down: a broker stays unregistered."""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent.engine.condition_rule import Condition, LastingConditionRule
from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, Scope
from agent.model.observations.kafka import BrokerRegistration
from agent.model.times import clock


class BrokerDown(LastingConditionRule):
    """A broker that was registered has been missing for `after`.

    Not: a restart that is shorter, a broker that was never seen registered.
    Recovers when the broker is registered again.
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
