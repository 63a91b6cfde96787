"""check_failed: a Spark check does not do its work."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.condition_rule import intervals_where
from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.findings import Finding
from agent.model.observations import CheckRun, Observation, clock

_LAST_LINES = 5


class CheckFailed(Rule):
    """A Spark check could not start, failed, or was stopped for its limits; told once until a run of it succeeds.

    Recovers at the next run of the check that does not fail.
    """

    title = "{source} failed on {cluster}"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="the last lines of its log say why; `backflow check {source}` runs it by hand.", only_while_open=True
        ),
    }
    observes = (CheckRun,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each run that failed."""
        if not isinstance(observation, CheckRun) or not _failed(observation):
            return ()
        return (Scope(observation.cluster, source=observation.check),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """The first of failed runs in a row."""
        for run, _ in intervals_where(facts.history(CheckRun, scope.cluster, scope.source or ""), _failed):
            why, *log = run.reason.splitlines() or ["no reason was given"]
            yield self.make_finding(
                scope,
                run,
                detail=f"the check {scope.source} failed at {clock(run.at)} UTC: {why}"
                + (f"; its log ends: {' | '.join(log[-_LAST_LINES:])}" if log else ""),
                current={"log": "\n".join(log)} if log else None,
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over with the next run that does not fail."""
        runs = facts.history(CheckRun, scope.cluster, scope.source or "").after(finding.at)
        return recovered(finding, next((one.at for one in runs if not _failed(one)), None))


def _failed(run: CheckRun) -> bool:
    return run.outcome == "failed"
