"""jobmanager_moved: another JobManager leads a Flink cluster, or the same one anew."""

from collections.abc import Iterable, Iterator
from typing import Any

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.findings import Finding, Severity
from agent.model.observations import JobManagerLeader, Observation, clock
from agent.rules.queries.flink import leader_changes


class JobmanagerMoved(EventRule):
    """The leading JobManager's session (its UUID) is another than before; where only REST tells, its address. Info: a
    cause, never posted alone.

    Not: a time without a leader after which the same one leads under the same session, the first leader seen.
    """

    title = "the JobManager of {cluster} moved"
    default_severity = Severity.INFO
    observes = (JobManagerLeader,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each leader after the first."""
        if not isinstance(observation, JobManagerLeader) or observation.address is None:
            return ()
        several = len(facts.history(JobManagerLeader, observation.cluster).changes) > 1
        return (Scope(observation.cluster),) if several else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each move."""
        for old, new in leader_changes(facts.history(JobManagerLeader, scope.cluster)):
            sessions = f" (session {old.session} -> {new.session})" if old.session and new.session else ""
            yield self.make_finding(
                scope,
                new,
                detail=f"the JobManager leader of {scope.cluster} moved {old.address} -> {new.address} at "
                f"{clock(new.at)} UTC{sessions}",
                previous=_leader(old),
                current=_leader(new),
            )


def _leader(one: JobManagerLeader) -> dict[str, Any]:
    return {"address": one.address, "leader_id": one.leader_id, "session": one.session}
