"""log_segments: what the Spark check of that name finds in a broker's log segments."""

from agent.engine.check_rule import CheckRule
from agent.model.findings import Severity


class LogSegments(CheckRule):
    """A broker's log is damaged: offsets that go back, a bad checksum, an index that points wrong, a torn batch.

    Found on the brokers' own disks by the check `log_segments` (clusters.NAME.log_directories). Severity and labels are
    the check's: a torn tail that the broker mends by itself is no more than a warning.
    Recovers when a run over all that is configured no longer finds it.
    """

    reads = "brokers' log segments: offsets that go back, bad checksums, indexes that point wrong"
    title = "log of {topic}[{partition}] on broker {broker} is damaged"
    default_severity = Severity.CRITICAL
