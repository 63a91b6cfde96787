"""offset_history: findings of the Spark check of that name, in the journal."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckInput, GroupCheckRule
from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import place
from agent.rules.queries.advice import DEDUPLICATE, DURABLE_WRITES, RESEND


class OffsetHistory(GroupCheckRule):
    """A committed offset moved backwards or jumped ahead, as its history in the journal shows.

    Found by the check `offset_history`, independently of the live rules. Severity and labels are the check's: info if a
    live rule reported it when it happened.
    Not: a gap in the journal, across which nothing can be compared; the check reports gaps itself.
    Recovers at once.
    """

    summary = "the journal: every rewind, jump and gap of committed offsets, with its context"
    input = CheckInput.COMMITS
    title = "{group} rewound or skipped {records} records on {topic}[{partition}], as its history shows"
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "checkpoint_restore": Advice(),
        "after_expiry": Advice(
            now=DEDUPLICATE, prevent="Set offsets.retention.minutes above the longest pause of {reader}."
        ),
        "to_divergence": Advice(now=RESEND, prevent=DURABLE_WRITES),
    }

    min_records: int = 1000
    """Fewest records reprocessed, lost or skipped that are reported."""

    def is_reportable(self, finding: Finding) -> bool:
        return max(finding.records.reread, finding.records.lost, finding.records.skipped) >= self.min_records

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        before, after = (side.get("offset") for side in (finding.previous, finding.current))
        if not isinstance(before, int) or not isinstance(after, int):
            return super().timeline(finding, day)
        return (
            f"{finding.subject.get('group')} on {place(finding.subject)}: {before:,} -> {after:,}, found in its history"
        )
