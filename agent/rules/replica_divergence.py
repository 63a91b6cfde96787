"""replica_divergence: findings of the Spark check of that name, where replicas of a partition differ."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import place
from agent.rules.queries.disks import DiskRule


class ReplicaDivergence(DiskRule):
    """Two replicas of a partition hold different records at the same offset, below the high watermark.

    Found on the brokers' own disks by the check `replica_divergence` (clusters.NAME.log_directories): from which offset
    on, and what would be lost if either led. The same offset with another leader epoch counts too.
    Recovers when a complete run of the check no longer finds it.
    """

    summary = "replicas of one partition compared: from which offset on they differ, what each would lose"
    min_brokers = 2
    title = "replicas of {topic}[{partition}] differ"
    advice: ClassVar[Mapping[str, Advice]] = {
        **DiskRule.advice,
        "": Advice(
            now="Copy the segments of {place} on brokers {brokers} before you restart them or move its leadership: the "
            "leader decides which records are lost. Then choose the leader, not a replica whose own log is damaged.",
            prevent="Use Kafka 2.0 or later (KIP-101, KIP-279) with message.format.version 0.11 or later for {topic}: "
            "replicas then find the divergence point by leader epochs.",
        ),
    }

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        brokers = " and ".join(map(str, finding.subject.get("brokers", ())))
        return f"{place(finding.subject)}: replicas on brokers {brokers} differ"
