"""checkpoint_failing: a Flink job's checkpoints fail one after the other."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding
from agent.model.observations import Checkpoints, Observation, clock
from agent.rules.queries.flink import named, over, spoken
from agent.rules.queries.partitions import earliest


class CheckpointFailing(Rule):
    """At least `min_failures` of a job's checkpoints have failed since the last one that was completed.

    A failover of the job now would read again all since then. Counts that begin anew, on another JobManager, are not
    compared with those before. Recovers when a checkpoint is completed, or the job is over.
    """

    title = "checkpoints of {reader} fail"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="see why the checkpoints of {reader} fail: at a failure it goes back to the last one that completed.",
            only_while_open=True,
        ),
    }
    observes = (Checkpoints,)

    min_failures: int = Field(3, ge=1)
    """Fewest failures in a row told."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each job of which checkpoints have failed."""
        if not isinstance(observation, Checkpoints) or observation.failed < self.min_failures:
            return ()
        return (Scope(observation.cluster, job=observation.job),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """The failure that makes it enough, once for each row of failures."""
        cluster, job = scope.cluster, scope.job or ""
        good: Checkpoints | None = None
        told = False
        for before, one in pairwise(facts.history(Checkpoints, cluster, job)):
            good = good or before
            if _completed(before, one) or _anew(before, one):
                good, told = one, False
            if told or one.failed - good.failed < self.min_failures:
                continue
            told = True
            last = f"since checkpoint {good.last} " if good.last is not None else ""
            yield self.make_finding(
                scope,
                one,
                detail=f"{one.failed - good.failed} checkpoints of {spoken(facts, cluster, job, one.at)} have failed "
                f"{last}and none was completed, by {clock(one.at)} UTC",
                subject=named(facts, cluster, job, one.at),
                previous={"completed": good.completed, "failed": good.failed, "last": good.last},
                current={"completed": one.completed, "failed": one.failed, "last": one.last},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over with the next completed checkpoint, or with the job."""
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(Checkpoints, cluster, job)
        at_once = history.as_of(finding.at)
        later = [*([] if at_once is None else [at_once]), *history.after(finding.at)]
        completed = (one.at for before, one in pairwise(later) if _completed(before, one))
        return recovered(finding, earliest(completed, over(facts, cluster, job, finding.at)))


def _anew(before: Checkpoints, one: Checkpoints) -> bool:
    """Whether the counts have begun anew."""
    return one.completed < before.completed or one.failed < before.failed


def _completed(before: Checkpoints, one: Checkpoints) -> bool:
    """Whether a checkpoint was completed in between."""
    return one.completed > (0 if _anew(before, one) else before.completed)
