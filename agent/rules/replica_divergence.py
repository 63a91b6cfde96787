"""replica_divergence: findings of the Spark check of that name, where replicas of a partition differ."""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import count, instant, join_names, place, recovery
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
            now="Do not restart {brokers} or move the leader of {place} before you have copied its segments: "
            "the leader decides which records are lost. Choose one whose own log is undamaged.",
            prevent="Use Kafka 2.0 or later (KIP-101, KIP-279) with message.format.version 0.11 or later for {topic}: "
            "replicas then find the divergence point by leader epochs.",
        ),
    }

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Return which offsets differ, what each choice of leader loses, and where a log is itself faulty."""
        sides = _sides(finding)
        if sides is None:
            return super().describe(finding, day)
        first = min(side["offset"] for side in sides if side["ranges"])
        last = max(side["last_offset"] for side in sides if side["ranges"])
        brokers = join_names(side["broker"] for side in sides)
        difference = f"{place(finding.subject)} differs between brokers {brokers} at offsets {first:,}-{last:,}"
        if "epochs_differ" in finding.labels:
            difference += ": the same bytes, written under different leader epochs"
        ended = recovery(finding, day, "no longer found")
        sentences = [f"{difference}, in records of {instant(finding.at, day)}{ended}."]
        if "epochs_differ" not in finding.labels:
            a, b = sides
            sentences.append(f"If {a['broker']} leads, {_loss(b)}; if {b['broker']} leads, {_loss(a)}.")
        # Further sentences of `detail` name the faults in a replica's own log.
        return " ".join([*sentences, finding.detail.partition(". ")[2]]).rstrip()

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        brokers = " and ".join(map(str, finding.subject.get("brokers", ())))
        return f"{place(finding.subject)}: replicas on brokers {brokers} differ"


def _sides(finding: Finding) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return what only one replica holds, of both; None if the finding does not say, or has no offset that differs."""
    sides = finding.previous, finding.current
    names = {"broker", "offset", "last_offset", "records", "ranges"}
    is_complete = all(names <= side.keys() for side in sides) and any(side["ranges"] for side in sides)
    return sides if is_complete else None


def _loss(side: Mapping[str, Any]) -> str:
    """Return what the replica loses if the other one leads."""
    lost = count(side["records"], "record") if side["records"] else "nothing"
    return f"{side['broker']} loses {lost}"
