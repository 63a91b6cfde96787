"""Advice that several rules give."""

DEDUPLICATE = "Stop or deduplicate consumers of {reader}'s output since {start}; check {place} offsets {low}-{high}."
DURABLE_WRITES = (
    "Set unclean.leader.election.enable=false and min.insync.replicas=2 on {topic}, and acks=all on its producers."
)
