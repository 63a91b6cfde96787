"""Exit statuses of the commands of `backflow` and of Spark checks."""

CLEAN, FOUND, WRONG, FAILED = 0, 1, 2, 3
"""Nothing to report, findings, wrong usage or configuration, failure."""
