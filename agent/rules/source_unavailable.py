"""source_unavailable: a source cannot read its subject."""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent.engine.condition_rule import Condition, LastingConditionRule
from agent.engine.facts import Facts, History
from agent.engine.rule import Advice, Scope
from agent.model.config_types import Duration
from agent.model.findings import Finding, observed_part
from agent.model.observations.base import Availability, Unavailable
from agent.model.times import clock


class SourceUnavailable(LastingConditionRule):
    """A source has been unable to read its subject (a cluster, a group, a partition) for `after`.

    Backflow reports its blind spots. A cluster that is down, slow or does not exist yet is reported once.
    Recovers when the source can read the subject again.
    """

    title = "{source} cannot read {observed}"
    reports_unavailability = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out why {source} cannot read {observed}. Until it can, Backflow detects nothing there.",
            only_while_open=True,
        ),
    }
    observes = (Unavailable,)

    after: Duration = 60_000
    """How long the subject must be unavailable before it is reported."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return f"{finding.subject.get('source', 'source')}: {observed_part(finding.subject)} unavailable"

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
