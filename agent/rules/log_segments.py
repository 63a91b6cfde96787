"""log_segments: findings of the Spark check of that name, in brokers' log segments."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import place
from agent.rules.queries.disks import DiskRule


class LogSegments(DiskRule):
    """A broker's log is damaged: decreasing offsets, a bad checksum, a wrong index entry, a torn batch.

    Found on the brokers' own disks by the check `log_segments` (clusters.NAME.log_directories). Severity and labels are
    the check's: a torn tail, which the broker repairs by itself, is at most a warning.
    Recovers when a complete run of the check no longer finds it.
    """

    summary = "brokers' log segments: decreasing offsets, bad checksums, wrong index entries"
    title = "log of {topic}[{partition}] on broker {broker} is damaged"
    advice: ClassVar[Mapping[str, Advice]] = {
        **DiskRule.advice,
        "": Advice(
            now="Copy {file} of {place} on broker {broker} before it restarts. If another replica is intact, let it "
            "lead and broker {broker} fetch {place} from it.",
            prevent="Check the disk of broker {broker}.",
        ),
    }

    @classmethod
    def describe_damage(cls, finding: Finding) -> str:
        decrease = _describe_decrease(finding)
        if not decrease:
            return finding.detail
        where = f"{place(finding.subject)} on broker {finding.subject.get('broker')}"
        return f"offsets decrease in {where}: {decrease} of {finding.subject.get('file', 'its log')}"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        damage = _describe_decrease(finding) or "log damaged"
        return f"{place(finding.subject)} on broker {finding.subject.get('broker')}: {damage}"


def _describe_decrease(finding: Finding) -> str:
    """Return which offset follows which at what byte, or nothing if offsets do not decrease."""
    before, after = (side.get("offset") for side in (finding.previous, finding.current))
    if "offsets_went_back" not in finding.labels or not isinstance(before, int) or not isinstance(after, int):
        return ""
    position = "" if finding.position is None else f" at byte {finding.position:,}"
    return f"offset {after:,} follows {before:,}{position}"
