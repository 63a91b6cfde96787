"""checkpoint_failing: several checkpoints of a Flink job failed in a row."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding, reader
from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints
from agent.model.times import clock
from agent.rules.queries.flink import describe_job, ended_at, job_subject
from agent.rules.queries.partitions import earliest


class CheckpointFailing(Rule):
    """At least `min_failures` of a job's checkpoints have failed since the last completed one.

    A failover of the job would reprocess everything since then. Counts that start over, on another JobManager, are not
    compared with those before. Recovers when a checkpoint is completed, or the job ends.
    """

    title = "checkpoints of {reader} are failing"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out why checkpoints of {reader} fail: a restart takes it back to the last completed one.",
            only_while_open=True,
        ),
    }
    observes = (Checkpoints,)

    min_failures: int = Field(3, ge=1)
    """Fewest failures in a row that are reported."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        if not isinstance(observation, Checkpoints) or observation.failed < self.min_failures:
            return ()
        return (Scope(observation.cluster, job=observation.job),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        good: Checkpoints | None = None
        is_reported = False
        for before, after in pairwise(facts.history(Checkpoints, cluster, job)):
            good = good or before
            if _has_completed(before, after) or _has_started_over(before, after):
                good, is_reported = after, False
            failures = after.failed - good.failed
            if is_reported or failures < self.min_failures:
                continue
            is_reported = True
            last = f" since checkpoint {good.last}" if good.last is not None else ""
            yield self.make_finding(
                scope,
                after,
                detail=f"{describe_job(facts, cluster, job, after.at)}: {failures} checkpoints failed in a row{last}, "
                f"by {clock(after.at)} UTC",
                subject=job_subject(facts, cluster, job, after.at),
                previous={"completed": good.completed, "failed": good.failed, "last": good.last},
                current={"completed": after.completed, "failed": after.failed, "last": after.last},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(Checkpoints, cluster, job)
        first = history.as_of(finding.at)
        later = [*([] if first is None else [first]), *history.after(finding.at)]
        completed = (after.at for before, after in pairwise(later) if _has_completed(before, after))
        return recovered(finding, earliest(next(completed, None), ended_at(facts, cluster, job, finding.at)))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        failures = finding.current.get("failed", 0) - finding.previous.get("failed", 0)
        return f"{reader(finding.subject)}: {failures} checkpoints failed in a row"


def _has_started_over(before: Checkpoints, after: Checkpoints) -> bool:
    return after.completed < before.completed or after.failed < before.failed


def _has_completed(before: Checkpoints, after: Checkpoints) -> bool:
    return after.completed > (0 if _has_started_over(before, after) else before.completed)
