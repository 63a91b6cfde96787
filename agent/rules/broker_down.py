"""broker_down: a broker stays away."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations import BrokerRegistration, Observation, clock
from agent.rules.queries.partitions import spells


class BrokerDown(Rule):
    """A broker that was registered has been missing for `after`.

    Not: a restart, a broker never seen. Recovers when it is back.
    """

    title = "broker {broker} is gone"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="start broker {broker} again; its log's last lines say why it went.", only_while_open=True),
    }
    observes = (BrokerRegistration,)

    after: Duration = 300_000
    """How long it may be away."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each registration that is gone."""
        if not isinstance(observation, BrokerRegistration) or not observation.gone:
            return ()
        return (Scope(observation.cluster, broker=observation.broker),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each absence long enough."""
        history = facts.history(BrokerRegistration, scope.cluster, scope.broker or 0)
        for begin, end in spells(history, lambda one: one.gone):
            known = history.as_of(begin.at - 1)
            if known is not None and not known.gone and (end is None or end.at >= begin.at + self.after):
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"broker {scope.broker} has not been registered since {clock(begin.at)} UTC",
                    previous={"session": known.session, "epoch": known.epoch},
                    current={"session": None, "epoch": None},
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when it is registered again."""
        history = facts.history(BrokerRegistration, scope.cluster, scope.broker or 0)
        return recovered(finding, next((one.at for one in history.after(finding.at) if not one.gone), None))
