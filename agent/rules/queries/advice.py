"""Advice that several rules give."""

DEDUPLICATE = "stop or dedupe what reads {reader}'s output from {start}; check downstream counts for {place} offsets {low}-{high}."
DURABLE_WRITES = "acks=all and min.insync.replicas=2 for what writes {topic}; unclean.leader.election.enable=false."
