"""agent_impaired: a part of Backflow itself does not work as it should."""

from typing import Any

from agent.engine.condition_rule import Condition, ConditionRule
from agent.engine.facts import Facts
from agent.engine.history import History
from agent.engine.rule import Advice, Scope
from agent.model.findings import Finding
from agent.model.observations.agent import AgentPart
from agent.model.text import recovery


class AgentImpaired(ConditionRule):
    """A part of Backflow itself does not work: a rule failed, the state cannot be written, the clock was set.

    Backflow sets the part aside, goes on with the rest and reports it once. Recovers when the part works again.
    """

    title = "Backflow is impaired: {part}"
    reports_agent = True
    observes = (AgentPart,)
    scope_keys = ("part",)

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        del finding
        return Advice(now="Find `part_failed` in Backflow's log: it has the details.", only_while_open=True)

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        return f"{finding.detail.rstrip('.')}{recovery(finding, day, 'works again')}"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return f"Backflow: a problem with the {finding.subject.get('part', 'agent')}"

    def find_scope(self, observation: AgentPart) -> Scope:
        return Scope(observation.cluster, others=(("part", observation.part),))

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(AgentPart, scope.cluster, dict(scope.others)["part"])

    def holds(self, observation: AgentPart) -> bool:
        return observation.problem is not None

    def describe_condition(self, scope: Scope, begin: AgentPart, before: object) -> Condition:
        del scope, before
        return Condition(f"{begin.part}: {begin.problem}")
