"""brokers_down_together: several brokers were down at the same time, as after a power loss."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.history import LONG_AFTER
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration
from agent.model.text import instant, join_names, place
from agent.model.times import clock
from agent.rules.queries.brokers import Absence, find_absences, holds_replicas
from agent.rules.queries.subjects import brokers_in

_POLLS_MS = 10_000
"""How far apart a broker's last sighting and the poll that misses it are at most, unless Backflow saw nothing then."""

_RESTART_MS = 10_000
"""How long a broker is away at least when it restarts: its session has to expire, or it shuts down, and it starts."""


class BrokersDownTogether(Rule):
    """Two or more brokers were down at the same time, and all of them are up again. Info: a contributing event.

    What they had not yet flushed to disk may be lost, and their replicas may differ from then on (KAFKA-3919).
    Not: a rolling restart, in which one broker is up before the next one goes down; brokers that may have been down one
    after the other while Backflow was disconnected, unless they registered again within ten seconds of each other; a
    broker that holds no replica any more.
    Begins when the first broker goes down; reported, and over, when the last one is up.
    """

    title = "several brokers of {cluster} were down at the same time"
    default_severity = Severity.INFO
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            prevent="Spread the replicas on {place} over power supplies (broker.rack); set min.insync.replicas=2 with "
            "acks=all."
        ),
    }
    observes = (BrokerRegistration,)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        up = "" if finding.recovered_at is None else f"; all up at {instant(finding.recovered_at, day)}"
        return f"{place(finding.subject)} down at the same time{up}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, BrokerRegistration):
            return ()
        is_first = len(facts.history(BrokerRegistration, observation.cluster, observation.broker).changes) == 1
        return () if is_first else (Scope(observation.cluster),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for absences in _find_overlaps(facts, scope.cluster):
            brokers = sorted({absence.broker for absence in absences})
            returns = [absence.up for absence in absences if absence.up is not None]
            if len(brokers) < 2 or len(returns) < len(absences):
                continue
            first, last = absences[0].down, max(returns, key=lambda registration: registration.seen)
            yield self.make_finding(
                scope,
                first,
                known_at=last.seen,
                detail=f"brokers {join_names(brokers)} were down at the same time: "
                f"the first from {clock(first.at)}, all up at {clock(last.at)} UTC",
                subject={"brokers": brokers},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:  # noqa: ARG002 - the base's signature
        return recovered(finding, finding.known_at)


def _find_overlaps(facts: Facts, cluster: str) -> Iterator[list[Absence]]:
    """Yield the cluster's absences in order of their beginnings, those that overlap in one list."""
    absences = [
        absence
        for broker in brokers_in(facts, cluster)
        for absence in find_absences(facts, cluster, broker)
        # A broker that was decommissioned or replaced never comes back and would hide all later failures.
        if _begin(absence) <= _end(absence) and (absence.up or holds_replicas(facts, cluster, broker, LONG_AFTER))
    ]
    overlap: list[Absence] = []
    for absence in sorted(absences, key=lambda absence: (_begin(absence), absence.down.at, absence.broker)):
        if overlap and max(map(_end, overlap)) <= _begin(absence):
            yield overlap
            overlap = []
        overlap.append(absence)
    if overlap:
        yield overlap


def _begin(absence: Absence) -> int:
    """Return from when on the broker was certainly down, or may have been if that is known to some seconds."""
    down = absence.down
    begin = down.start if down.at - down.start <= _POLLS_MS else down.at
    return begin - _RESTART_MS if down is absence.up else begin  # only its return was seen


def _end(absence: Absence) -> float:
    """Return until when the broker was certainly down, or may have been; before its beginning if nothing is certain."""
    up = absence.up
    if up is None:
        return inf
    return up.at if up.at - up.start <= _POLLS_MS else up.start
