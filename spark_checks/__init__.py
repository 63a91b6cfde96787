"""Checks that need months of history or whole logs: each runs in Spark, in a process of its own, and prints findings."""
