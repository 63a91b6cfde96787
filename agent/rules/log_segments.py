"""log_segments: what the Spark check of that name finds in a broker's log segments."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Advice
from agent.model.findings import Finding, Severity
from agent.model.text import place
from agent.rules.queries.disks import on_disk


class LogSegments(CheckRule):
    """A broker's log is damaged: offsets that go back, a bad checksum, an index that points wrong, a torn batch.

    Found on the brokers' own disks by the check `log_segments` (clusters.NAME.log_directories). Severity and labels are
    the check's: a torn tail that the broker mends by itself is no more than a warning.
    Recovers when a run over all that is configured no longer finds it.
    """

    reads = "brokers' log segments: offsets that go back, bad checksums, indexes that point wrong"
    title = "log of {topic}[{partition}] on broker {broker} is damaged"
    default_severity = Severity.CRITICAL
    advice: ClassVar[Mapping[str, Advice]] = {
        "offsets_went_back": Advice(
            now="copy {file} of {place} on broker {broker} before it restarts: after an unclean stop a broker may fail there ('Attempt to append an offset') or empty the segment; then let the replica fetch {place} anew from one that is whole.",
            prevent="min.insync.replicas=2 with acks=all for {topic}, and Kafka 0.11 or later with its message format (KIP-101).",
        ),
        "torn_tail": Advice(),
        "": Advice(
            now="copy {file} of {place} on broker {broker} before it restarts; if another replica is whole, let it lead and broker {broker} fetch {place} anew.",
            prevent="check the disk of broker {broker}.",
        ),
    }

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Say what is damaged where; when it came there is known by the records' own timestamps only."""
        detail = finding.detail
        before, after = (side.get("offset") for side in (finding.previous, finding.current))
        if "offsets_went_back" in finding.labels and isinstance(before, int) and isinstance(after, int):
            byte = "" if finding.position is None else f" at byte {finding.position:,}"
            detail = (
                f"offsets go back in broker {finding.subject.get('broker')}'s copy of {place(finding.subject)}: "
                f"{after:,} follows {before:,}{byte} of {finding.subject.get('file', 'its log')}"
            )
        return on_disk(finding, detail, day)
