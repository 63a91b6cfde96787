"""offset_history: what the Spark check of that name finds in the journal."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Advice, EventRule, GroupRule
from agent.model.findings import Finding
from agent.model.observations import CheckFinding
from agent.rules.queries.advice import DEDUPLICATE, DURABLE_WRITES


class OffsetHistory(EventRule, CheckRule, GroupRule):
    """A committed offset went back or leapt, as the history in the journal shows. Over at once.

    Found by the check `offset_history`, independently of the live rules. Severity and labels are the check's: info
    where a live rule told it when it happened.
    Not: a gap in the journal, in which nothing can be compared; the check says that where it is asked.
    """

    reads = "the journal: every rewind, jump and gap of committed offsets, with what happened around it"
    title = "{group} on {topic}[{partition}] went back or leapt {records} records, as its history shows"
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "checkpoint_restore": Advice(),
        "after_expiry": Advice(
            now=DEDUPLICATE, prevent="offsets.retention.minutes longer than the longest pause of {reader}."
        ),
        "to_divergence": Advice(now=DEDUPLICATE, prevent=DURABLE_WRITES),
    }

    min_records: int = 1000
    """How many records a move must skip or read again to be told."""

    def means(self, observation: CheckFinding) -> bool:
        """Whether it is about a group on a topic, and both are judged."""
        group, topic = observation.group, observation.topic
        return group is not None and topic is not None and self.applies_to(group, topic)

    def counts(self, finding: Finding) -> bool:
        """Whether the move is far enough."""
        return max(finding.records.reread, finding.records.lost, finding.records.skipped) >= self.min_records
