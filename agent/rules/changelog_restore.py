"""changelog_restore: findings of the Spark check of that name, in changelogs of Kafka Streams applications."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckInput, CheckRule
from agent.engine.rule import Advice, EventRule, GroupRule
from agent.model.findings import Finding, Severity
from agent.model.observations import CheckFinding
from agent.model.text import count, place

_COMMAND = "backflow check changelog_restore"


class ChangelogRestore(EventRule, CheckRule, GroupRule):
    """Values of a store that is declared never to decrease did decrease, key by key, as its changelog shows.

    Found by the check `changelog_restore` in the stores that `state_not_restored` declares, independently of the live
    rule. Labels: `values_fell`; `restarted` if keys started over, not above the first value that the changelog holds.
    Not: tombstones, after which a key starts over; records of aborted transactions; what compaction has removed.
    Recovers at once.
    """

    PREVENTION: ClassVar[str] = "Upgrade {reader} to Kafka Streams 2.2 or later (KAFKA-7672)."

    summary = "Kafka Streams changelogs: keys of declared stores whose values decreased or started over"
    input = CheckInput.CHANGELOGS
    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    default_severity = Severity.CRITICAL
    advice: ClassVar[Mapping[str, Advice]] = {
        "values_fell": Advice(
            now="Stop every instance of {reader} and raise min.compaction.lag.ms of {topic}, before good values are "
            f"overwritten or compacted away. Then list the keys with `{_COMMAND} --out keys.parquet` and repair the "
            "store (docs/spark.md); keys known so far, with their old values: {listed}.{undeclared}",
            prevent=PREVENTION,
        ),
        "no_move_seen": Advice(
            now="Find out what wrote to {topic} since {start}: an instance without its state, an operator's tool or "
            f"another writer. List the keys with `{_COMMAND}`.{{undeclared}}"
        ),
    }

    def matches(self, observation: CheckFinding) -> bool:
        return self.applies_to(observation.group or "", observation.topic or "")

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        numbers = [number for finding in findings if isinstance(number := finding.current.get("keys"), int)]
        return f", {count(sum(numbers), 'key')} decreased" if any(numbers) else ""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        keys = finding.current.get("keys")
        number = count(keys, "key") if isinstance(keys, int) else "keys"
        cause = ", store not restored" if "values_fell" in finding.labels else ""
        return f"{place(finding.subject)}: {number} decreased{cause}"
