"""Advice that several rules give."""

from agent.model.findings import Finding

DEDUPLICATE = "Stop or deduplicate consumers of {reader}'s output since {start}; check {place} offsets {low}-{high}."
DEDUPLICATE_BY_KEY = (
    "Stop consumers of {reader}'s output since {start}, or deduplicate them by key, not by offset: "
    "new records of {place} reuse offsets of lost ones."
)
DURABLE_WRITES = (
    "Set unclean.leader.election.enable=false and min.insync.replicas=2 on {topic}, and acks=all on its producers."
)
REUSED_OFFSETS = "New records reuse the lost offsets: do not deduplicate {place} by offset."
RESEND = f"Have the producers of {{topic}} resend the lost records. {REUSED_OFFSETS}"
_REPLICATE = (
    "Replicate {topic} (replication factor 3, min.insync.replicas=2, acks=all on its producers): "
    "it has a single replica, so what its broker loses is lost."
)


def prevent_truncation(finding: Finding) -> str:
    """Return what keeps a log from being truncated; `replicas` of the finding is how many it had, if known."""
    return _REPLICATE if finding.current.get("replicas") == 1 else DURABLE_WRITES
