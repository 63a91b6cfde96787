"""broker_flapping: a broker drops out of the cluster again and again."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from agent.engine.condition_rule import find_series
from agent.engine.facts import Facts
from agent.engine.history import FLOOR
from agent.engine.rule import Advice, Rule, Scope, ended, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration
from agent.model.text import span
from agent.model.times import clock
from agent.rules.queries.brokers import find_absences, find_last_replica_removal


class BrokerFlapping(Rule):
    """A broker has lost its ZooKeeper session, or left the KRaft metadata, `count` times within `within`.

    Each loss by itself is harmless and info; so many have a cause that will cost records or availability one day: long
    GC pauses, a failing disk or network, a process that crashes and is restarted.
    Not: rolling restarts, which stop each broker fewer times than that.
    Recovers when the broker has kept its registration for `within`; over when its replicas are assigned to others.
    """

    title = "broker {broker} keeps dropping out of the cluster"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Check broker {broker} for restarts, long GC pauses, slow disks and network errors at these times.",
            prevent="Remove the cause before you raise the session timeout of broker {broker}.",
            only_while_open=True,
        ),
    }
    observes = (BrokerRegistration,)

    # A loss is up to two changes of a history, which keeps at least FLOOR.
    count: int = Field(5, ge=2, le=FLOOR // 2)
    """Fewest losses that are reported."""

    within: PositiveDuration = 3_600_000
    """How close together they are, and how long the broker must stay before it recovers."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, BrokerRegistration):
            return ()
        changes = facts.history(BrokerRegistration, observation.cluster, observation.broker).changes
        return (Scope(observation.cluster, broker=observation.broker),) if len(changes) > self.count else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        losses = [absence.down for absence in find_absences(facts, scope.cluster, scope.broker or 0)]
        for index in find_series([loss.at for loss in losses], self.count, self.within):
            first, loss = losses[index + 1 - self.count], losses[index]
            yield self.make_finding(
                scope,
                loss,
                detail=f"broker {scope.broker} dropped out of the cluster {self.count} times within "
                f"{span(loss.at - first.at)}: from {clock(first.at)} to {clock(loss.at)} UTC",
                current={"losses": self.count},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, broker = scope.cluster, scope.broker or 0
        later = [absence for absence in find_absences(facts, cluster, broker) if absence.down.at >= finding.at]
        if not later:
            return finding
        last = next(
            (absence for absence, after in pairwise(later) if after.down.at - absence.down.at > self.within), later[-1]
        )
        if last.up is not None:
            return recovered(finding, last.up.at + self.within)
        removed_at = find_last_replica_removal(facts, cluster, broker, finding.at)
        return finding if removed_at is None else ended(finding, removed_at, "its replicas are assigned to others")
