"""check_failed: a run of a Spark check failed."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.condition_rule import Condition, ConditionRule
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope
from agent.model.observations.checks import CheckRun

_JVM_EXCEPTIONS = ("Exception in thread", "Caused by:")


class CheckFailed(ConditionRule):
    """A Spark check could not start, failed, or was stopped at its limits; reported once until a run succeeds.

    Recovers at the next run of the check that does not fail.
    """

    title = "check {source} failed on {cluster}"
    reports_agent = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Read the last lines of its log, then run `backflow check {source}` by hand.", only_while_open=True
        ),
    }
    observes = (CheckRun,)

    def find_scope(self, observation: CheckRun) -> Scope:
        return Scope(observation.cluster, source=observation.check)

    def find_history(self, scope: Scope, facts: Facts) -> History[CheckRun]:
        return facts.history(CheckRun, scope.cluster, scope.source or "")

    def holds(self, observation: CheckRun) -> bool:
        return observation.outcome == "failed"

    def describe_condition(self, scope: Scope, begin: CheckRun, before: CheckRun | None) -> Condition:  # noqa: ARG002 - the base's signature
        reason, *log = begin.reason.splitlines() or ["no reason was given"]
        # The exception of a JVM that could not start comes before Python's, which only says that it ended.
        causes = [line for line in log if line.startswith(_JVM_EXCEPTIONS)]
        log_end = f"; its log ends with: {log[-1]}" if log else ""
        if causes:
            log_end = f"; the cause in its log: {causes[-1]}"
        return Condition(
            f"check {scope.source} failed: {reason}{log_end}", current={"log": "\n".join(log)} if log else {}
        )
