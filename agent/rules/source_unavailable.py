"""source_unavailable: a source cannot read its subject."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from agent.engine.condition_rule import LastingConditionRule, intervals_over, intervals_where
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope
from agent.model.config_types import Duration
from agent.model.findings import Finding, observed_part
from agent.model.observations.base import Availability, Available, Observation, Unavailable
from agent.model.times import clock
from agent.rules.queries.partitions import find_leader

_FIND_OUT = "Find out why {source} cannot read {observed}. "

_UNSEEN = {
    "kafka": "Until it can, Backflow does not see committed offsets and log offsets there; other sources are still "
    "watched.",
    "zookeeper": "Until it can, Backflow does not see broker sessions and leaders there; committed offsets are still "
    "watched.",
}
"""What is not seen while all of a source is unavailable, and what still is."""

_Place: TypeAlias = tuple[str | None, str | None, int | None]

_WHOLES: tuple[_Place, ...] = ((None, None, None), ("*", "*", None), (None, "*", None), ("*", None, None))
"""Group, topic and partition of what has parts: a whole cluster, all of its groups and topics."""


class SourceUnavailable(LastingConditionRule):
    """A source has been unable to read its subject (a cluster, a group, a partition) for `after`.

    Backflow reports what it cannot read. A cluster that is down, slow or does not exist yet is reported once, and so is
    a missing permission on all topics or groups. Single ones are reported only if the rest can be read.
    Recovers when the source can read the subject again.
    """

    title = "{source} cannot read {observed}"
    reports_agent = True
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

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scope of what became unavailable; of what still is when the rest becomes available."""
        if isinstance(observation, Available) and _place(observation) in _WHOLES:
            histories: list[History[Any]] = [
                history
                for kind in (Unavailable, Available)  # either may be the first that is known of a subject
                for history in facts.histories(kind, source=observation.source, cluster=observation.cluster)
            ]
            return [self.find_scope(history.last) for history in histories if isinstance(history.last, Unavailable)]
        return super().scopes(observation, facts)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = self.find_history(scope, facts)
        if not any(interval.lasted(self.after, facts) for interval in intervals_where(history, self.holds)):
            return  # quickly found, and usual: a flaky network has many short outages
        place = (scope.group, scope.topic, scope.partition)
        wholes = [
            facts.history(Availability, scope.source, scope.cluster, *whole)
            for whole in (_WHOLES[:1] if place in _WHOLES else _WHOLES)
            if whole != place
        ]

        def is_reported(at: int) -> bool | None:
            """Return True if the subject is unavailable then, and nothing that it is a part of; else None."""
            is_covered = any(isinstance(whole.as_of(at), Unavailable) for whole in wholes)
            return None if is_covered or not isinstance(history.as_of(at), Unavailable) else True

        for interval in intervals_over([history, *wholes], is_reported):
            if not interval.lasted(self.after, facts):
                continue
            known_at = interval.known_at(self.after, facts)
            reasons = [
                outage.reason
                for at in (known_at, interval.begin.at)
                if isinstance(outage := history.as_of(at), Unavailable)
            ]
            yield self.make_finding(
                scope,
                interval.begin,
                known_at=known_at,
                detail=f"{scope.source}: {observed_part(scope.subject)} unavailable since "
                f"{clock(interval.begin.at)} UTC: {reasons[0]}",
                current=self._leader(scope, facts, interval.begin.at),
            )

    @staticmethod
    def _leader(scope: Scope, facts: Facts, at: int) -> dict[str, int]:
        if scope.topic is None or scope.partition is None:
            return {}
        # That the partition has no leader any more is seen together with its unavailability.
        return find_leader(facts, scope.in_partition, at)

    def find_scope(self, observation: Unavailable) -> Scope:
        cluster, group = observation.cluster, observation.group
        return Scope(cluster, group, observation.topic, observation.partition, source=observation.source)

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(Availability, scope.source, scope.cluster, scope.group, scope.topic, scope.partition)

    def holds(self, observation: Availability) -> bool:
        return isinstance(observation, Unavailable)


def _place(observation: Availability) -> _Place:
    return observation.group, observation.topic, observation.partition
