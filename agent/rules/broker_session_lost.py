"""broker_session_lost: a broker is no longer registered, or is so anew."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding, Severity
from agent.model.observations import BrokerRegistration, Observation, clock


class BrokerSessionLost(Rule):
    """A broker's znode has another session (ephemeralOwner) or epoch (czxid), or is missing. Info: a cause.

    Begins when the broker disappears, recovers when it is registered again. A clean restart looks the same. Under KRaft
    only absence from the cluster's metadata can be seen; bounces faster than the poll are invisible.
    """

    title = "broker {broker} lost its session"
    default_severity = Severity.INFO
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="why did broker {broker} let its session expire{pause}? (GC log, disk, network)"),
    }
    observes = (BrokerRegistration,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each registration after the first."""
        if not isinstance(observation, BrokerRegistration):
            return ()
        several = len(facts.history(BrokerRegistration, observation.cluster, observation.broker).changes) > 1
        return (Scope(observation.cluster, broker=observation.broker),) if several else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each disappearance, and each new session or epoch whose disappearance nobody saw."""
        known: BrokerRegistration | None = None
        gone = False
        for one in facts.history(BrokerRegistration, scope.cluster, scope.broker or 0):
            if known is not None and not gone and (one.session, one.epoch) != (known.session, known.epoch):
                yield self._lost(scope, known, one)
            gone = one.gone
            known = known if one.gone else one

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the broker is registered again: under which session."""
        history = facts.history(BrokerRegistration, scope.cluster, scope.broker or 0)
        at_once = history.as_of(finding.at)
        back = next((one for one in [at_once, *history.after(finding.at)] if one is not None and not one.gone), None)
        if back is None:
            return finding
        before = finding.detail.partition("; ")[0]
        known = f" as {back.session}" if back.session else ""
        return msgspec.structs.replace(
            recovered(finding, back.at),
            current={"session": back.session, "epoch": back.epoch},
            detail=f"{before}; back {clock(back.at)} UTC{known}",
        )

    def _lost(self, scope: Scope, known: BrokerRegistration, now: BrokerRegistration) -> Finding:
        what = f"lost its ZooKeeper session {known.session}" if known.session else "left the cluster's metadata"
        return self.make_finding(
            scope,
            now,
            detail=f"broker {scope.broker} {what} (gone {clock(now.at)} UTC)",
            previous={"session": known.session, "epoch": known.epoch},
            current={"session": now.session, "epoch": now.epoch},
        )
