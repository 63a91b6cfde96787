"""replica_divergence: what the Spark check of that name finds where replicas of a partition differ."""

from agent.engine.check_rule import CheckRule
from agent.model.findings import Severity


class ReplicaDivergence(CheckRule):
    """Two replicas of a partition hold different records at the same offset, below the high watermark.

    Found on the brokers' own disks by the check `replica_divergence` (clusters.NAME.log_directories): from which offset
    on, and what each replica would lose if the other led. The same offset with another leader epoch counts too.
    Recovers when a run over all that is configured no longer finds it.
    """

    reads = "replicas of one partition compared: from which offset on they differ, what each would lose"
    title = "replicas of {topic}[{partition}] differ"
    default_severity = Severity.CRITICAL
