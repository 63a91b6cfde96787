"""changelog_restore: findings of the Spark check of that name, in changelogs of Kafka Streams applications."""

from collections.abc import Iterable

from agent.engine.check_rule import CheckInput, CheckRule
from agent.engine.rule import EventRule, GroupRule
from agent.model.findings import Finding, Severity
from agent.model.observations.checks import CheckFinding
from agent.rules.queries.decreases import ADVICE, decrease_row, keys_suffix


class ChangelogRestore(EventRule, CheckRule, GroupRule):
    """Values of a store that is declared never to decrease did decrease, key by key, as its changelog shows.

    Found by the check `changelog_restore` in the stores that `state_not_restored` declares, independently of the live
    rule. Labels: `values_fell`; `restarted` if keys started over, not above the first value that the changelog holds.
    Not: tombstones, after which a key starts over; records of aborted transactions; what compaction has removed.
    Recovers at once.
    """

    summary = "Kafka Streams changelogs: keys of declared stores whose values decreased or started over"
    input = CheckInput.CHANGELOGS
    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    default_severity = Severity.CRITICAL
    advice = ADVICE

    def matches(self, observation: CheckFinding) -> bool:
        return self.applies_to(observation.group or "", observation.topic or "")

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        return keys_suffix(findings)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return decrease_row(finding)
