"""jobmanager_moved: the leading JobManager of a Flink cluster changed."""

from collections.abc import Iterable, Iterator
from typing import Any

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.flink import JobManagerLeader
from agent.model.times import clock
from agent.rules.queries.flink import leader_changes, short_address


class JobmanagerMoved(EventRule):
    """The leading JobManager has another leader session (UUID) than before; if only REST is observed, another address.

    Info: a cause, never reported alone.

    Not: a time without a leader after which the same one leads under the same session, the first leader observed.
    """

    title = "JobManager leader of {cluster} changed"
    default_severity = Severity.INFO
    observes = (JobManagerLeader,)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        old, new = (short_address(side.get("address")) for side in (finding.previous, finding.current))
        change = f"{old} -> {new}" if old != new else f"{new} elected again"
        return f"JobManager leader of {finding.subject.get('cluster')}: {change}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, JobManagerLeader) or observation.address is None:
            return ()
        is_first = len(facts.history(JobManagerLeader, observation.cluster).changes) == 1
        return () if is_first else (Scope(observation.cluster),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for old, new in leader_changes(facts.history(JobManagerLeader, scope.cluster)):
            sessions = f" (session {old.session} -> {new.session})" if old.session and new.session else ""
            yield self.make_finding(
                scope,
                new,
                detail=f"JobManager leader of {scope.cluster} changed {old.address} -> {new.address}{sessions} at "
                f"{clock(new.at)} UTC",
                previous=_leader_fields(old),
                current=_leader_fields(new),
            )


def _leader_fields(leader: JobManagerLeader) -> dict[str, Any]:
    return {"address": leader.address, "leader_id": leader.leader_id, "session": leader.session}
