"""controller_moved: another broker is the controller."""

from collections.abc import Iterable, Iterator

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.findings import Finding, Severity
from agent.model.observations import Controller, Observation, clock


class ControllerMoved(EventRule):
    """The cluster's controller is another broker than before. Info: a cause, never posted alone.

    Not: a time without one in between, the same broker elected again.
    """

    title = "the controller of {cluster} moved"
    default_severity = Severity.INFO
    observes = (Controller,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each controller after the first."""
        if not isinstance(observation, Controller) or observation.broker is None:
            return ()
        return (Scope(observation.cluster),) if len(facts.history(Controller, observation.cluster).changes) > 1 else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each move."""
        old: Controller | None = None
        for one in facts.history(Controller, scope.cluster):
            if one.broker is None:
                continue
            if old is not None and old.broker != one.broker:
                yield self.make_finding(
                    scope,
                    one,
                    detail=f"the controller moved {old.broker} -> {one.broker} at {clock(one.at)} UTC",
                    subject={"brokers": [old.broker, one.broker]},
                    previous={"broker": old.broker, "epoch": old.epoch},
                    current={"broker": one.broker, "epoch": one.epoch},
                )
            old = one
