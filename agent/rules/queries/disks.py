"""Base of the rules about logs on brokers' disks, with the advice and the wording that they share."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Advice
from agent.model.findings import Finding, Severity
from agent.model.text import instant, recovery


class DiskRule(CheckRule):
    """A rule about what a check finds in log directories, whose time is that of the records concerned."""

    default_severity = Severity.CRITICAL
    advice: ClassVar[Mapping[str, Advice]] = {
        "offsets_went_back": Advice(
            now="Copy {file} before broker {broker} restarts: it may fail ('Attempt to append an offset') or empty the "
            "segment. Then let it fetch {place} from an intact replica.",
            prevent="Use acks=all and min.insync.replicas=2 for {topic}, on Kafka 0.11 or later with its message "
            "format (KIP-101).",
        ),
        "torn_tail": Advice(),
    }

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        damage = cls.describe_damage(finding).rstrip(".")
        return f"{damage}, in records of {instant(finding.at, day)}{recovery(finding, day, 'no longer found')}"

    @classmethod
    def describe_damage(cls, finding: Finding) -> str:
        """Return what is wrong, without its time."""
        return finding.detail
