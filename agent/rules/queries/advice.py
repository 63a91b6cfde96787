"""Advice that several rules give."""

DEDUPLICATE = "Stop or deduplicate consumers of {reader}'s output since {start}; check {place} offsets {low}-{high}."
REUSED_OFFSETS = "Do not deduplicate {reader}'s output by offset: new records of {place} reuse offsets of lost ones."
DEDUPLICATE_BY_KEY = (
    "Stop consumers of {reader}'s output since {start}, or deduplicate them by key, not by offset: "
    "new records of {place} reuse offsets of lost ones."
)
DURABLE_WRITES = (
    "Set unclean.leader.election.enable=false and min.insync.replicas=2 on {topic}, and acks=all on its producers."
)
REUSED_OFFSETS = "New records reuse the lost offsets: do not deduplicate {place} by offset."
