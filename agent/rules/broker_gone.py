"""broker_gone: a broker stays away."""

from collections.abc import Iterable, Iterator

from agent.evidence import spells
from agent.facts import Facts
from agent.findings import Finding
from agent.observations import BrokerRegistration, Observation, clock
from agent.options import Duration
from agent.rule import Case, Rule, recovered


class BrokerGone(Rule):
    """A broker that was registered has been missing for `after`.

    Not: a restart, a broker never seen. Recovers when it is back.
    """

    title = "broker {broker} is gone"
    sees = (BrokerRegistration,)

    after: Duration = 300_000
    """How long it may be away."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:  # noqa: ARG002 - the base's signature
        """Each registration that is gone."""
        if not isinstance(observation, BrokerRegistration) or not observation.gone:
            return ()
        return (Case(observation.cluster, broker=observation.broker),)

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each absence long enough."""
        history = facts.broker(case.cluster, case.broker or 0)
        for begin, end in spells(history, lambda one: one.gone):
            known = history.as_of(begin.at - 1)
            if known is not None and not known.gone and (end is None or end.at >= begin.at + self.after):
                yield self.find(
                    case,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"broker {case.broker} has not been registered since {clock(begin.at)} UTC",
                    previous={"session": known.session, "epoch": known.epoch},
                    current={"session": None, "epoch": None},
                )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when it is registered again."""
        history = facts.broker(case.cluster, case.broker or 0)
        return recovered(finding, next((one.at for one in history.after(finding.at) if not one.gone), None))
