"""source_unavailable: a source cannot read its subject."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from agent.engine.condition_rule import Condition, LastingConditionRule
from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, Scope
from agent.model.config_types import Duration
from agent.model.findings import Finding, observed_part
from agent.model.observations.base import Availability, Unavailable
from agent.model.observations.kafka import PartitionState
from agent.model.times import clock
from agent.rules.queries.partitions import leader_of

_FIND_OUT = "Find out why {source} cannot read {observed}. "

_UNSEEN = {
    "kafka": "Until it can, Backflow does not see committed offsets and log offsets there; other sources are still "
    "watched.",
    "zookeeper": "Until it can, Backflow does not see broker sessions and leaders there; committed offsets are still "
    "watched.",
}
"""What is not seen while all of a source is unavailable, and what still is."""


class SourceUnavailable(LastingConditionRule):
    """A source has been unable to read its subject (a cluster, a group, a partition) for `after`.

    Backflow reports its blind spots. A cluster that is down, slow or does not exist yet is reported once.
    Recovers when the source can read the subject again.
    """

    title = "{source} cannot read {observed}"
    reports_unavailability = True
    observes = (Unavailable,)

    after: Duration = 60_000
    """How long the subject must be unavailable before it is reported."""

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        is_part = bool({"group", "topic"} & finding.subject.keys())
        unseen = "" if is_part else _UNSEEN.get(finding.subject.get("source", ""), "")
        return Advice(now=_FIND_OUT + (unseen or "Until it can, Backflow detects nothing there."), only_while_open=True)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return f"{finding.subject.get('source', 'source')}: {observed_part(finding.subject)} unavailable"

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for finding in super().detect(scope, facts):
            is_partition = scope.topic is not None and scope.partition is not None
            states = facts.history(PartitionState, *scope.in_partition) if is_partition else ()
            leaders = [leader_of(state) for state in states if state.at <= finding.at]
            # That the partition has no leader any more is seen together with its unavailability.
            leader = next((broker for broker in reversed(leaders) if broker is not None), None)
            yield finding if leader is None else replace(finding, current={**finding.current, "led_by": leader})

    def find_scope(self, observation: Unavailable) -> Scope:
        cluster, group = observation.cluster, observation.group
        return Scope(cluster, group, observation.topic, observation.partition, source=observation.source)

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(Availability, scope.source, scope.cluster, scope.group, scope.topic, scope.partition)

    def holds(self, observation: Availability) -> bool:
        return isinstance(observation, Unavailable)

    def describe_condition(self, scope: Scope, begin: Unavailable, before: object) -> Condition:
        del before
        return Condition(
            f"{scope.source}: {observed_part(scope.subject)} unavailable since {clock(begin.at)} UTC: {begin.reason}"
        )
