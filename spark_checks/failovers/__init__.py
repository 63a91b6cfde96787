"""Consumer groups that move from one cluster to another: who ran where, and which records that repeats or skips."""
