"""Spark checks over months of history or whole logs: each runs in its own process and prints findings."""
