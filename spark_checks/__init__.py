"""Checks that need months of history or whole logs: each runs in Spark, in its own process, and prints findings."""
