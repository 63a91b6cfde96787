"""brokers_down_together: several brokers were away at the same time, as after a power loss."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations import BrokerRegistration, Observation, clock
from agent.rules.queries.subjects import brokers_in


class BrokersDownTogether(Rule):
    """Two or more brokers were not registered at the same time, and all of them are back. Info: a cause.

    What they had not yet written to their disks may be lost, and their replicas may differ from then on (KAFKA-3919).
    Not: a rolling restart, in which one is back before the next one goes. Begins when the first of them goes, is told
    when the last one is back, and is over with that.
    """

    title = "several brokers of {cluster} were lost together"
    default_severity = Severity.INFO
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            prevent="min.insync.replicas=2 with acks=all, and replicas that do not share a power supply (broker.rack): {place} were lost together."
        ),
    }
    observes = (BrokerRegistration,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """The cluster, with each registration after a broker's first."""
        if not isinstance(observation, BrokerRegistration):
            return ()
        several = len(facts.history(BrokerRegistration, observation.cluster, observation.broker).changes) > 1
        return (Scope(observation.cluster),) if several else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time at which brokers were away together, once all of them are back."""
        for together in _together(facts, scope.cluster):
            brokers = sorted({one.broker for one in together})
            backs = [one.back for one in together if one.back is not None]
            if len(brokers) < 2 or len(backs) < len(together):
                continue
            gone, last = together[0].gone, max(backs, key=lambda one: one.seen)
            *others, final = map(str, brokers)
            yield self.make_finding(
                scope,
                gone,
                known_at=max(one.seen for one in backs),
                detail=f"brokers {', '.join(others)} and {final} were away at the same time: "
                f"the first gone at {clock(gone.at)}, all back at {clock(last.at)} UTC",
                subject={"brokers": brokers},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:  # noqa: ARG002 - the base's signature
        """Over when it is known: all are back."""
        return recovered(finding, finding.known_at)


class _Absence(NamedTuple):
    """A broker was not registered from some moment in `gone` to `back`; None while it is away."""

    broker: int
    gone: BrokerRegistration
    back: BrokerRegistration | None


def _together(facts: Facts, cluster: str) -> Iterator[list[_Absence]]:
    """The cluster's absences in order of their beginnings, those that overlap in one list."""
    absences = [
        one
        for broker in brokers_in(facts, cluster)
        for one in _absences(broker, facts.history(BrokerRegistration, cluster, broker))
    ]
    together: list[_Absence] = []
    for one in sorted(absences, key=lambda one: (one.gone.start, one.gone.at, one.broker)):
        if together and all(other.back is not None and other.back.at <= one.gone.start for other in together):
            yield together
            together = []
        together.append(one)
    if together:
        yield together


def _absences(broker: int, history: History[BrokerRegistration]) -> Iterator[_Absence]:
    """Each time the broker was not registered, also where only its new session or epoch tells of it."""
    known: BrokerRegistration | None = None
    gone: BrokerRegistration | None = None
    for one in history:
        if one.gone:
            gone = gone or (one if known is not None else None)
            continue
        if gone is not None:
            yield _Absence(broker, gone, one)
        elif known is not None and (one.session, one.epoch) != (known.session, known.epoch):
            yield _Absence(broker, one, one)
        known, gone = one, None
    if gone is not None:
        yield _Absence(broker, gone, None)
