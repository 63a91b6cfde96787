"""broker_session_lost: a broker's registration disappeared or was replaced."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration
from agent.model.text import instant, place
from agent.model.times import clock
from agent.rules.queries.brokers import find_absences


class BrokerSessionLost(Rule):
    """A broker's znode has another session (ephemeralOwner) or epoch (czxid), or is missing.

    Info: a contributing event. Begins when the registration disappears, recovers when the broker is registered again.
    A clean restart looks the same. Under KRaft only absence from the cluster metadata is visible; a restart between two
    polls is not.
    """

    title = "broker {broker} dropped out of the cluster"
    default_severity = Severity.INFO
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="Find out why broker {broker} was away{pause}: restart, GC pause, disk or network."),
    }
    observes = (BrokerRegistration,)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        what = "session expired" if finding.previous.get("session") else "left the cluster metadata"
        back = finding.recovered_at
        registered = "" if back is None else f"; re-registered at {instant(back, day)}"
        return f"{place(finding.subject)}: {what}{registered}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, BrokerRegistration):
            return ()
        is_first = len(facts.history(BrokerRegistration, observation.cluster, observation.broker).changes) == 1
        return () if is_first else (Scope(observation.cluster, broker=observation.broker),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for absence in find_absences(facts, scope.cluster, scope.broker or 0):
            yield self._finding(scope, absence.known, absence.down)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        history = facts.history(BrokerRegistration, scope.cluster, scope.broker or 0)
        states = [history.as_of(finding.at), *history.after(finding.at)]
        back = next((state for state in states if state is not None and not state.gone), None)
        if back is None:
            return finding
        lost = finding.detail.partition("; ")[0]
        session = f" as {back.session}" if back.session else ""
        return msgspec.structs.replace(
            recovered(finding, back.at),
            current={"session": back.session, "epoch": back.epoch},
            detail=f"{lost}; re-registered at {clock(back.at)}{session}",
        )

    def _finding(self, scope: Scope, known: BrokerRegistration, now: BrokerRegistration) -> Finding:
        what = f"ZooKeeper session {known.session} expired" if known.session else "left the cluster metadata"
        return self.make_finding(
            scope,
            now,
            detail=f"broker {scope.broker}: {what} at {clock(now.at)} UTC",
            previous={"session": known.session, "epoch": known.epoch},
            current={"session": now.session, "epoch": now.epoch},
        )
