"""Spark checks as the daemon sees them: processes that it asks, limits and listens to. The checks are spark_checks/."""

from collections.abc import Mapping

CHECKS: Mapping[str, str] = {
    "log_segments": "brokers' log segments: offsets that go back, bad checksums, indexes that point wrong",
    "replica_divergence": "replicas of one partition compared: from which offset on they differ, what each would lose",
    "offset_history": "the journal: every rewind, jump and gap of committed offsets, with what happened around it",
    "job_history": "the journal and Flink's storage: jobs that came back, checkpoint ids begun anew, stray job graphs",
    "changelog_restore": "Kafka Streams changelogs: keys of declared stores whose values went back or began again",
}
"""Every check by its name, and in one line what it looks at."""
