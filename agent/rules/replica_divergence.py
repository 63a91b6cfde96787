"""replica_divergence: what the Spark check of that name finds where replicas of a partition differ."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Advice
from agent.model.findings import Finding, Severity
from agent.rules.queries.disks import on_disk


class ReplicaDivergence(CheckRule):
    """Two replicas of a partition hold different records at the same offset, below the high watermark.

    Found on the brokers' own disks by the check `replica_divergence` (clusters.NAME.log_directories): from which offset
    on, and what each replica would lose if the other led. The same offset with another leader epoch counts too.
    Recovers when a run over all that is configured no longer finds it.
    """

    reads = "replicas of one partition compared: from which offset on they differ, what each would lose"
    title = "replicas of {topic}[{partition}] differ"
    default_severity = Severity.CRITICAL
    advice: ClassVar[Mapping[str, Advice]] = {
        "offsets_went_back": Advice(
            now="copy {file} of {place} on broker {broker} before it restarts: after an unclean stop a broker may fail there ('Attempt to append an offset') or empty the segment; then let the replica fetch {place} anew from one that is whole.",
            prevent="min.insync.replicas=2 with acks=all for {topic}, and Kafka 0.11 or later with its message format (KIP-101).",
        ),
        "torn_tail": Advice(),
        "": Advice(
            now="do not restart {brokers} or move the leadership of {place} before you have copied its segments on both: who leads decides which records are lost; then choose the leader, not one whose own log is found damaged.",
            prevent="Kafka 2.0 or later (KIP-101, KIP-279) with message.format.version 0.11 or later for {topic}: replicas then find the point where they differ by leader epochs.",
        ),
    }

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Say what differs; when it came there is known by the records' own timestamps only."""
        return on_disk(finding, finding.detail, day)
