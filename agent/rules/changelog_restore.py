"""changelog_restore: what the Spark check of that name finds in the changelogs of Kafka Streams applications."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Advice, EventRule, GroupRule
from agent.model.findings import Severity
from agent.model.observations import CheckFinding


class ChangelogRestore(EventRule, CheckRule, GroupRule):
    """Values of a store that is declared never to decrease went back, key by key, as its changelog shows. Over at once.

    Found by the check `changelog_restore` in the stores that `state_not_restored` declares, independently of the live
    rule. Labels: `values_fell`; `restarted` where keys began again, not above the first value that the changelog holds.
    Not: tombstones, after which a key begins anew; records of aborted transactions; what compaction has taken away.
    """

    reads = "Kafka Streams changelogs: keys of declared stores whose values went back or began again"
    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    default_severity = Severity.CRITICAL
    advice: ClassVar[Mapping[str, Advice]] = {
        "values_fell": Advice(
            now="stop every instance of {reader}: each further record builds on lost state and overwrites more of {topic}; raise min.compaction.lag.ms of {topic}, for compaction erases the good values. Then list the keys anew with `backflow check changelog_restore --out keys.parquet` and repair the store (docs/spark.md); those known by now, with their values before: {listed}.{undeclared}",
            prevent="Kafka Streams 2.2 or later (KAFKA-7672).",
        ),
        "no_move_seen": Advice(
            now="see what has written to {topic} since {start}: an instance that came back without its state, an operator's tool, or another writer. What fell is listed by `backflow check changelog_restore`.{undeclared}"
        ),
    }

    def means(self, observation: CheckFinding) -> bool:
        """Whether it is about an application and a changelog that are judged."""
        return self.applies_to(observation.group or "", observation.topic or "")
