"""controller_moved: another broker is the controller."""

from collections.abc import Iterable, Iterator

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Controller


class ControllerMoved(EventRule):
    """The cluster's controller is another broker than before. Info: a contributing event, never reported alone.

    Not: a time without a controller in between, the same broker elected again.
    """

    title = "the controller of {cluster} changed"
    default_severity = Severity.INFO
    observes = (Controller,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, Controller) or observation.broker is None:
            return ()
        return (Scope(observation.cluster),) if len(facts.history(Controller, observation.cluster).changes) > 1 else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        old: Controller | None = None
        for controller in facts.history(Controller, scope.cluster):
            if controller.broker is None:
                continue
            if old is not None and old.broker != controller.broker:
                yield self.make_finding(
                    scope,
                    controller,
                    detail=f"controller changed {old.broker} -> {controller.broker}",
                    subject={"brokers": [old.broker, controller.broker]},
                    previous={"broker": old.broker, "epoch": old.epoch},
                    current={"broker": controller.broker, "epoch": controller.epoch},
                )
            old = controller
